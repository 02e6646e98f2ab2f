"""Much data brought down to what is drawn, without widening or copying it: the farthest value, the upper quantile."""

from __future__ import annotations

import numpy as np

_SAMPLED = 100_000  # values


def farthest(values: np.ndarray, starts: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """`values` (dim, position), each block that begins at `starts` (dims, positions) as its value farthest from 0."""
    dims, positions = starts
    if len(dims) == len(values) and len(positions) == values.shape[1]:
        return values
    wide = values.astype(np.float32) if values.dtype == np.float16 else values  # numpy compares halves one by one
    high, low = np.empty((len(wide), len(positions)), wide.dtype), np.empty((len(wide), len(positions)), wide.dtype)
    for column, (start, stop) in enumerate(zip(positions, [*positions[1:], wide.shape[1]], strict=True)):
        block = wide[:, start:stop]
        block.max(axis=1, out=high[:, column])
        block.min(axis=1, out=low[:, column])
    high, low = np.maximum.reduceat(high, dims, axis=0), np.minimum.reduceat(low, dims, axis=0)
    return np.where(high >= -low, high, low).astype(values.dtype)


def upper_quantile(values: np.ndarray, quantile: float) -> float:
    """np.quantile of all `values`; for a high `quantile` only the values above a sampled, lower one are sorted."""
    flat = values.ravel()
    place = (len(flat) - 1) * quantile
    rank = int(place)
    guess = np.quantile(flat[:: -(-len(flat) // _SAMPLED)], max(0.0, quantile - 0.01))
    upper = flat[flat >= guess]
    if len(flat) - len(upper) > rank:
        upper = flat
    first = rank - (len(flat) - len(upper))
    last = min(first + 1, len(upper) - 1)
    low, high = (float(each) for each in np.partition(upper, (first, last))[[first, last]])
    return low + (place - rank) * (high - low)
