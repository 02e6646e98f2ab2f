"""Reads the results beside a store: the summary of its report, and what `mesa-lens locate` and `anatomy` wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mesa.errors import Refused
from probe.files import read_result
from probe.identity import tell_left_out

REPORTED = ("report.html", "summary.json")
"""The files of a finished report, beside its figures."""

Row = Mapping[str, Any]


def find_summary(folder: Path, name: Path, keys: Sequence[str], command: str) -> Mapping[str, Any] | None:
    """The JSON file `name` in the folder, None where there is none; Refused where it lacks one of `keys`."""
    path = folder / name
    if not path.is_file() or tell_left_out(folder, command):
        return None
    try:
        summary = read_result(path)
    except Refused as error:
        raise Refused(f"{error}; write it anew: `mesa-lens {command} --out {folder}`") from error
    if lacking := [key for key in keys if key not in summary]:
        problem = f"{path} is damaged (it has no {lacking[0]!r}); write it anew: `mesa-lens {command} --out {folder}`"
        raise Refused(problem)
    return summary


def number(value: float | None) -> float:
    """The value, NaN for None."""
    return math.nan if value is None else float(value)


def percent(value: float | None, low: float | None, high: float | None) -> str:
    """A share with its 95% interval, such as '82% [60, 106]'."""
    if not math.isfinite(number(value)):
        return "unknown"
    ends = number(low), number(high)
    has_interval = all(map(math.isfinite, ends))
    interval = f"[{', '.join(str(round(100 * end)) for end in ends)}]" if has_interval else "(no interval)"
    return f"{round(100 * number(value))}% {interval}"


def ranged(value: float | None, low: float | None, high: float | None, digits: int = 2) -> str:
    """A value with its 95% interval, such as '2.41 [2.20, 2.60]'; the interval is left out where there is none."""
    if not math.isfinite(number(value)):
        return "unknown"
    ends = [number(low), number(high)]
    interval = f" [{', '.join(f'{end:z.{digits}f}' for end in ends)}]" if all(map(math.isfinite, ends)) else ""
    return f"{number(value):z.{digits}f}{interval}"
