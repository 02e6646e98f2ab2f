"""What `mesa-lens locate` found, read back from the folder it wrote; no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LOCATED = Path("locate", "summary.json")
"""Below the folder that `mesa-lens locate` was given."""

Row = Mapping[str, Any]
Located = Mapping[str, Any]


def find_located(folder: Path) -> Located | None:
    """The summary in the folder, None where `mesa-lens locate` was not run; ValueError for one that is damaged."""
    names = ("model", "trained_length", "layers", "methods", "gaps", "effects", "smallest", "attribution")
    return find_summary(folder, LOCATED, names, "locate")


def find_summary(folder: Path, place: Path, names: Sequence[str], command: str) -> Mapping[str, Any] | None:
    """The JSON at `place` in the folder, None where there is none; ValueError where one of `names` is missing in it."""
    path = folder / place
    if not path.is_file():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        for name in names:
            summary[name]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({error!r}); write it anew: `mesa-lens {command} --out {folder}`"
        ) from error
    return summary


def read_located(folder: Path) -> Located:
    """The summary in the folder; FileNotFoundError where there is none."""
    summary = find_located(folder)
    if summary is None:
        raise FileNotFoundError(f"{folder / LOCATED} is not there; write it: `mesa-lens locate --out {folder}`")
    return summary


def having(rows: Sequence[Row], **labels: Any) -> list[Row]:
    """The rows that bear all the labels; a label that a row lacks is None."""
    return [row for row in rows if all(row.get(name) == value for name, value in labels.items())]


def number(value: float | None) -> float:
    """The value, NaN where there is none."""
    return math.nan if value is None else float(value)


def is_clear(row: Row) -> bool:
    """Whether the row's interval leaves 0 out; not where it has no interval."""
    return number(row["low"]) > 0 or number(row["high"]) < 0


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


def headline(summary: Located) -> dict[str, Any] | None:
    """Method, length and measure of what was lost most clearly, tail NLL before all else; None if nothing is judged."""
    judged = [gap for gap in summary["gaps"] if gap["judged"]]
    if not judged:
        return None
    clearest = max(judged, key=lambda gap: (gap["measure"] == "nll", number(gap["low"])))
    return {name: clearest[name] for name in ("method", "length", "measure")}
