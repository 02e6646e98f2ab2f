"""What the pages of `mesa-lens eval` show: scores by length as charts, tables, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from mesa.errors import Refused
from probe.commands.eval.result import (
    DEPTHS,
    EVALUATED,
    Cell,
    Evaluated,
    HarnessScores,
    Needles,
    difference_tables,
    mean_tables,
    measure,
    of_methods,
    places,
)
from probe.figures.curves import MEAN, seen_lines, y_range
from probe.figures.export import Export, chosen_labels, labels_text, rendered
from probe.figures.figure_data import (
    Chart,
    Drawable,
    Heatmap,
    Heatmaps,
    Line,
    Panel,
    Scale,
    log_ticks,
    style,
    tile_map,
    tiles,
    trained_rule,
)
from probe.figures.section import Section
from probe.files import write
from probe.glossary import about
from probe.store.result_file import NOT_RECORDED, having, ranged
from probe.tables import Table


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
    for name in needle_maps(result):
        rows = pd.DataFrame(having(result.needles, task=name.removesuffix(_DEPTH)))
        labels = {axis: list(dict.fromkeys(rows[axis])) for axis in ("method", "length")} | {"depth": PARTS}
        values = rows.set_index([*labels])[["mean", "low", "high", "n"]].astype(float).to_xarray()
        numbers[name] = values.reindex(labels).assign_attrs(task=name)
    return numbers


_DEPTH = "-depth"
PARTS = [part / DEPTHS for part in range(DEPTHS)]
"""Where each part of a prompt begins."""


def needle_maps(result: Evaluated) -> dict[str, Heatmaps]:
    """By task what is found by depth of the answer and length, a block a method; none of one depth alone."""
    maps = {}
    for task in dict.fromkeys(row.task for row in result.needles):
        rows = having(result.needles, task=task)
        if len({row.depth for row in rows}) < 2:
            continue
        lengths = sorted({row.length for row in rows})
        methods = [name for name in result.methods if having(rows, method=name)]
        blocks = [_needle_block(having(rows, method=name), lengths, name) for name in methods]
        least = min(rows, key=lambda row: (row.mean, row.length))
        figure = tile_map(
            f"{task}: share found, by length and depth of the answer (0%: start of the prompt). {result.model}, "
            f"M = {result.trained_length}",
            "share found",
            blocks,
            Scale(0.0, 1.0, 2),
        )
        maps[f"{task}{_DEPTH}"] = replace(figure, seen=f"Least found: {least.method}, {_where(least)}.")
    return maps


def _needle_block(rows: Sequence[Needles], lengths: Sequence[int], method: str) -> Heatmap:
    """Tiles of one method, lengths across and depths down."""
    at = {(PARTS.index(row.depth), lengths.index(row.length)): row for row in rows}
    triples = {place: (row.mean, row.low, row.high) for place, row in at.items()}
    block = tiles(method, list(map(str, lengths)), range(DEPTHS), triples, Scale(0.0, 1.0, 2))
    texts = np.full(block.values.shape, "", dtype=object)
    for place, row in at.items():
        texts[place] = f"{method}, {_where(row)}"
    ticks = {number: f"{begin:.0%}" for number, begin in enumerate(PARTS)}
    return replace(block, texts=texts, muted=None, x_title="length (tokens)", y_title="depth, from", y_ticks=ticks)


def _where(row: Needles) -> str:
    """A tile in words."""
    part = f"depth {row.depth:.0%} to {row.depth + 1 / DEPTHS:.0%}"
    return f"{row.length} tokens, {part}: {ranged(row.mean, row.low, row.high)} of {row.n}"


def evaluation_export(
    result: Evaluated, methods: Sequence[str] | None = None, lengths: Sequence[int] | None = None
) -> Export:
    """Curves as `TASK`, what is found by length and depth as `TASK-depth`, and their numbers; default: all.

    Raises Refused for a method or length that is not there.
    """
    known = {"method": list(result.methods), "length": sorted({row.length for row in result.cells})}
    chosen = chosen_labels({"method": methods, "length": lengths}, known, known, "measured")
    cells, needles = (
        [row for row in rows if row.method in chosen["method"] and row.length in chosen["length"]]
        for rows in (result.cells, result.needles)
    )
    if not cells:
        raise Refused(f"nothing is there for {labels_text(chosen)}; run `mesa-lens eval` into this folder")
    part = replace(result, cells=cells, needles=needles)
    return Export({**evaluation_charts(part), **needle_maps(part)}, evaluation_numbers(part))


def export(folder: Path, **chosen: Any) -> Export:
    """`evaluation_export` of what is in the folder; NotFound where nothing is."""
    return evaluation_export(EVALUATED.read(folder), **chosen)


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


_COSTS = ("latency",)  # tasks that are folded away


def title(result: Evaluated) -> str:
    """The page's heading."""
    return f"{result.model}: scores by prompt length"


def sections(result: Evaluated) -> list[Section]:
    """Differences to the reference and charts by length first; all scores, and what they cost, folded."""
    reference = "origin" if "origin" in result.methods else next(iter(result.methods))
    charts = evaluation_charts(result)
    scores, costs = ([cell for cell in result.cells if (cell.task in _COSTS) == is_cost] for is_cost in (False, True))
    drawn: dict[str, Drawable] = {task: chart for task, chart in charts.items() if task not in _COSTS}
    parts = [
        Section(
            "",
            [about(result.model, result.trained_length, reference, result.trained_length_by, result.as_trained)],
            drawn | needle_maps(result),
        ),
        Section("", sentences(result), tables=list(difference_tables(scores))),
        Section("All scores", tables=list(mean_tables(scores)), folded=True),
    ]
    if costs:
        cost_charts = {task: chart for task, chart in charts.items() if task in _COSTS}
        tables = [*mean_tables(costs), *difference_tables(costs)]
        parts.append(Section("Time and memory", figures=cost_charts, tables=tables, folded=True))
    return parts


def sentences(result: Evaluated) -> list[str]:
    """What the numbers say at the longest length, task by task, for the first metric."""
    text = []
    cells = of_methods(result.cells)
    for task in dict.fromkeys(cell.task for cell in cells):
        of_task = [cell for cell in cells if cell.task == task]
        longest = max(cell.length for cell in of_task)
        last = [cell for cell in of_task if cell.length == longest]
        last = [cell for cell in last if cell.metric == last[0].metric]
        means = ", ".join(f"{cell.method} {cell.mean:z.{places(last)}f}" for cell in last)
        text.append(f"{measure(last[0])} at {longest} tokens ({longest / result.trained_length:.3g} M): {means}.")
    text += notes(result)
    if result.out_of_memory:
        left_out = ", ".join(f"{task} under {method} at {length}" for task, method, length in result.out_of_memory)
        text.append(f"Did not fit in memory: {left_out}.")
    if result.failed:
        text.append(f"Cells that no worker could finish: {len(result.failed)}.")
    if result.tasks_left:
        text.append(f"Cells that are not run yet: {result.tasks_left}.")
    return text


def notes(result: Evaluated) -> list[str]:
    """The sizes of tasks, as sentences."""
    return [f"{task}: {size}." for task, size in result.sizes.items()]


def harness_table(result: HarnessScores) -> Table:
    """lm-eval's scores, a row a method and task, with how many documents had a prompt cut on the left."""
    rows = (
        (
            method,
            task,
            f"{scores['shots']:.0f}" if "shots" in scores else NOT_RECORDED,
            _cut(scores),
            ", ".join(f"{key} {value:.4g}" for key, value in scores.items() if "," in key),
        )
        for method, tasks in result.results.items()
        for task, scores in tasks.items()
    )
    return Table(
        f"lm-eval, prompts of at most {result.max_length} tokens",
        ("method", "task", "shots", "documents cut", "scores"),
        tuple(rows),
    )


def _cut(scores: Mapping[str, float]) -> str:
    """Of a task's documents those with a cut prompt; a group has none of its own."""
    if "documents_cut" in scores:
        return f"{scores['documents_cut']:.0f} of {scores['documents']:.0f}"
    return "-" if "shots" in scores else NOT_RECORDED
