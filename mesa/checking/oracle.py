"""Attention pair by pair in float64, from queries and keys as they were before any rotation.

It reads a plan's regions and the frequencies of the model's own rotary module, and shares nothing else with the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mesa.plan import Plan


class Pair(NamedTuple):
    """A key that a query sees: its distance, and the factor on the query and it."""

    key: int
    distance: float
    factor: float


@dataclass(frozen=True)
class Positions:
    """How positions enter a layer: by frequencies (radians a token), with cos and sin scaled, or by slopes (head,)."""

    frequencies: np.ndarray | None = None
    scaled: float = 1.0
    slopes: np.ndarray | None = None


def pairs(plan: Plan, query: int, window: int | None = None) -> list[Pair]:
    """What the query of a token sees under a plan and a sliding window, itself included in it (None: none).

    ValueError for a pair in two of the plan's regions.
    """
    visible = []
    for key in range(0 if window is None else max(0, query + 1 - window), query + 1):
        holding = [region for region in plan.regions if region.contains(query, key)]
        if len(holding) > 1:
            raise ValueError(f"the pair ({query}, {key}) is in {len(holding)} regions of the plan; it may be in one")
        for region in holding:
            scales = (region.query_scale, query), (region.key_scale, key)
            factor = math.prod(float(scale(index)) for scale, index in scales if scale is not None)
            visible.append(Pair(key, float(region.query_position(query) - region.key_position(key)), factor))
    return visible


def rotated(state: np.ndarray, distance: np.ndarray, positions: Positions) -> np.ndarray:
    """States (pair, dim) rotated by distances (pair,): dim m pairs with dim m + half; dims beyond them stay."""
    assert positions.frequencies is not None
    half = len(positions.frequencies)
    angle = distance[:, None] * positions.frequencies
    cos, sin = np.cos(angle) * positions.scaled, np.sin(angle) * positions.scaled
    one, two = state[:, :half], state[:, half : 2 * half]
    return np.concatenate([one * cos - two * sin, two * cos + one * sin, state[:, 2 * half :]], 1)


def attention_output(
    states: tuple[np.ndarray, np.ndarray, np.ndarray], visible: Sequence[Pair], scaling: float, at: Positions, head: int
) -> np.ndarray:
    """Output (dim,) of a query head: states are its query (dim,), and keys and values (token, dim), in float64."""
    query, keys, values = states
    index = [pair.key for pair in visible]
    distance, factor = (
        np.array(column) for column in ([pair.distance for pair in visible], [pair.factor for pair in visible])
    )
    queries, chosen = np.repeat(query[None], len(index), 0), keys[index]
    if at.frequencies is not None:
        queries, chosen = rotated(queries, distance, at), rotated(chosen, distance * 0, at)
    scores = (queries * chosen).sum(1) * scaling * factor
    if at.slopes is not None:
        scores = scores - at.slopes[head] * distance
    weights = np.exp(scores - scores.max())
    return (weights / weights.sum()) @ values[index]
