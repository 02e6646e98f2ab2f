"""How much of what was lost an intervention restores, with its interval; plain numbers, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from probe.evaluation.intervals import Ends, fieller, student

LEAST = 0.01
"""Nats/token; smaller differences, such as rounding makes, are taken for none."""
_DRAWS = 2000


@dataclass(frozen=True)
class Share:
    """A share of the gap between broken and mended, with the ends of its 95% interval; NaN where there is none."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Gap:
    """What is lost on some items: mean losses (nats/token) and the 95% interval of their difference."""

    broken: float
    mended: float
    low: float
    high: float

    @property
    def judged(self) -> bool:
        """Whether the broken run is clearly worse, by `LEAST` or more, so that shares of it mean something."""
        return self.low > 0 and self.broken - self.mended >= LEAST


class Paired:
    """Losses (item, block) of the broken and the mended run, against which interventions on the same items are held.

    Intervals: 95% percentile intervals over resampled items, and blocks of scored tokens within each item, as wide as
    Student's over items, or for shares Fieller's, at least: those of few resampled items are too narrow. One item alone
    has its blocks', and none (NaN) where it is one block.
    """

    def __init__(self, broken: Sequence[Sequence[float]], mended: Sequence[Sequence[float]]) -> None:
        self.broken, self.mended = np.asarray(broken, float), np.asarray(mended, float)
        if self.broken.shape != self.mended.shape or self.broken.ndim != 2 or not self.broken.size:
            raise ValueError(f"losses of shapes {self.broken.shape} and {self.mended.shape} are not paired by block")
        self._weights = _weights(*self.broken.shape)

    @property
    def gap(self) -> Gap:
        """What is lost."""
        lost = self.broken - self.mended
        low, high = _widened(self._ends(self._drawn(lost)), student(lost.mean(1)))
        return Gap(float(self.broken.mean()), float(self.mended.mean()), low, high)

    def share(self, losses: Sequence[Sequence[float]], *, restores: bool = True) -> Share:
        """The share of the gap that an intervention's `losses` restore, or, without `restores`, lose again.

        restores: (broken - losses) / (broken - mended), else (losses - mended) / (broken - mended); of means, each
        draw's items and blocks the same above and below. An interval that a gap near 0 makes boundless is NaN, and so
        is the share itself where the gap of these items is below `LEAST`.
        """
        array = np.asarray(losses, float)
        moved, lost = self.broken - array if restores else array - self.mended, self.broken - self.mended
        if lost.mean() < LEAST:
            return Share(np.nan, np.nan, np.nan)
        above, below = self._drawn(moved), self._drawn(lost)
        value, by_items = float(moved.mean() / lost.mean()), fieller(moved.mean(1), lost.mean(1))
        if (below <= 0).mean() > 0.025 or (len(lost) > 1 and by_items[0] is None):
            return Share(value, np.nan, np.nan)
        return Share(value, *_widened(self._ends(above[below > 0] / below[below > 0]), by_items))

    def _ends(self, drawn: np.ndarray) -> tuple[float, float]:
        """Low and high end of an interval."""
        if self.broken.size == 1:
            return np.nan, np.nan
        low, high = np.quantile(drawn, [0.025, 0.975])
        return float(low), float(high)

    def _drawn(self, values: np.ndarray) -> np.ndarray:
        return self._weights @ values.ravel()


def _widened(ends: tuple[float, float], least: Ends) -> tuple[float, float]:
    """The interval that holds both, if there is a second."""
    return ends if least[0] is None else (min(ends[0], least[0]), max(ends[1], least[1]))


@cache
def _weights(items: int, blocks: int) -> np.ndarray:
    """Weights (draw, item * block) of resampled items and resampled blocks within them; one block stays."""
    rng = np.random.default_rng(0)
    weights = np.zeros((_DRAWS, items, blocks))
    chosen = rng.integers(0, items, (_DRAWS, items))
    for draw, drawn in enumerate(chosen):
        for item in drawn:
            weights[draw, item] += np.bincount(rng.integers(0, blocks, blocks), minlength=blocks)
    return weights.reshape(_DRAWS, -1) / (items * blocks)
