"""Bounds on medians and quantiles of many windows of the same values, by the least and the largest of short blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

SIZE = 64
"""Positions of a block: smoothed values differ little within one."""


@dataclass(frozen=True)
class Blocks:
    """The least and the largest of `values` (dim, position) in each block of `SIZE` positions: (dim, block)."""

    values: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Blocks:
        """Blocks of all values, read once."""
        starts = np.arange(0, values.shape[1], SIZE)
        return cls(values, *(end.reduceat(values, starts, axis=1) for end in (np.minimum, np.maximum)))

    @cached_property
    def magnitudes(self) -> Blocks:
        """The blocks of the absolute values."""
        low = np.maximum(0, np.maximum(self.low, -self.high))
        return Blocks(self.values, low, np.maximum(self.high, -self.low))

    @cached_property
    def _first(self) -> np.ndarray:
        return self.values[:, ::SIZE].copy()

    def sampled(self, window: slice) -> np.ndarray:
        """One position of each block that begins in `window`: (dim, block)."""
        return self._first[:, -(-window.start // SIZE) : -(-window.stop // SIZE)]

    def quantiles(self, window: slice, *shares: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """Between which two values each dim's quantiles over the positions of `window` lie: (dim,) each.

        Fewer than m SIZE values are below the m-th least of the blocks' least: these belong to the blocks before it.
        """
        last, blocks = window.stop - window.start - 1, slice(window.start // SIZE, -(-window.stop // SIZE))
        low, high = np.sort(self.low[:, blocks], axis=1), np.sort(self.high[:, blocks], axis=1)
        places = [(int(share * last) // SIZE, int((1 - share) * last) // SIZE) for share in shares]
        return [(low[:, below], high[:, -1 - above]) for below, above in places]

    def median_size(self, window: slice) -> np.floating:
        """The median over dims of each dim's median absolute value in `window`, exact: most dims need not be read."""
        low, high = self.magnitudes.quantiles(window, 0.5)[0]
        middle = (len(low) - 1) // 2, len(low) // 2
        least, most = np.sort(low)[middle[0]], np.sort(high)[middle[1]]
        sizes = np.where(high < least, -np.inf, np.inf).astype(self.values.dtype)
        near = (high >= least) & (low <= most)
        sizes[near] = medians(np.abs(self.values[near, window]))
        return np.median(sizes)


def medians(values: np.ndarray) -> np.ndarray:
    """np.median of each row of finite `values` (row, column), by half as many partitions."""
    middle = values.shape[1] // 2
    ordered = np.partition(values, middle, axis=1)
    upper = ordered[:, middle].copy()
    return upper if values.shape[1] % 2 else (ordered[:, :middle].max(axis=1) + upper) / values.dtype.type(2)


def partitioned(values: np.ndarray, *shares: float) -> np.ndarray:
    """Finite `values` (row, column), each row in an order in which `quantile` finds these shares of it."""
    last = values.shape[1] - 1
    places = {min(int(share * last) + more, last) for share in shares for more in (0, 1)}
    return np.partition(values, sorted(places), axis=1)


def quantile(ordered: np.ndarray, share: float) -> np.ndarray:
    """np.quantile, in float64, of each row of what `partitioned` returns for this share."""
    last = ordered.shape[1] - 1
    below, part = divmod(np.float64(share * last), 1)
    low, high = ordered[:, int(below)], ordered[:, min(int(below) + 1, last)]
    step = high - low
    return low + step * part if part < 0.5 else high - step * (1 - part)


def median_sizes(ordered: np.ndarray) -> np.ndarray:
    """np.median of the absolute values of each row of what `partitioned` returns for 0.5.

    That is the size of a row's median where its values have one sign; only the other rows are partitioned again.
    """
    middle, count = ordered.shape[1] // 2, ordered.shape[1]
    upper = ordered[:, middle]
    sizes = np.abs(upper if count % 2 else (ordered[:, middle - 1] + upper) / ordered.dtype.type(2))
    mixed = (ordered.min(axis=1) < 0) & (ordered.max(axis=1) > 0)
    sizes[mixed] = medians(np.abs(ordered[mixed]))
    return sizes
