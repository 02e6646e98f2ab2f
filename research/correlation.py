"""Rank correlations with their 95% intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEAST_RANKED = 5
"""Pairs below which a rank correlation has no interval."""


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Spearman's correlation and its 95% interval over resampled pairs; None where one of both does not vary.

    Fewer than `LEAST_RANKED` pairs have no interval: chance makes any order of them.
    """
    count = len(x)
    weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=1000)
    value, *resampled = correlations(np.array(x), np.array(y), np.concatenate([np.ones((1, count)), weights]))
    finite = [sample for sample in resampled if np.isfinite(sample)]
    if np.isnan(value) or not finite:
        return None, None, None
    if count < LEAST_RANKED:
        return float(value), None, None
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(value), float(low), float(high)


def correlations(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Spearman's correlation of the pairs (x, y) for every row of `weight` (row, pair); NaN where one is constant.

    A weight counts how often a pair is in the sample: exact, since a tied group's rank follows from counts alone.
    """
    if not x.size:
        return np.full(len(weight), np.nan)
    a, b = (_centred_ranks(values, weight) for values in (x, y))
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt((weight * a**2).sum(1) * (weight * b**2).sum(1))
        return np.where(spread > 0, (weight * a * b).sum(1) / spread, np.nan)


def _centred_ranks(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Mid-ranks less their mean, (row, pair)."""
    before = (values[:, None] < values) + (values[:, None] == values) / 2
    ranks = weight @ before + 0.5
    return ranks - (weight.sum(1, keepdims=True) + 1) / 2
