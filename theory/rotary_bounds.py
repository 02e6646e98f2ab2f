"""How far methods carry the rotary constructions: closed forms and bounds, see theory.rotary. Numpy, no torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from theory.rotary import Rotary


def woven_reach(sizes: Rotary, N: int) -> float:
    """T* of ReRoPE with window N: exact for 'count', of ideal recovery for 'rotation'.

    rotation (as theory.bounds.extended_length): p = min(i, N + 1). With h(u) = a sin(theta u) and S the sum of e^-h(j)
    over j < N, D(t) = 2 S + (t - 2N) e^-h(N) from t = 2N on, so T* = 2N + e^h(N) (M - 2 S).
    count: p = min(i, K). From t = K + N on D(t) grows by e^-(h(N) + h(K-1-N)) a token: the keys beyond K that are
    farther than N all lie N back, at the position K - 1 ahead of <bos>'s. Exact where D stays below M up to there.
    Raises ValueError where D reaches M before it is a line, from 2N or K + N on: slopes far below 1.
    """
    h = sizes.amplitude * np.sin(sizes.theta * np.arange(sizes.recovers))
    near = np.exp(-h[:N]).sum()
    if sizes.reads == "rotation":
        return _on_its_line(sizes, 2 * N, math.exp(h[N]) * (sizes.M - 2 * near))
    K = sizes.recovers
    ahead = sizes.amplitude * np.sin(sizes.theta * (np.arange(K - 1, -1, -1) - N))
    ends = np.exp(ahead - ahead[0]).sum() + near * math.exp(-ahead[0])
    return _on_its_line(sizes, K + N, math.exp(h[N] + ahead[0]) * (sizes.M - ends))


def _on_its_line(sizes: Rotary, begins: int, further: float) -> float:
    """T*, `further` tokens beyond where D becomes a line. Raises ValueError if that is before."""
    if further < 0:
        raise ValueError(
            f"slope={sizes.slope} is too small: D reaches M={sizes.M} before t={begins}; take a larger slope"
        )
    return begins + float(further)


def fails_from(sizes: Rotary, distance: np.ndarray) -> int | None:
    """The first t, by the effective distances of r = 0, 1, ..., with W(t-1) >= K - 1 + W(M-2): D(t) > M there.

    <bos> is at the phase theta (p_t - 1 - W(t-1)) <= -theta W(M-2), since p_t <= K; the M - 1 nearest keys are at
    theta (p_t - p_i - W(t-i)) >= -theta W(M-2) where p rises. As long as the sine rises between them, that is, where
    W(t-1) - (p_t - 1) <= L, they all get what <bos> gets or more. Whatever distances are: a weave, or r times
    theta' / theta. None: not among these distances.
    """
    reached = np.flatnonzero(distance >= sizes.recovers - 1 + distance[sizes.M - 2])
    return int(reached[0]) + 1 if len(reached) else None


def most(sizes: Rotary, grown: float = 1.0) -> float:
    """M e^(2a): from here on D(t) >= M whatever distances and frequencies a method takes, since |s(t, i)| <= a."""
    return sizes.M * math.exp(2 * grown * sizes.amplitude)


def ntk_factor(sizes: Rotary, s: float, n: Any) -> Any:
    """theta' / theta under Dynamic-NTK with factor s, in a text of n > M tokens: growth^-c."""
    return (s * n / sizes.M - (s - 1)) ** -sizes.exponent


def yarn_scale(s: float) -> float:
    """YaRN's factor on scores; its theta' / theta is 1 / s for a pair that turns less than once in M tokens."""
    return (0.1 * math.log(s) + 1) ** 2
