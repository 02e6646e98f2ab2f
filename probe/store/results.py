"""Numbers with their intervals as texts."""

from __future__ import annotations

import math


def or_nan(value: float | None) -> float:
    """The value, NaN for None."""
    return math.nan if value is None else float(value)


def percent(value: float | None, low: float | None, high: float | None) -> str:
    """A share with its 95% interval, such as '82% [60, 106]'."""
    if not math.isfinite(or_nan(value)):
        return "unknown"
    ends = or_nan(low), or_nan(high)
    has_interval = all(map(math.isfinite, ends))
    interval = f"[{', '.join(str(round(100 * end)) for end in ends)}]" if has_interval else "(no interval)"
    return f"{round(100 * or_nan(value))}% {interval}"


def ranged(value: float | None, low: float | None, high: float | None, digits: int = 2) -> str:
    """A value with its 95% interval, such as '2.41 [2.20, 2.60]'; the interval is left out where there is none."""
    if not math.isfinite(or_nan(value)):
        return "unknown"
    ends = [or_nan(low), or_nan(high)]
    interval = f" [{', '.join(f'{end:z.{digits}f}' for end in ends)}]" if all(map(math.isfinite, ends)) else ""
    return f"{or_nan(value):z.{digits}f}{interval}"
