"""Draws an evaluation's summary: each task's mean score over length, with 95% intervals and M marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from probe.figures.marks import Chart, Line, Panel, apart, trained_rule
from probe.figures.render import rendered
from probe.figures.styles import style
from probe.files import write

Cells = Sequence[Mapping[str, Any]]
_NUMBERS = ("mean", "low", "high", "n")


def evaluation_charts(summary: Mapping[str, Any]) -> dict[str, Chart]:
    """One chart a task, a panel a metric, by the task's name."""
    charts: dict[str, Chart] = {}
    cells = [cell for cell in summary["cells"] if not cell.get("of_prompts")]
    for task in dict.fromkeys(cell["task"] for cell in cells):
        own = [cell for cell in cells if cell["task"] == task]
        panels = [_panel(own, metric, summary["trained_length"]) for metric in dict.fromkeys(c["metric"] for c in own)]
        charts[task] = Chart(f"{task}: {summary['model']}; mean and 95% interval", tuple(panels))
    return charts


def evaluation_numbers(summary: Mapping[str, Any]) -> dict[str, xr.Dataset]:
    """What the charts show, a dataset (method, length) a task and metric; NaN where there is nothing."""
    numbers = {}
    for task, metric in dict.fromkeys((cell["task"], cell["metric"]) for cell in summary["cells"]):
        own = [cell for cell in summary["cells"] if (cell["task"], cell["metric"]) == (task, metric)]
        labels = {name: list(dict.fromkeys(cell[name] for cell in own)) for name in ("method", "length")}
        empty = {name: (tuple(labels), np.full([*map(len, labels.values())], np.nan)) for name in _NUMBERS}
        made = xr.Dataset(empty, labels, {"task": task})
        for cell in own:
            for name in _NUMBERS:
                made[name].loc[{"method": cell["method"], "length": cell["length"]}] = cell[name]
        numbers[f"{task}-{metric}"] = made
    return numbers


def write_curves(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes each chart as TASK.png and TASK.html (opens offline); returns the paths."""
    written = []
    for task, chart in evaluation_charts(summary).items():
        for form in ("png", "html"):
            written.append(folder / f"{task}.{form}")
            write(written[-1], rendered(chart, form))
    return written


def _method(label: str) -> str:
    """The method; of a variant such as 'mesa, rerope' what it is called after."""
    return label.rpartition(", ")[2]


def _panel(cells: Cells, metric: str, trained: int) -> Panel:
    own = [cell for cell in cells if cell["metric"] == metric]
    lines = []
    labels = list(dict.fromkeys(cell["method"] for cell in own))
    for method in labels:
        mine = sorted((cell for cell in own if cell["method"] == method), key=lambda cell: cell["length"])
        x, y, low, high = (np.array([cell[name] for cell in mine], float) for name in ("length", "mean", "low", "high"))
        look = style(_method(method), map(_method, labels))
        lines.append(Line(method, x, y, *look, interval=(low, high)))
    lengths = sorted({int(cell["length"]) for cell in own})
    ends = _ends(own)
    pad = 0.06 * (max(ends) - min(ends) or 1)
    return Panel(
        title=metric,
        x_title=f"length (tokens); {max(cell['n'] for cell in own)} samples",
        y_title=f"{metric} ({own[0]['unit']})",
        lines=tuple(lines),
        points=(),
        rules=(trained_rule(trained),),
        y_range=(min(ends) - pad, max(ends) + 2 * pad),
        x_ticks=apart(lengths),
        log_x=True,
    )


def _ends(cells: Cells) -> list[float]:
    """Means and interval ends, these up to twice the means' span away, so that those of two samples hide no curve."""
    means = [cell["mean"] for cell in cells]
    room = 2 * max(max(means) - min(means), 1)
    known = [end for cell in cells for end in (cell["low"], cell["high"]) if end is not None]
    return [*means, *np.clip(known, min(means) - room, max(means) + room).tolist()]
