"""Attention pair by pair in float64, from queries and keys as they were before any rotation.

It reads a plan's regions and the frequencies of the model's own rotary module, and shares nothing else with the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mesa.plan import Plan


class Seen(NamedTuple):
    """The keys that a query sees: index, distance, and the factor on the query and the key, each (key,)."""

    keys: np.ndarray
    distance: np.ndarray
    factor: np.ndarray


@dataclass(frozen=True)
class Positions:
    """How positions enter a layer: by frequencies (radians a token), with cos and sin scaled, or by slopes (head,)."""

    frequencies: np.ndarray | None = None
    scaled: float = 1.0
    slopes: np.ndarray | None = None


def seen_by(plan: Plan, query: int, window: int | None = None) -> Seen:
    """What the query of a token sees under a plan and a sliding window, itself included in it (None: none)."""
    parts = []
    for region in plan.regions:
        keys = np.arange(0 if window is None else max(0, query + 1 - window), query + 1)
        keys = keys[region.contains(query, keys)]
        factor = np.ones(len(keys))
        for scale, index in ((region.query_scale, query), (region.key_scale, keys)):
            factor *= 1 if scale is None else scale(index)
        parts.append((keys, region.query_position(query) - region.key_position(keys), factor))
    return Seen(*map(np.concatenate, zip(*parts, strict=True)))


def rotated(state: np.ndarray, distance: np.ndarray, positions: Positions) -> np.ndarray:
    """States (pair, dim) rotated by distances (pair,): dim m pairs with dim m + half; dims beyond them stay."""
    assert positions.frequencies is not None
    half = len(positions.frequencies)
    angle = distance[:, None] * positions.frequencies
    cos, sin = np.cos(angle) * positions.scaled, np.sin(angle) * positions.scaled
    one, two = state[:, :half], state[:, half : 2 * half]
    return np.concatenate([one * cos - two * sin, two * cos + one * sin, state[:, 2 * half :]], 1)


def attention_output(
    states: tuple[np.ndarray, np.ndarray, np.ndarray], seen: Seen, scaling: float, at: Positions, head: int
) -> np.ndarray:
    """Output (dim,) of a query head: states are its query (dim,), and keys and values (token, dim), in float64."""
    queries, chosen = np.repeat(states[0][None], len(seen.keys), 0), states[1][seen.keys]
    if at.frequencies is not None:
        queries, chosen = rotated(queries, seen.distance, at), rotated(chosen, seen.distance * 0, at)
    scores = (queries * chosen).sum(1) * scaling * seen.factor
    if at.slopes is not None:
        scores = scores - at.slopes[head] * seen.distance
    weights = np.exp(scores - scores.max())
    return (weights / weights.sum()) @ states[2][seen.keys]
