"""Excess loss beyond the trained window, from the distances that a plan gives; docs/law.md. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from mesa.methods import Method
from mesa.plan import Plan, query_scales, relative_positions
from probe.commands.predict.result import FittedLaw
from probe.thresholds.failure import lasting
from probe.thresholds.stated_window import NATS_ABOVE

POWERS = np.array([*np.arange(0, 2.05, 0.1), 2.5, 3, 4, 6, 8, 12])
"""The powers p that distances beyond M are tried with; 0 counts keys, a large one follows the largest distance."""
_GRID = 40  # lengths between M and the longest
_BLOCK = 2_000_000  # query-key pairs at a time


@dataclass(frozen=True)
class FarKeys:
    """What some queries of a prompt see beyond M.

    sums: (power, query), the sum over their keys at distances d >= M of (d - M + 1)^p, for each of `POWERS`.
    scales: (query,), the factor on the query.
    """

    sums: np.ndarray
    scales: np.ndarray
    groups: tuple[int, ...] = (0,)
    """Where each group of queries begins."""

    @classmethod
    def grouped(cls, parts: Sequence[FarKeys]) -> FarKeys:
        """All of them, a group each."""
        starts = np.cumsum([0, *(len(part.scales) for part in parts[:-1])])
        sums, scales = (
            np.concatenate(arrays, axis=-1) for arrays in zip(*((p.sums, p.scales) for p in parts), strict=True)
        )
        return cls(sums, scales, tuple(starts.tolist()))

    def weighted_sums(self, power: float, scale_power: float) -> np.ndarray:
        """Z (query,): the sums at `power`, between `POWERS` in logarithms, times scale^-`scale_power`."""
        place = float(np.interp(power, POWERS, np.arange(len(POWERS))))
        low, share = int(place), place - int(place)
        high = min(low + 1, len(POWERS) - 1)
        with np.errstate(divide="ignore"):  # the log of no far key is -inf, which gives 0 again
            logs = np.log(self.sums[[low, high]])
        sums = np.exp((1 - share) * logs[0] + share * logs[1]) if share else self.sums[low]
        return sums * self.scales**-scale_power

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Of each group; values: (query,)."""
        return np.add.reduceat(values, self.groups) / np.diff([*self.groups, len(values)])


def far_keys(plan: Plan, queries: Sequence[int] | np.ndarray, trained_length: int) -> FarKeys:
    """The far keys of these queries under a plan; trained_length: M, in tokens."""
    queries = np.asarray(queries)
    step = max(1, _BLOCK // plan.length)
    sums = np.zeros((len(POWERS), len(queries)))
    for begin in range(0, len(queries), step):
        part = queries[begin : begin + step]
        distances = relative_positions(plan, part, np.arange(part.max() + 1))
        rows, columns = np.nonzero(distances >= trained_length)
        logs = np.log(distances[rows, columns] - trained_length + 1)
        values = np.ones(len(rows))
        for number, step_up in enumerate(np.diff(POWERS, prepend=0.0)):
            values = values * np.exp(step_up * logs) if step_up else values
            sums[number, begin : begin + step] = np.bincount(rows, values, minlength=len(part))
    return FarKeys(sums, query_scales(plan)[queries])


@dataclass(frozen=True)
class Law:
    """The excess loss at a query, by the far keys that it sees.

    trained_length: M, in tokens. excess: (position,), Origin's loss (nats/token) less that of a method that holds, at
    positions M - 1, M, ..., not falling. power: p. scale_power: q, what a factor on the query takes away.
    """

    trained_length: int
    excess: np.ndarray
    power: float
    scale_power: float = 0.0

    def at(self, far: FarKeys, factor: float = 1.0) -> np.ndarray:
        """The mean excess loss (nats/token) of each group of queries, whose Z is taken times `factor`.

        A query's is that of Origin where Z is the same, and at most the curve's last.
        """
        sums = far.weighted_sums(self.power, self.scale_power) * factor
        return far.mean(np.interp(sums, self._origin(), self.excess))

    def is_beyond(self, far: FarKeys) -> bool:
        """Whether a query has a larger Z than Origin at the longest length, of which the curve says nothing."""
        return bool((far.weighted_sums(self.power, self.scale_power) > 1.01 * self._origin()[-1]).any())

    def _origin(self) -> np.ndarray:
        """Z of Origin at the curve's positions."""
        return np.concatenate([[0], np.cumsum(np.arange(1.0, len(self.excess)) ** self.power)])


def excess_curve(differences: np.ndarray, trained_length: int) -> np.ndarray:
    """The non-decreasing curve (positions from M - 1 on) closest to loss differences (position,) by squares; from 0."""
    return np.concatenate([[0.0], np.maximum(isotonic_regression(differences[trained_length:]).x, 0.0)])


def stored_law(law: FittedLaw, trained_length: int) -> Law:
    """The law that a prediction.json holds."""
    position = law.excess.position
    curve = np.interp(np.arange(trained_length - 1, position[-1] + 1), position, law.excess.value)
    return Law(trained_length, curve, law.power.value, law.scale_power.value if law.scale_power else 0.0)


def scored_queries(length: int, trained_length: int, count: int) -> np.ndarray:
    """Queries spread over those that predict the last M/4 tokens of a prompt of `length` tokens."""
    last = min(length, trained_length) // 4
    return np.unique(np.linspace(length - last - 1, length - 2, count).round().astype(int))


def far_keys_by_length(method: Method, lengths: Sequence[int], count: int) -> FarKeys:
    """The far keys of `count` scored queries of a prompt of each length, a group each."""
    trained = method.trained_length
    return FarKeys.grouped(
        [far_keys(method.plan(length), scored_queries(length, trained, count), trained) for length in lengths]
    )


def failure_length(lengths: Sequence[int], excess: np.ndarray) -> int | None:
    """The first length from which on the excess is `NATS_ABOVE` or more at every one; None: not at the longest."""
    return lasting(~(np.asarray(excess) < NATS_ABOVE), np.asarray(lengths))


def length_grid(lengths: Sequence[int], trained_length: int) -> list[int]:
    """These lengths, M, and others between it and the longest, spaced by equal factors."""
    between = np.geomspace(trained_length, max(lengths), _GRID).round().astype(int).tolist()
    return sorted({*lengths, *between})
