"""Medians and quantiles of rows of finite values: numpy's to the bit, sooner, since numpy also looks for NaN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def medians(values: np.ndarray) -> np.ndarray:
    """`np.median` of each row."""
    middle = values.shape[1] // 2
    parted = np.partition(values, middle, axis=1)
    if values.shape[1] % 2:
        return parted[:, middle].copy()
    return np.mean([parted[:, :middle].max(axis=1), parted[:, middle]], axis=0)


def quantiles(values: np.ndarray, shares: Sequence[float]) -> list[np.ndarray]:
    """`np.quantile` of each row of two values or more, at rising shares below 1."""
    last, rest, left_out, found = values.shape[1] - 1, values, 0, []
    for share in shares:
        at = int(share * last)
        rest = np.partition(rest, at - left_out, axis=1)[:, at - left_out :]
        below, above, part = rest[:, 0], rest[:, 1:].min(axis=1), np.float64(share * last - at)
        step = above - below
        found.append(below + step * part if part < 0.5 else above - step * (1 - part))
        left_out = at
    return found
