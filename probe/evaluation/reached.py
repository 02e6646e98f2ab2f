"""Up to which length scores from 0 to 1 keep to what they must be: by their means, and by 95% intervals of these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from probe.evaluation.intervals import Told, combined, interval, student
from probe.tasks.base import Metric

Scores = Sequence[np.ndarray]
"""A task each, prompt by prompt: the prompts that all methods and lengths of the task share."""
NOWHERE: Mapping[str, Any] = {"length": None, "low": None, "high": None, "dips": []}
_EXACT = 1e-9


def mean(scores: Scores) -> Told:
    """The mean over tasks and prompts: by Wilson's interval where all scores are 0 or 1, else by Student's."""
    return _over_tasks(map(_one, scores))


def above(scores: Scores, base: Scores, share: float) -> Told:
    """The mean of scores less that share of the base's, prompt by prompt the same."""
    return _over_tasks(_difference(own, other, share) for own, other in zip(scores, base, strict=True))


def less(told: Told, number: float) -> Told:
    """The same, less a number."""
    value, low, high = told
    if low is None or high is None:
        return value - number, None, None
    return value - number, low - number, high - number


def reached(over: Mapping[int, Told], beyond: Mapping[int, Told]) -> dict[str, Any]:
    """The longest length at which neither falls short, by its mean, surely (low) and perhaps (high); shorter that do.

    over: by length, scores less what they must be. beyond: the same scores less chance, which must be above 0.
    """
    held, surely, perhaps = (
        [length for length, told in over.items() if _holds(told[end], beyond[length][end])] for end in range(3)
    )
    length, low, high = (max(each, default=None) for each in (held, surely, perhaps))
    return {
        "length": length,
        "low": low,
        "high": high,
        "dips": [short for short in over if short < (length or 0) and short not in held],
    }


def _holds(over: float | None, beyond: float | None) -> bool:
    return over is not None and beyond is not None and over >= -_EXACT and beyond > 0


def _over_tasks(each: Iterable[Told]) -> Told:
    found = list(each)
    return combined(found, [1 / len(found)] * len(found))


def _one(scores: np.ndarray) -> Told:
    metric = Metric("score", "share", binary=_are_counts(scores), most=1)
    low, high = interval(scores.tolist(), metric)
    return fmean(scores.tolist()), low, high


def _difference(scores: np.ndarray, base: np.ndarray, share: float) -> Told:
    """Of one task: by Student's interval, and from those of both where they are counts or all differences the same."""
    if scores is base:
        return combined([_one(base)], [1 - share])
    differences = (scores - share * base).tolist()
    if max(differences) - min(differences) > _EXACT and not (_are_counts(scores) and _are_counts(base)):
        low, high = student(differences)
        return fmean(differences), low, high
    return combined([_one(scores), _one(base)], [1, -share], _correlation(scores, base))


def _are_counts(scores: np.ndarray) -> bool:
    return bool(np.isin(scores, (0, 1)).all())


def _correlation(scores: np.ndarray, base: np.ndarray) -> float:
    """Of scores of 0 and 1, corrected downwards where above 0 (Newcombe 1998, method 10); 0 where one is constant."""
    count, (found, expected) = len(scores), (scores.sum(), base.sum())
    spread = math.sqrt(found * (count - found) * expected * (count - expected))
    shared = count * (scores @ base) - found * expected
    return float(min(shared, max(0.0, shared - count / 2)) / spread) if spread and shared else 0.0
