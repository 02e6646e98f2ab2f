"""Scores by length: those of a run with its predicted failures, of several runs, and of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from probe.figures.figure_data import Chart, Line, Panel, Point, Rule, log_ticks, trained_rule, value_title
from probe.figures.render import rendered
from probe.figures.styles import DASHES, RED, nth, style
from probe.files import write
from probe.thresholds.calls import Call
from probe.thresholds.failure import LEAST_ACCURACY, NATS_ABOVE, Measured
from probe.thresholds.predict import Prediction

Rows = Sequence[Mapping[str, Any]]


def curves_chart(
    evaluation: xr.Dataset, measured: Measured, trained: int, predictions: Sequence[Call | Prediction]
) -> Chart:
    """Tail NLL and passkey accuracy over length, each method's predicted failure length marked on its line."""
    nll_limit = measured.level + NATS_ABOVE
    rule = Rule(nll_limit, f"fails above {nll_limit:z.2f}", RED)
    panels = [_score_panel(evaluation["tail_nll"], "window", "tail NLL by length", trained, rule, predictions)]
    if "passkey" in evaluation:
        rule = Rule(LEAST_ACCURACY, f"fails below {LEAST_ACCURACY:g}", RED)
        accuracy = evaluation["passkey"].assign_attrs(long_name="passkey accuracy", units="share found")
        panels.append(_score_panel(accuracy, "sample", "passkey accuracy by length", trained, rule, predictions))
    return Chart("Measured by length; diamonds: predicted failure", tuple(panels))


def overlaid(charts: Sequence[tuple[str, str, Chart]]) -> Chart:
    """Curves of several runs, (name, model, chart from `curves_chart`), in one chart, a panel a measure.

    Methods keep their colours, runs differ by dash; the legend names method and run. Losses a token are overlaid for
    runs of one model only: another model counts other tokens.
    """
    models = {model for _, model, _ in charts}
    groups: dict[tuple[str, str], list[tuple[int, str, Panel]]] = {}
    for number, (name, model, chart) in enumerate(charts):
        for panel in chart.panels:
            by_token = len(models) > 1 and "/token" in panel.y_title
            groups.setdefault((panel.y_title, model if by_token else ""), []).append((number, name, panel))
    panels = tuple(_overlay(model, runs) for (_, model), runs in groups.items())
    return Chart("Measured by length; diamonds: predicted failure; red: each run's limit", panels)


def evaluation_charts(summary: Mapping[str, Any]) -> dict[str, Chart]:
    """One chart a task of an evaluation's summary, a panel a metric, by the task's name."""
    cells = [cell for cell in summary["cells"] if not cell.get("of_prompts")]
    charts: dict[str, Chart] = {}
    for task in dict.fromkeys(cell["task"] for cell in cells):
        rows = [cell for cell in cells if cell["task"] == task]
        metrics = dict.fromkeys(row["metric"] for row in rows)
        panels = [_metric_panel(rows, metric, summary["trained_length"]) for metric in metrics]
        charts[task] = Chart(f"{task}: {summary['model']}; mean and 95% interval", tuple(panels))
    return charts


def evaluation_numbers(summary: Mapping[str, Any]) -> dict[str, xr.Dataset]:
    """The numbers of the charts, a dataset (method, length) a task and metric; NaN for missing ones."""
    frame = pd.DataFrame(summary["cells"])
    numbers = {}
    for task, metric in dict.fromkeys(zip(frame["task"], frame["metric"], strict=True)):
        rows = frame[(frame["task"] == task) & (frame["metric"] == metric)]
        values = rows.set_index(["method", "length"])[["mean", "low", "high", "n"]].astype(float).to_xarray()
        labels = {name: list(dict.fromkeys(rows[name])) for name in ("method", "length")}
        numbers[f"{task}-{metric}"] = values.reindex(labels).assign_attrs(task=task)
    return numbers


def write_curves(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes each chart as TASK.png and TASK.html (opens offline); returns the paths."""
    written = []
    for task, chart in evaluation_charts(summary).items():
        for form in ("png", "html"):
            written.append(folder / f"{task}.{form}")
            write(written[-1], rendered(chart, form))
    return written


def _score_panel(
    scores: xr.DataArray, repeats: str, title: str, trained: int, rule: Rule, predictions: Sequence[Call | Prediction]
) -> Panel:
    """Mean scores over length; predicted failures lie on their method's line."""
    means = scores.mean(repeats, keep_attrs=True).sortby("length")
    by_method = {  # refined lengths are one method's
        method: means.sel({"method": method}).dropna("length") for method in means["method"].values.tolist()
    }
    looks = {method: style(method) for method in by_method}
    lines = [
        Line(name, row["length"].values.astype(float), row.values, *looks[name]) for name, row in by_method.items()
    ]
    points = []
    for prediction in predictions:
        method, length = prediction.method, prediction.length
        if length is not None and method in by_method:
            row = by_method[method]
            y = float(np.interp(np.log(length), np.log(row["length"]), row.values))
            points.append(Point(f"{method} predicted: {prediction}", length, y, looks[method][0]))
    values = np.array([*means.values.flat, rule.at])
    low, high = np.quantile(values[np.isfinite(values)], [0, 1]).tolist()
    pad = 0.12 * (high - low)
    return Panel(
        title=title,
        x_title=f"length (tokens); mean of {scores.sizes[repeats]}",
        y_title=value_title(scores),
        lines=tuple(lines),
        y_range=(low - pad, high + pad),
        points=tuple(points),
        rules=(trained_rule(trained), rule),
        x_ticks=log_ticks(means.dropna("length")["length"].values.tolist()),
        log_x=True,
    )


def _overlay(model: str, runs: Sequence[tuple[int, str, Panel]]) -> Panel:
    """One panel of those of several runs, (number, name, panel); model: of them all, where panels differ by it."""
    first = runs[0][2]
    lines = [
        replace(line, label=f"{line.label}, {name}", dash=DASHES[number % len(DASHES)], symbol=_symbol(number, line))
        for number, name, panel in runs
        for line in panel.lines
    ]
    points = [replace(point, text=f"{point.text}, {name}") for _, name, panel in runs for point in panel.points]
    rules = list(dict.fromkeys(rule for _, _, panel in runs for rule in panel.rules))
    several = sum(not rule.vertical for rule in rules) > 1  # their texts would cover each other
    counts = dict.fromkeys(panel.x_title for _, _, panel in runs)
    return replace(
        first,
        title=f"{first.title}, {model}" if model else first.title,
        x_title=first.x_title if len(counts) == 1 else f"{first.x_title.partition(';')[0]}; means",
        lines=tuple(lines),
        points=tuple(points),
        rules=tuple(replace(rule, text="") if several and not rule.vertical else rule for rule in rules),
        y_range=(min(panel.y_range[0] for _, _, panel in runs), max(panel.y_range[1] for _, _, panel in runs)),
        x_ticks=log_ticks(sorted({tick for _, _, panel in runs for tick in panel.x_ticks})),
    )


def _symbol(number: int, line: Line) -> str:
    """The marker of the number-th run's line: its method's, until dashes repeat."""
    return line.symbol if number < len(DASHES) else nth(number)[2]


def _metric_panel(cells: Rows, metric: str, trained: int) -> Panel:
    rows = [cell for cell in cells if cell["metric"] == metric]
    labels = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for label in labels:
        points = sorted((row for row in rows if row["method"] == label), key=lambda row: row["length"])
        columns = ("length", "mean", "low", "high")
        x, y, low, high = (np.array([point[column] for point in points], float) for column in columns)
        lines.append(Line(label, x, y, *style(label.rpartition(", ")[2]), interval=(low, high)))
    ends = _ends(rows)
    pad = 0.06 * (max(ends) - min(ends) or 1)
    return Panel(
        title=metric,
        x_title=f"length (tokens); {max(row['n'] for row in rows)} samples",
        y_title=f"{metric} ({rows[0]['unit']})",
        lines=tuple(lines),
        y_range=(min(ends) - pad, max(ends) + 2 * pad),
        rules=(trained_rule(trained),),
        x_ticks=log_ticks(sorted({int(row["length"]) for row in rows})),
        log_x=True,
    )


def _ends(rows: Rows) -> list[float]:
    """Means and interval ends, these up to twice the means' span away, so that those of two samples hide no curve."""
    means = [row["mean"] for row in rows]
    span = 2 * max(max(means) - min(means), 1)
    ends = [end for row in rows for end in (row["low"], row["high"]) if end is not None]
    return [*means, *np.clip(ends, min(means) - span, max(means) + span).tolist()]
