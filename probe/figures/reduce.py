"""Much data brought down to what is drawn, without widening or copying it: the farthest value, the upper quantile."""

from __future__ import annotations

import numpy as np

_SAMPLED = 100_000  # values


def farthest(values: np.ndarray, starts: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """`values` (dim, position), each block that begins at `starts` (dims, positions) as its value farthest from 0."""
    dims, positions = starts
    if len(dims) == len(values) and len(positions) == values.shape[1]:
        return values
    wide = values.T.astype(np.float32) if values.dtype == np.float16 else values.T  # halves are slow to compare
    high, low = (np.empty((len(positions), wide.shape[1]), wide.dtype) for _ in range(2))
    for row, (start, stop) in enumerate(zip(positions, [*positions[1:], len(wide)], strict=True)):
        wide[start:stop].max(axis=0, out=high[row])
        wide[start:stop].min(axis=0, out=low[row])
    high, low = np.maximum.reduceat(high, dims, axis=1), np.minimum.reduceat(low, dims, axis=1)
    return np.where(high >= -low, high, low).T.astype(values.dtype)


def upper_quantile(values: np.ndarray, quantile: float) -> np.floating:
    """np.quantile of all `values`, in their precision or float32; for a high `quantile` few of them are sorted."""
    flat, kind = values.ravel(), np.result_type(values, np.float32).type
    place = (len(flat) - 1) * quantile
    rank = int(place)
    guess = np.quantile(flat[:: -(-len(flat) // _SAMPLED)].astype(kind), max(0.0, quantile - 0.01))
    upper = flat[flat >= guess]
    if len(flat) - len(upper) > rank:
        upper = flat
    first = rank - (len(flat) - len(upper))
    last = min(first + 1, len(upper) - 1)
    low, high = np.partition(upper, (first, last))[[first, last]].astype(kind)
    share = place - rank
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)
