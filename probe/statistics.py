"""95% intervals of means, shares, ratios and differences of shares, of one look at the data or of several."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

Ends = tuple[float, float] | tuple[None, None]
"""Low and high; None where there is no interval."""

_Z = 1.959964  # of 95%


def wilson(hits: float, count: int, z: float = _Z) -> tuple[float, float]:
    """Wilson's interval of a share, of 95% unless `z`, the normal quantile, says else.

    >>> [round(end, 3) for end in wilson(10, 10)]
    [0.722, 1.0]
    """
    share, z2 = hits / count, z**2 / count
    middle = (share + z2 / 2) / (1 + z2)
    half = z / (1 + z2) * math.sqrt(share * (1 - share) / count + z2 / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def tally(hits: float, count: int, things: str = "", z: float = _Z) -> str:
    """How many of how many, with the share's interval as of `wilson`, such as '9 of 10 [60%, 98%]'; of 0 without."""
    counted = f"{hits:.0f} of {count}{things and f' {things}'}"
    if not count:
        return counted
    low, high = wilson(hits, count, z)
    return f"{counted} [{low:.0%}, {high:.0%}]"


def student(values: Sequence[float], confidence: float = 0.95) -> Ends:
    """Student's interval of the mean, of 95% unless `confidence` says else; (None, None) for fewer than two values.

    >>> [round(end, 2) for end in student([1, 2, 3])]
    [-0.48, 4.48]
    """
    array = np.asarray(values, float)
    if len(array) < 2:
        return None, None
    half = float(half_width(array, confidence))
    return float(array.mean()) - half, float(array.mean()) + half


def half_width(values: np.ndarray, confidence: float = 0.95) -> np.ndarray:
    """Half the width of Student's interval of the mean over the first axis, of two values or more."""
    return stdtrit(len(values) - 1, (1 + confidence) / 2) * values.std(0, ddof=1) / math.sqrt(len(values))


def fieller(above: Sequence[float], below: Sequence[float]) -> Ends:
    """Fieller's 95% interval of mean(above) / mean(below), paired: every r where Student's of above - r below holds 0.

    (None, None) for fewer than two pairs, and where it is boundless: where Student's interval of mean(below) holds 0.

    >>> [round(float(end), 2) for end in fieller([2, 3, 3], [4, 5, 6])]
    [0.38, 0.71]
    """
    over, under = np.asarray(above, float), np.asarray(below, float)
    if len(over) < 2:
        return None, None
    means = np.outer((over.mean(), under.mean()), (over.mean(), under.mean()))
    (over2, both), (_, under2) = means - stdtrit(len(over) - 1, 0.975) ** 2 / len(over) * np.cov(over, under)
    if under2 <= 0:
        return None, None
    half = math.sqrt(max(0.0, both**2 - over2 * under2))
    return (both - half) / under2, (both + half) / under2


def bonett_price(gained: float, lost: float, count: int, z: float = _Z) -> tuple[float, float]:
    """95% interval of the difference of two shares of the same `count` prompts (Bonett and Price 2012).

    gained, lost: prompts that only the one finds, and only the other. One prompt is added to each of the two. Covers at
    least 90% whatever the shares, from two prompts on.

    >>> [round(end, 3) for end in bonett_price(5, 0, 10)]
    [0.055, 0.779]
    """
    count, difference = count + 2, gained - lost
    half = z * math.sqrt(gained + lost + 2 - difference**2 / count) / count
    return max(-1.0, difference / count - half), min(1.0, difference / count + half)


def spearman(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Spearman's rank correlation, its 95% interval by Fieller et al. (1957); NaN where one is constant.

    The interval of fewer than four pairs is NaN.

    >>> [round(value, 2) for value in spearman([1, 2, 3, 4], [1, 2, 4, 3])], spearman([1, 2, 3, 4], [5, 5, 5, 5])
    ([0.8, -0.73, 1.0], (nan, nan, nan))
    >>> spearman([1, 2, 3], [1, 3, 2])
    (0.5, nan, nan)
    """
    from scipy.stats import spearmanr

    if min(len({*x}), len({*y})) < 2:
        return math.nan, math.nan, math.nan
    value = float(spearmanr(x, y)[0])  # pyright: ignore[reportArgumentType]
    if len(x) < 4:
        return value, math.nan, math.nan
    middle, half = math.atanh(max(-1 + 1e-9, min(value, 1 - 1e-9))), _Z * math.sqrt(1.06 / (len(x) - 3))
    return value, math.tanh(middle - half), math.tanh(middle + half)


def shown(value: float, low: float | None, high: float | None, form: str = "z.3g") -> str:
    """A number with its interval, such as '2.52 [2.31, 2.73]', or alone where it has none."""
    alone = f"{value:{form}}"
    return alone if low is None or high is None or math.isnan(low + high) else f"{alone} [{low:{form}}, {high:{form}}]"


_SHARED = 0.04  # among the looks, of means; 1% is left for losses that are not normal (research/sequential)
_FIRST_LOOK = 3  # values: of two, Student's interval at a third of 5% is 38 standard errors wide


def looks_of(samples: int) -> tuple[int, ...]:
    """Numbers of prompts at which a run that measures until its intervals decide looks at them; the last: all.

    >>> looks_of(20), looks_of(16), looks_of(3)
    ((3, 6, 20), (3, 6, 16), (3,))
    """
    doubled = [_FIRST_LOOK * 2**k for k in range(samples.bit_length()) if 2 * _FIRST_LOOK * 2**k <= samples]
    return (*doubled, samples)


@dataclass(frozen=True)
class Confidence:
    """How sure each interval is, and of how many values at least there is one.

    A run that looks several times, and stops where an interval decides, shares 4% equally among the looks, of shares 5%
    (Bonferroni): all of its intervals of one mean hold it together with 95% or more, whatever makes it stop.
    """

    level: float = 0.95
    least: int = 2
    z: float = _Z
    """The normal quantile of both sides, of shares."""

    def student(self, values: Sequence[float]) -> Ends:
        """`student`; (None, None) for fewer than `least` values."""
        return student(values, self.level) if len(values) >= self.least else (None, None)

    def wilson(self, hits: float, count: int) -> tuple[float, float]:
        """`wilson`; 0 to 1 for fewer than `least`."""
        return wilson(hits, count, self.z) if count >= self.least or self == ONE_LOOK else (0.0, 1.0)


ONE_LOOK = Confidence()


def confidence_of(attrs: Mapping[Any, Any]) -> Confidence:
    """Of scores: by their attribute `looks`, the numbers of prompts that were looked at; without, `ONE_LOOK`."""
    looks = [int(count) for count in attrs.get("looks", ())]
    if not looks:
        return ONE_LOOK
    return Confidence(1 - _SHARED / len(looks), max(2, looks[0]), float(ndtri(1 - 0.025 / len(looks))))


def finite(values: np.ndarray) -> np.ndarray:
    """The values that are not NaN, as a row."""
    return values[np.isfinite(values)]


def known_mean(values: np.ndarray) -> np.ndarray:
    """The mean over the last axis of the values that are not NaN; NaN where there is none."""
    there = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(there, values, 0).sum(-1) / there.sum(-1)
