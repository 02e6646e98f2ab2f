"""Rotary phases that were never met inside the trained window, by a plan's distances alone; no model is run.

Pair m of a head's dims turns by w_m a token. Inside the window it meets the phases w_m r, 0 <= r < M, and, as they are
counted here, what lies between two that are one step w_m apart: the arc from 0 to w_m (M - 1), or the whole circle if
no more than a step is left of it. A method puts a key at relative position r' and may turn pairs at another frequency
w'_m: the phase w'_m r' was met if modulo 2 pi it lies on that arc, so also where the pair comes round to it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mesa.plan import Plan, relative_positions, rotary_base

_ROUND = 2 * math.pi
_BLOCK = 256  # queries
_ROUNDING = 1e-6  # relative; inv_freq is float32


@dataclass(frozen=True)
class Phases:
    """By rotary pair, in radians: what it turns by a token, in use, and the arc from 0 on that it met inside M."""

    turn: np.ndarray
    arc: np.ndarray

    @property
    def open_pairs(self) -> np.ndarray:
        """The pairs that have not met the whole circle, by number."""
        return np.flatnonzero(self.arc < _ROUND)

    def unmet(self, relative: np.ndarray, pair: int) -> np.ndarray:
        """Whether a pair never met its phase at these relative positions (-1: masked, False), in their shape."""
        angle = relative * self.turn[pair]
        phase, near = angle - _ROUND * np.floor(angle / _ROUND), _ROUNDING * angle
        return (relative >= 0) & (phase > self.arc[pair] + near) & (phase < _ROUND - near)


def phases(plan: Plan, trained: np.ndarray, own: np.ndarray, trained_length: int) -> Phases:
    """What each pair turns by under the plan, and what it met.

    trained, own: radians a token of each pair inside M, and in use before the plan scales them.
    """
    pairs = len(trained)
    number, scale = np.arange(pairs, dtype=float), 1.0
    if plan.frequency_scale is not None:
        scale = plan.frequency_scale(number, 2 * pairs, rotary_base(own))
    return Phases(own * scale, np.where(trained * trained_length >= _ROUND, _ROUND, trained * (trained_length - 1)))


def first_above(plan: Plan, met: Phases, share: float = 0.0) -> int | None:
    """The first token position (from 0) at which more than `share` of the (key, pair)s are unmet; None if none is."""
    for begin, shares in _shares_by_block(plan, met):
        if (shares > share).any():
            return begin + int((shares > share).argmax())
    return None


def unmet_by_position(plan: Plan, met: Phases) -> np.ndarray:
    """The share of each query's (key, pair)s whose phase was never met, (position,), all counted alike."""
    return np.concatenate([shares for _, shares in _shares_by_block(plan, met)])


def _shares_by_block(plan: Plan, met: Phases) -> Iterator[tuple[int, np.ndarray]]:
    """The first of some queries, and their shares; each relative position that they see is looked at once."""
    index = np.arange(plan.length)
    for begin in range(0, plan.length, _BLOCK):
        relative = relative_positions(plan, index[begin : begin + _BLOCK], index)
        at, values = pd.factorize(relative.ravel())
        new = sum((met.unmet(np.asarray(values), pair) for pair in met.open_pairs), np.zeros(len(values)))
        unmet = new[at].reshape(relative.shape).sum(1)
        yield begin, unmet / ((relative >= 0).sum(1) * len(met.arc))
