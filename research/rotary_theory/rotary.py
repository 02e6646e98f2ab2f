"""Closed forms of the theorems under rotary embedding: positions, D(t), and how far methods carry. Numpy, no torch.

One rotary pair of angle theta a token does what ALiBi's bias does in the paper's proofs: a constant query and key at
distance r score -a sin(theta r), which falls like -slope * r (a = slope / theta) up to a quarter turn, L tokens, and
then comes back. The MLP writes w_t = e^(i theta p_t), p_t the recovered position, and layer 2 scores

    s(t, i) = a sin(theta (p_t - p_i) - theta' W(t - i)),      D(t) = sum over i of e^(s(t, i) - s(t, 1)),

theta' the angle under a method that changes frequencies. As everywhere o_t = M / D(t) - 1 + H, so o_t > H exactly
where D(t) < M. Two ways to read t in layer 1: 'rotation', from x_t = e^(-a sin(theta (t-1))) / sum (the paper's way),
and 'count', from 1 / t, with keys of 0 (theorem 3.1's head), which no method can touch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mesa.errors import Refused
from theory.recovery import sharpness

READS = ("rotation", "count")

Weave = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """One construction's sizes.

    M: the window. reads: how layer 1 reads t, of `READS`. recovers: K, how many positions the MLP tells apart
    (default M). quarter: L, the tokens of a quarter turn (default K). slope: a theta, the slope at distance 0.
    pairs: rotary pairs of a head, half its size. pair: the one that is used, from 0 (default: the slowest).
    """

    M: int
    reads: str = "rotation"
    recovers: int = 0
    quarter: int = 0
    slope: float = 1.0
    pairs: int = 2
    pair: int = -1

    def __post_init__(self) -> None:
        """Fills what is left out; Refused, naming value and remedy, for sizes that the theorems do not hold for."""
        object.__setattr__(self, "recovers", self.recovers or self.M)
        object.__setattr__(self, "quarter", self.quarter or self.recovers)
        object.__setattr__(self, "pair", self.pair % self.pairs)
        K, L = self.recovers, self.quarter
        if self.reads not in READS:
            raise Refused(f"reads={self.reads!r} is not known; take {' or '.join(READS)}")
        if K < self.M:
            raise Refused(f"recovers={K} positions are too few for M={self.M}; take recovers >= {self.M}")
        if self.reads == "rotation" and L < K - 1:
            raise Refused(f"quarter={L} is less than the {K - 1} distances to tell apart; take quarter >= {K - 1}")
        if self.pair < 1:
            raise Refused(f"pair={self.pair} turns by 1 a token whatever the base; take a head of 2 pairs or more")

    @property
    def base(self) -> float:
        """Rotary's base, by which the chosen pair turns a quarter in `quarter` tokens."""
        return (2 * self.quarter / math.pi) ** (self.pairs / self.pair)

    @property
    def theta(self) -> float:
        """The chosen pair's angle a token, as the model computes it."""
        return float((self.base ** (-np.arange(self.pairs) / self.pairs))[self.pair])

    @property
    def amplitude(self) -> float:
        """a: scores are a sin(...)."""
        return self.slope / self.theta

    @property
    def exponent(self) -> float:
        """c: Dynamic-NTK divides this pair's angle by growth^c; 0 for the fastest pair, 1 for the slowest."""
        return self.pair / (self.pairs - 1)

    def bias(self, distance: np.ndarray, factor: float = 1.0, grown: float = 1.0) -> np.ndarray:
        """Layer 1's scores at effective distances. factor: theta' / theta. grown: the factor on scores, YaRN's."""
        a = self.amplitude if self.reads == "rotation" else 0.0
        return -grown * a * np.sin(self.theta * factor * distance)

    def log_denominators(self, distance: np.ndarray, factor: float = 1.0, grown: float = 1.0) -> np.ndarray:
        """log of 1 / x_t, t = 1 .. len(distance), by the effective distances of r = 0, 1, ...; as for `bias`."""
        if self.reads == "count":
            return np.log(np.arange(1.0, len(distance) + 1))
        bias = self.bias(distance, factor, grown)
        return np.logaddexp.accumulate(bias) - bias

    def written(self, log_a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The position p and the complex w = e^(i theta p) that the MLP writes where 1 / x is e^log_a.

        Within a step w is on the chord between two of them.
        """
        log_c, b = steps(self)
        begun = np.searchsorted(-log_c, log_a)
        last = np.maximum(begun - 1, 0)
        share = np.where(begun > 0, np.clip(-b[last] * np.expm1(-log_a - log_c[last]), 0, 1), 0.0)
        turn = np.exp(1j * self.theta * np.arange(1, self.recovers + 1))
        return 1 + last + share, (1 - share) * turn[last] + share * turn[np.minimum(last + 1, self.recovers - 1)]

    def position(self, length: int, weave: Weave = np.asarray, factor: float = 1.0, grown: float = 1.0) -> np.ndarray:
        """What layer 1 recovers at t = 1 .. length."""
        return self.written(self.log_denominators(weave(np.arange(length)) * 1.0, factor, grown))[0]

    def denominator(
        self, t: np.ndarray, weave: Weave = np.asarray, factor: float = 1.0, grown: float = 1.0
    ) -> np.ndarray:
        """D(t), for each t given."""
        distance = weave(np.arange(int(np.max(t)))) * 1.0
        w = self.written(self.log_denominators(distance, factor, grown))[1]
        turned = np.exp(1j * self.theta * factor * distance)
        sums = []
        for position in np.ravel(t):
            score = -grown * self.amplitude * (w[:position] * w[position - 1].conj() * turned[:position][::-1]).imag
            sums.append(np.exp(score - score[0]).sum())
        return np.array(sums)


@lru_cache
def steps(sizes: Rotary) -> tuple[np.ndarray, np.ndarray]:
    """log c_k and b_k of the MLP's steps from k to k + 1: relu(z) - relu(z - 1), z = b_k (1 - x / c_k).

    c_k = sqrt(x_k x_(k+1)), and b_k is so large that a step is over well before the next x.
    """
    log_x = -sizes.log_denominators(np.arange(sizes.recovers))
    half = np.diff(log_x) / 2
    return log_x[:-1] + half, -sharpness() * math.expm1(-0.5) / -np.expm1(half)


def leaky_rerope(distance: Any, window: int, k: float) -> Any:
    """r if r < N, else N + (r - N) / k: beyond the window distances grow k times slower. Fractional."""
    return (distance < window) * distance + (distance >= window) * (window + (distance - window) / k)


def woven_reach(sizes: Rotary, N: int) -> float:
    """T* of ReRoPE with window N: exact for 'count', of ideal recovery for 'rotation'.

    rotation (as theory.bounds.extended_length): p = min(i, N + 1). With h(u) = a sin(theta u) and S the sum of e^-h(j)
    over j < N, D(t) = 2 S + (t - 2N) e^-h(N) from t = 2N on, so T* = 2N + e^h(N) (M - 2 S).
    count: p = min(i, K). From t = K + N on D(t) grows by e^-(h(N) + h(K-1-N)) a token: the keys beyond K that are
    farther than N all lie N back, at the position K - 1 ahead of <bos>'s. Exact where D stays below M up to there.
    Raises Refused where D reaches M before it is a line, from 2N or K + N on: slopes far below 1.
    """
    h = sizes.amplitude * np.sin(sizes.theta * np.arange(sizes.recovers))
    near = np.exp(-h[:N]).sum()
    K, begins = sizes.recovers, 2 * N
    further = math.exp(h[N]) * (sizes.M - 2 * near)
    if sizes.reads == "count":
        begins = K + N
        ahead = sizes.amplitude * np.sin(sizes.theta * (np.arange(K - 1, -1, -1) - N))
        ends = np.exp(ahead - ahead[0]).sum() + near * math.exp(-ahead[0])
        further = math.exp(h[N] + ahead[0]) * (sizes.M - ends)
    if further < 0:
        raise Refused(f"slope={sizes.slope} is too small: D reaches M={sizes.M} before t={begins}; take a larger slope")
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


def most(sizes: Rotary) -> float:
    """M e^(2a): from here on D(t) >= M whatever distances and frequencies a method takes, since |s(t, i)| <= a."""
    return sizes.M * math.exp(2 * sizes.amplitude)


def ntk_factor(sizes: Rotary, s: float, n: Any) -> Any:
    """theta' / theta under Dynamic-NTK with factor s, in a text of n > M tokens: growth^-c."""
    return (s * n / sizes.M - (s - 1)) ** -sizes.exponent


def yarn_scale(s: float) -> float:
    """YaRN's factor on scores; its theta' / theta is 1 / s for a pair that turns less than once in M tokens."""
    return (0.1 * math.log(s) + 1) ** 2
