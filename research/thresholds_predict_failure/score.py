"""How well onsets agree with measured failure lengths: rank correlation and threshold calls, with intervals.

Seeds of one method config are no independent witnesses, so every interval resamples configs, each with all its seeds.
A length that is none up to L stands as L + 1; NaN is no call, or a failure that cannot be judged since the model is at
chance inside its window, and leaves its pair out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from research.correlation import correlations

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number and its bootstrap interval; NaN where it is undefined."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """As in tables."""
        return "-" if np.isnan(self.value) else f"{self.value:z.2f} [{self.low:z.2f}, {self.high:z.2f}]"


@dataclass(frozen=True)
class Score:
    """Agreement of onsets with measured failure lengths, over the pairs that were called.

    called: share of the pairs that are judged. correlation: Spearman's. right: by threshold (tokens), the share of
    pairs for which 'fails by that length' is the same by onset and measured; yes: what always-yes gets right, gain:
    what `right` has over the better of always-yes and always-no (found anew in every resample).
    """

    called: float
    correlation: Estimate
    right: dict[int, Estimate]
    yes: dict[int, float]
    gain: dict[int, Estimate]


@lru_cache(maxsize=8)
def resamples(configs: int, count: int = 2000, seed: int = 0) -> np.ndarray:
    """How often each config is drawn, (1 + count, configs), not to be written to; the first row is the sample itself.

    Raises ValueError for fewer than 3 configs, of which no rank correlation can be judged.
    """
    if configs < 3:
        raise ValueError(f"{configs} method configs are too few to correlate; take at least 3")
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(configs, np.full(configs, 1 / configs), size=count)
    whole = np.concatenate([np.ones((1, configs)), drawn])
    whole.flags.writeable = False
    return whole


def score(
    onset: np.ndarray, measured: np.ndarray, thresholds: tuple[int, ...], drawn: np.ndarray | None = None
) -> Score:
    """The agreement of `onset` with `measured`, both (config, seed), in tokens; `drawn` as from `resamples`.

    Raises ValueError where shapes differ.
    """
    x, y, weight = _pairs(onset, measured, drawn)
    right, yes, gain = {}, {}, {}
    for threshold in thresholds:
        fails = y <= threshold
        hit, always = _mean(weight, (x <= threshold) == fails), _mean(weight, fails)
        right[threshold] = _estimate(hit)
        yes[threshold] = float(always[0])
        gain[threshold] = _estimate(hit - np.maximum(always, 1 - always))
    called = x.size / max(1, np.count_nonzero(~np.isnan(measured)))
    return Score(called, _estimate(correlations(x, y, weight)), right, yes, gain)


def advantage(
    onset: np.ndarray, rival: np.ndarray, measured: np.ndarray, drawn: np.ndarray | None = None
) -> tuple[Estimate, Estimate]:
    """The rival's rank correlation, and by how much that of `onset` is higher, on pairs both call."""
    both = np.where(np.isnan(rival), np.nan, onset)
    x, y, weight = _pairs(both, measured, drawn)
    other = correlations(rival[_called(both, measured)], y, weight)
    return _estimate(other), _estimate(correlations(x, y, weight) - other)


def share(onset: np.ndarray, measured: np.ndarray, holds: np.ndarray) -> Estimate:
    """The share of the called pairs for which it `holds` (config, seed)."""
    _, _, weight = _pairs(onset, measured, None)
    return _estimate(_mean(weight, holds[_called(onset, measured)]))


def _pairs(
    onset: np.ndarray, measured: np.ndarray, drawn: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The called pairs (onset, measured), and how often each is in every resample (row, pair)."""
    if onset.shape != measured.shape or onset.ndim != 2:
        raise ValueError(f"onset {onset.shape} and measured {measured.shape} are not both (config, seed)")
    drawn = resamples(len(onset)) if drawn is None else drawn
    called = _called(onset, measured)
    config = np.nonzero(called)[0]
    return onset[called], measured[called], drawn[:, config]


def _called(onset: np.ndarray, measured: np.ndarray) -> np.ndarray:
    return ~np.isnan(onset) & ~np.isnan(measured)


def _mean(weight: np.ndarray, holds: np.ndarray) -> np.ndarray:
    """Share of the weight for which it holds, by row; NaN for a row without pairs."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return (weight * holds).sum(1) / weight.sum(1)


def _estimate(values: np.ndarray) -> Estimate:
    """The first value, and the quantiles of the others; resamples in which it is undefined are left out."""
    others = values[1:][np.isfinite(values[1:])]
    if np.isnan(values[0]) or not others.size:
        return Estimate(float(values[0]), np.nan, np.nan)
    low, high = np.quantile(others, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(values[0]), float(low), float(high))
