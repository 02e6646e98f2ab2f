"""Scores of an evaluation by length: charts and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from probe.commands.eval.result import Cell, Evaluated
from probe.commands.eval.summary import of_methods
from probe.figures.curves import MEAN, seen_lines, y_range
from probe.figures.figure_data import Chart, Line, Panel, log_ticks, trained_rule
from probe.figures.render import rendered
from probe.figures.styles import style
from probe.files import write


def evaluation_charts(result: Evaluated) -> dict[str, Chart]:
    """One chart a task of an evaluation, a panel a metric, by the task's name."""
    cells = of_methods(result.cells)
    charts: dict[str, Chart] = {}
    for task in dict.fromkeys(cell.task for cell in cells):
        rows = [cell for cell in cells if cell.task == task]
        metrics = dict.fromkeys(row.metric for row in rows)
        panels = [_metric_panel(rows, metric, result.trained_length) for metric in metrics]
        about = rows[0].about or task
        charts[task] = Chart(f"{about[0].upper()}{about[1:]}: {result.model}; {MEAN}", tuple(panels))
    return charts


def evaluation_numbers(result: Evaluated) -> dict[str, xr.Dataset]:
    """The numbers of the charts, a dataset (method, length) a task and metric; NaN for missing ones."""
    frame = pd.DataFrame(result.cells)
    numbers = {}
    for task, metric in dict.fromkeys(zip(frame["task"], frame["metric"], strict=True)):
        rows = frame[(frame["task"] == task) & (frame["metric"] == metric)]
        values = rows.set_index(["method", "length"])[["mean", "low", "high", "n"]].astype(float).to_xarray()
        labels = {name: list(dict.fromkeys(rows[name])) for name in ("method", "length")}
        numbers[f"{task}-{metric}"] = values.reindex(labels).assign_attrs(task=task)
    return numbers


def write_curves(result: Evaluated, folder: Path) -> list[Path]:
    """Writes each chart as TASK.png and TASK.html (opens offline); returns the paths."""
    written = []
    for task, chart in evaluation_charts(result).items():
        for form in ("html", "png"):  # a picture is known by its page
            written.append(folder / f"{task}.{form}")
            write(written[-1], rendered(chart, form))
    return written


def _metric_panel(cells: Sequence[Cell], metric: str, trained: int) -> Panel:
    rows = [cell for cell in cells if cell.metric == metric]
    lines = []
    for label in dict.fromkeys(row.method for row in rows):
        points = sorted((row.length, row.mean, row.low, row.high) for row in rows if row.method == label)
        x, y, low, high = np.array(points, float).T
        lines.append(Line(label, x, y, *style(label.rpartition(", ")[2]), interval=(low, high)))
    return Panel(
        title="",  # the y axis names it
        x_title=f"length (tokens); {max(row.n for row in rows)} samples",
        y_title=f"{metric} ({rows[0].unit}){'; lower is better' * rows[0].unit.startswith('nats')}",
        lines=tuple(lines),
        y_range=y_range(lines),
        rules=(trained_rule(trained),),
        x_ticks=log_ticks(sorted({row.length for row in rows})),
        log_x=True,
        seen=seen_lines(lines, f"the mean {metric} is"),
    )
