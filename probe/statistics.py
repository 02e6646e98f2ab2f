"""95% intervals of means, shares, ratios and differences of shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

Ends = tuple[float, float] | tuple[None, None]
"""Low and high; None where there is no interval."""

_Z = 1.959964  # of 95%


def wilson(hits: float, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share.

    >>> [round(end, 3) for end in wilson(10, 10)]
    [0.722, 1.0]
    """
    share, z2 = hits / count, _Z**2 / count
    middle = (share + z2 / 2) / (1 + z2)
    half = _Z / (1 + z2) * math.sqrt(share * (1 - share) / count + z2 / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


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


def bonett_price(gained: float, lost: float, count: int) -> tuple[float, float]:
    """95% interval of the difference of two shares of the same `count` prompts (Bonett and Price 2012).

    gained, lost: prompts that only the one finds, and only the other. One prompt is added to each of the two. Covers at
    least 90% whatever the shares, from two prompts on.

    >>> [round(end, 3) for end in bonett_price(5, 0, 10)]
    [0.055, 0.779]
    """
    count, difference = count + 2, gained - lost
    half = _Z * math.sqrt(gained + lost + 2 - difference**2 / count) / count
    return max(-1.0, difference / count - half), min(1.0, difference / count + half)


def shown(value: float, low: float | None, high: float | None, form: str = "z.3g") -> str:
    """A number with its interval, such as '2.52 [2.31, 2.73]', or alone where it has none."""
    alone = f"{value:{form}}"
    return alone if low is None or high is None or math.isnan(low + high) else f"{alone} [{low:{form}}, {high:{form}}]"
