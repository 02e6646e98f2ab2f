"""The share of an excess loss that an intervention recovers, with its interval; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from mesa.errors import Refused
from probe.statistics import Ends, fieller, student

MIN_EXCESS_LOSS = 0.01
"""Nats/token; a smaller one counts as none."""
_DRAWS = 2000


class Share(NamedTuple):
    """A share of the excess loss, with its 95% interval; NaN where there is none."""

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class LossGap:
    """Mean losses of both runs (nats/token), and the 95% interval of their difference."""

    baseline: float
    patched: float
    low: float
    high: float

    @property
    def size(self) -> float:
        """Baseline minus patched, nats/token."""
        return self.baseline - self.patched

    @property
    def significant(self) -> bool:
        """Whether the baseline is significantly worse, by `MIN_EXCESS_LOSS` or more, so that shares are defined."""
        return self.low > 0 and self.size >= MIN_EXCESS_LOSS


class PairedLosses:
    """Losses (item, block) of the baseline and of the patched run, for interventions on the same items.

    Intervals: 95% percentile intervals over resampled items, and over blocks of scored tokens within each item; at
    least as wide as Student's over items (of shares: Fieller's), since resampling few items is too narrow. One item
    alone has its blocks' interval, and none (NaN) where it is one block.
    """

    def __init__(self, baseline: Sequence[Sequence[float]], patched: Sequence[Sequence[float]]) -> None:
        self.baseline, self.patched = np.asarray(baseline, float), np.asarray(patched, float)
        if self.baseline.shape != self.patched.shape or self.baseline.ndim != 2 or not self.baseline.size:
            raise Refused(f"losses of shapes {self.baseline.shape} and {self.patched.shape} are not paired by block")
        self._weights = _weights(*self.baseline.shape)

    @property
    def gap(self) -> LossGap:
        """The excess loss of the baseline."""
        lost = self.baseline - self.patched
        low, high = _widened(self._ends(self._resampled(lost)), student(lost.mean(1)))
        return LossGap(float(self.baseline.mean()), float(self.patched.mean()), low, high)

    def share(self, losses: Sequence[Sequence[float]], *, again: bool = False) -> Share:
        """The share of the excess loss that an intervention recovers or, with `again`, loses again.

        (baseline - losses) / excess, with `again` (losses - patched) / excess: a ratio of means over the same items and
        blocks. An interval that an excess near 0 makes unbounded is NaN, and so is the share where the excess is below
        `MIN_EXCESS_LOSS`.
        """
        array = np.asarray(losses, float)
        moved, lost = array - self.patched if again else self.baseline - array, self.baseline - self.patched
        if lost.mean() < MIN_EXCESS_LOSS:
            return Share(np.nan, np.nan, np.nan)
        above, below = self._resampled(moved), self._resampled(lost)
        value, by_items = float(moved.mean() / lost.mean()), fieller(moved.mean(1), lost.mean(1))
        if (below <= 0).mean() > 0.025 or (len(lost) > 1 and by_items[0] is None):
            return Share(value, np.nan, np.nan)
        return Share(value, *_widened(self._ends(above[below > 0] / below[below > 0]), by_items))

    def _ends(self, resampled: np.ndarray) -> tuple[float, float]:
        """Low and high end of an interval."""
        if self.baseline.size == 1:
            return np.nan, np.nan
        low, high = np.quantile(resampled, [0.025, 0.975])
        return float(low), float(high)

    def _resampled(self, values: np.ndarray) -> np.ndarray:
        return self._weights @ values.ravel()


def _widened(ends: tuple[float, float], least: Ends) -> tuple[float, float]:
    """The smallest interval that contains both, where there is a second."""
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
