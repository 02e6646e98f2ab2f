"""What a key at a distance counts: the candidates of rule.md, as weights by distance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.methods import Method
from mesa.plan import query_scales, relative_positions
from probe.commands.predict.formula import QUERIES, scored_queries

Weights = Callable[[float], np.ndarray]
"""Weights (distance,) of a rule's parameter; 0 for distances below M."""


@dataclass(frozen=True)
class Rotary:
    """What decides phases: radians a token of each pair, and M in tokens."""

    frequencies: np.ndarray
    trained_length: int

    @classmethod
    def of(cls, base: float, dims: int, trained_length: int) -> Rotary:
        """Plain rotary embeddings of a head of `dims` dims."""
        return cls(base ** (-np.arange(0, dims, 2) / dims), trained_length)

    def unmet(self, distances: np.ndarray) -> np.ndarray:
        """By distance: the mean over pairs of the angle (in half turns) to the closest phase met inside M."""
        arc = self.frequencies * (self.trained_length - 1)
        phase = np.outer(distances, self.frequencies) % (2 * np.pi)
        beyond = np.minimum(phase - arc, 2 * np.pi - phase)  # from the arc's end, and round to its beginning
        return (np.where(arc >= 2 * np.pi, 0.0, np.maximum(beyond, 0.0)) / np.pi).mean(1)

    def share(self, distances: np.ndarray) -> np.ndarray:
        """By distance: the share of pairs whose phase was not met inside M."""
        arc = self.frequencies * (self.trained_length - 1)
        phase = np.outer(distances, self.frequencies) % (2 * np.pi)
        return ((phase > arc * (1 + 1e-9)) & (arc < 2 * np.pi)).mean(1)


def beyond(trained_length: int, longest: int) -> np.ndarray:
    """Distances up to `longest` less M - 1; 0 inside M."""
    return np.maximum(np.arange(longest + 1.0) - trained_length + 1, 0)


def candidates(rotary: Rotary, longest: int) -> dict[str, tuple[Weights, Any]]:
    """Of each rule that sums over keys: its weights by a parameter, and the parameters that are tried."""
    far, distances = beyond(rotary.trained_length, longest), np.arange(longest + 1.0)
    relative = far / rotary.trained_length
    angle, share = (np.where(far > 0, of(distances), 0.0) for of in (rotary.unmet, rotary.share))
    return {
        "power": (
            lambda p: np.where(far > 0, (far / longest) ** p, 0.0),
            [*np.arange(0, 2.05, 0.1), 2.5, 3, 4, 6, 8, 12, 20, 40],
        ),
        "exponential": (
            lambda a: np.where(far > 0, np.exp(a * (relative - relative.max())), 0.0),
            [0, *np.geomspace(0.1, 200, 34)],
        ),
        "unmet share": (lambda s: np.where(share > 0, share**s, 0.0), [1.0]),
        "unmet angle": (lambda s: np.where(angle > 0, angle**s, 0.0), [1.0]),
        "unmet share, power": (
            lambda s: np.where(share > 0, (share / share.max()) ** s, 0.0),
            np.geomspace(0.25, 64, 25),
        ),
        "unmet angle, power": (
            lambda s: np.where(angle > 0, (angle / angle.max()) ** s, 0.0),
            np.geomspace(0.25, 64, 25),
        ),
        "unmet angle, exponential": (
            lambda a: np.where(angle > 0, np.expm1(a * angle), 0.0),
            np.geomspace(0.5, 2000, 34),
        ),
    }


@dataclass(frozen=True)
class Seen:
    """The distances that some queries give to their keys, (query, key), -1 where masked; and the queries' factors."""

    distances: np.ndarray
    scales: np.ndarray

    @classmethod
    def of(cls, method: Method, length: int, tokens: int) -> Seen:
        """Of the queries that predict the last quarter of `tokens` tokens of a prompt of `length` tokens."""
        queries, plan = scored_queries(length, tokens, QUERIES), method.plan(length)
        return cls(relative_positions(plan, queries, np.arange(length)), query_scales(plan)[queries])

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """Z (query,), each key weighted by its distance; between integers linearly."""
        place = np.clip(self.distances, 0, len(weights) - 1)
        low = np.floor(place).astype(int)
        part = place - low
        values = (1 - part) * weights[low] + part * weights[np.minimum(low + 1, len(weights) - 1)]
        return values.sum(1)

    def largest(self) -> np.ndarray:
        """The largest distance (query,)."""
        return self.distances.max(1)
