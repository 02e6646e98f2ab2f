"""Attention pair by pair in float64, from queries and keys as they were before any rotation.

It reads a plan's regions and the frequencies of the model's own rotary module, and shares nothing else with the engine.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mesa.plan import Plan


class Seen(NamedTuple):
    """The keys that a query sees: index, the query's and the key's position, the factor on their score, each (key,)."""

    keys: np.ndarray
    query_position: np.ndarray
    key_position: np.ndarray
    factor: np.ndarray


@dataclass(frozen=True)
class Positions:
    """How positions enter a layer: by frequencies (radians a token), by slopes (head,), or not at all.

    The pairs that turn begin at a head's dim `begin`, as two halves or interleaved, maybe backwards. weights
    (2, dim): the factors of norms on queries and on keys that follow the rotation.
    """

    frequencies: np.ndarray | None = None
    begin: int = 0
    interleaved: bool = False
    backwards: bool = False
    slopes: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def none(self) -> bool:
        """Whether no position enters."""
        return self.frequencies is None and self.slopes is None


def seen_by(plan: Plan, query: int, mask: np.ndarray | None = None) -> Seen:
    """What the query of a token sees under a plan and the model's own mask (key,) (None: all of the past)."""
    parts = []
    for region in plan.regions:
        keys = np.arange(query + 1)
        keys = keys if mask is None else keys[mask[: query + 1]]
        keys = keys[region.contains(query, keys)]
        factor = np.ones(len(keys))
        for scale, index in ((region.query_scale, query), (region.key_scale, keys)):
            factor *= 1 if scale is None else scale(index)
        places = np.full(len(keys), float(region.query_position(query))), region.key_position(keys)
        parts.append((keys, *places, factor))
    return Seen(*map(np.concatenate, zip(*parts, strict=True)))


def rotated(state: np.ndarray, by: np.ndarray, positions: Positions, weight: np.ndarray | None = None) -> np.ndarray:
    """States (pair, dim) rotated by positions (pair,); dims that are in no rotary pair stay.

    weight (dim,): what they were multiplied by after the rotation.
    """
    assert positions.frequencies is not None
    half, begin = len(positions.frequencies), positions.begin
    angle = by[:, None] * positions.frequencies * (-1 if positions.backwards else 1)
    number = np.arange(half)
    first, second = (2 * number, 2 * number + 1) if positions.interleaved else (number, number + half)
    turned = state / (1 if weight is None else weight)
    one, two = turned[:, begin + first], turned[:, begin + second]
    turned[:, begin + first] = one * np.cos(angle) - two * np.sin(angle)
    turned[:, begin + second] = two * np.cos(angle) + one * np.sin(angle)
    return turned * (1 if weight is None else weight)


def attention_output(
    states: tuple[np.ndarray, np.ndarray, np.ndarray],
    seen: Seen,
    scaling: float,
    at: Positions,
    head: int,
    softcap: float | None = None,
    sink: float | None = None,
) -> np.ndarray:
    """Output (dim,) of a query head: states are its query (dim,), and keys and values (token, dim), in float64.

    softcap: c of c tanh(score / c). sink: a further score, whose value is 0.
    """
    queries, chosen = np.repeat(states[0][None], len(seen.keys), 0), states[1][seen.keys]
    if at.frequencies is not None:
        on_query, on_key = (None, None) if at.weights is None else at.weights
        queries = rotated(queries, seen.query_position, at, on_query)
        chosen = rotated(chosen, seen.key_position, at, on_key)
    scores = (queries * chosen).sum(1) * scaling * seen.factor
    if at.slopes is not None:
        scores = scores - at.slopes[head] * (seen.query_position - seen.key_position)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    most = max(scores.max(), -np.inf if sink is None else sink)
    weights = np.exp(scores - most)
    return (weights / (weights.sum() + (0 if sink is None else np.exp(sink - most)))) @ states[2][seen.keys]
