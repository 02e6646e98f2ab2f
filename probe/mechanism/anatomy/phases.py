"""Rotary phases that were never met inside the trained window, by a plan's distances alone; no model is run.

Pair m of a head's dims turns by w_m a token. Inside the window it meets the phases w_m r, 0 <= r < M. A method puts a
key at relative position r' and may turn pairs at another frequency w'_m: the phase w'_m r' was never met if it is above
w_m (M - 1) and that is below one round; a pair that has gone round has met all. Phases count from distance 0 on, so
those beyond one round of a pair that had not gone round stay unmet.
"""

from __future__ import annotations

import math

import numpy as np

from mesa.plan import Plan, reach, relative_positions, rotary_base


def met_limits(plan: Plan, trained: np.ndarray, own: np.ndarray, trained_length: int) -> np.ndarray:
    """The largest relative position of each pair, (pair,), whose phase was met; inf for pairs that have gone round.

    trained, own: radians a token of each pair inside M, and in use before the plan scales them.
    """
    pairs = len(trained)
    number, scale = np.arange(pairs, dtype=float), 1.0
    if plan.frequency_scale is not None:
        scale = plan.frequency_scale(number, 2 * pairs, rotary_base(own))
    largest = trained * (trained_length - 1)
    return np.where(largest >= 2 * math.pi, np.inf, largest / (own * scale) * (1 + 1e-6))  # inv_freq is float32


def first_above(plan: Plan, limits: np.ndarray, share: float = 0.0) -> int | None:
    """The first token position (from 0) at which more than `share` of the (key, pair)s are unmet; None if none is."""
    above = unmet_by_position(plan, limits) > share if share else reach(plan) > limits.min(initial=np.inf)
    return int(above.argmax()) if above.any() else None


def unmet_by_position(plan: Plan, limits: np.ndarray, block: int = 256) -> np.ndarray:
    """The share of each query's (key, pair)s whose phase was never met, (position,), all counted alike."""
    index, shares = np.arange(plan.length), []
    for begin in range(0, plan.length, block):
        relative = relative_positions(plan, index[begin : begin + block], index)
        unmet = sum(((relative > limit).sum(1) for limit in limits[np.isfinite(limits)]), np.zeros(len(relative)))
        shares.append(unmet / ((relative >= 0).sum(1) * len(limits)))
    return np.concatenate(shares)
