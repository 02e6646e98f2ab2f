"""95% intervals of scores, and of differences to a reference on the same prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from probe.eval_tasks.base import Metric
from probe.statistics import Ends, bonett_price, student, wilson


def interval(values: Sequence[float], metric: Metric) -> Ends:
    """95% interval of the mean; (None, None) for fewer than two values.

    Wilson's for 0 and 1, and where all of several limited scores are the same; else Student's, within the limits.
    """
    most = _counted_to(values, metric)
    if most is None:
        return _within(student(values), 0, metric.most)
    low, high = wilson(sum(values) / most, len(values))
    return low * most, high * most


def paired(values: Sequence[float], others: Sequence[float], metric: Metric) -> Ends:
    """95% interval of the mean difference `values` - `others`, prompt by prompt the same; as `interval`.

    Bonett and Price's in place of Wilson's.
    """
    differences = np.subtract(values, others)
    most = _counted_to(differences, metric)
    if most is None:
        return _within(student(differences.tolist()), -metric.most, metric.most)
    gained, lost = (float(np.maximum(0, signed).sum()) / most for signed in (differences, -differences))
    low, high = bonett_price(gained, lost, len(differences))
    return low * most, high * most


def _within(ends: Ends, least: float, most: float) -> Ends:
    """The part of an interval that the mean of limited scores can lie in."""
    low, high = ends
    if low is None or high is None or math.isinf(most):
        return ends
    return float(np.maximum(least, low)), float(np.minimum(most, high))  # NaN stays NaN


def _counted_to(values: Sequence[float] | np.ndarray, metric: Metric) -> float | None:
    """The highest score, where scores are as good as counts; None: Student's it is.

    They are where each is 0 or 1, and where all of several limited ones are the same: Student's has no width then.
    """
    if len(values) < 2:
        return None
    if metric.binary:
        return 1.0
    return metric.most if metric.most < math.inf and min(values) == max(values) else None
