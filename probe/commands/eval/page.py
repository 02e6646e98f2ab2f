"""What `mesa-lens eval` measured, as its summary.json and harness.json hold it, and what pages show of it. No torch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from pydantic.dataclasses import dataclass

from mesa.errors import Refused
from probe.eval_tasks.base import EvalKey, EvalTask, Metric, interval, paired
from probe.figures import figure_data as fig
from probe.figures.curves import MEAN, seen_lines, y_range
from probe.figures.export import Export, chosen_labels, labels_text, rendered
from probe.figures.section import Section, Table, cross_table
from probe.files import write
from probe.glossary import about
from probe.request import reference_method
from probe.statistics import shown
from probe.store.result_file import NOT_RECORDED, Number, ResultFile, RunSummary, having, or_nan, ranged

DEPTHS = 5
"""Parts of a prompt, by which answers are counted."""


class Sample(NamedTuple):
    """A score of one prompt or text, a row of samples.csv."""

    task: str
    method: str
    length: int
    sample: int
    metric: str
    score: float
    seconds: float | None = None
    peak_mib: float | None = None
    depth: float | None = None


@dataclass(frozen=True)
class PairedDifference:
    """A mean less the reference's on the n samples of both, with its paired 95% interval; NaN where there is none."""

    reference: str
    mean: Number
    low: Number
    high: Number
    n: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The mean of a metric over the samples of a task, under a method, at a length."""

    task: str
    about: str = ""
    """The task in words."""
    metric: str
    unit: str
    of_prompts: bool = False
    """Whether it is the same for every method; tables leave it out."""
    method: str
    length: int
    """In tokens."""
    mean: Number
    low: Number
    """95% interval over samples; NaN where there is none."""
    high: Number
    n: int
    """Number of samples."""
    difference: PairedDifference | None = None
    """None for the reference, and where it was not run."""


@dataclass(frozen=True, kw_only=True)
class Needles:
    """What is found of the answers in one part of the prompt, under a method, at a length."""

    task: str
    method: str
    length: int
    """In tokens."""
    depth: float
    """Where the part begins, 0 being the prompt's start; it is 1 / `DEPTHS` of the prompt."""
    mean: Number
    """Mean of the task's first metric."""
    low: Number
    """95% interval over samples; NaN where there is none."""
    high: Number
    n: int
    """Number of samples."""


@dataclass(frozen=True, kw_only=True)
class Evaluated(RunSummary):
    """The summary of `mesa-lens eval`."""

    sizes: dict[str, str] = field(default_factory=dict)
    """Of tasks, in words."""
    out_of_memory: list[EvalKey]
    """Left out, since a prompt did not fit."""
    failed: list[EvalKey] = field(default_factory=list)
    """Left out, since no worker could finish them."""
    tasks_left: int
    cells: list[Cell]
    """Lengths in order."""
    needles: list[Needles] = field(default_factory=list)
    """Of tasks whose answer stands at a place in the prompt, and is found or not; by length and depth, in order."""
    version: Literal[1] = 1


@dataclass(frozen=True)
class HarnessScores:
    """The scores of lm-eval's tasks."""

    model: str
    max_length: int
    """Of a prompt, in tokens."""
    results: dict[str, dict[str, dict[str, Number]]]
    """lm-eval's numbers by method, part of a task, and lm-eval's name, such as 'acc,none'.

    Also `shots`, `documents`, and `documents_cut`, those with a prompt that was cut on the left.
    """
    limit: int | None = None
    """Documents of a task; None: all."""
    failed: list[EvalKey] = field(default_factory=list)
    """Left out, since no worker could finish them."""
    origin: dict[str, str] | None = None
    """Of weights and tokenizer, as `mesa.models.origin` tells them; None: not recorded, by an earlier version."""
    version: Literal[1] = 1


EVALUATED = ResultFile(Path("summary.json"), Evaluated, by="eval")
HARNESS_SCORES = ResultFile(Path("harness.json"), HarnessScores, by="eval")
"""In the folder that `mesa-lens eval` writes to."""


Samples = dict[int, float]
"""Scores by sample; the same number is the same prompt under every method."""


def summarize(samples: Sequence[Sample], tasks: Mapping[str, EvalTask]) -> list[Cell]:
    """One cell a (task, metric, method, length), lengths in order; the reference is origin, else the first method."""
    grouped: dict[tuple[str, str, str, int], Samples] = {}
    for row in samples:
        grouped.setdefault((row.task, row.metric, row.method, row.length), {})[row.sample] = row.score
    methods = list(dict.fromkeys(row.method for row in samples))
    reference = reference_method(methods) if methods else ""
    cells = []
    for (task, name, method, length), values in sorted(grouped.items(), key=lambda item: item[0][3]):
        metric = next(metric for metric in tasks[task].metrics if metric.name == name)
        low, high = map(or_nan, interval([*values.values()], metric))
        others = {} if method == reference else grouped.get((task, name, reference, length), {})
        cells.append(
            Cell(
                task=task,
                about=tasks[task].about,
                metric=name,
                unit=metric.unit,
                of_prompts=metric.of_prompts,
                method=method,
                length=length,
                mean=float(np.mean([*values.values()])),
                low=low,
                high=high,
                n=len(values),
                difference=_difference_to(reference, values, others, metric),
            )
        )
    return cells


def needles(samples: Sequence[Sample], tasks: Mapping[str, EvalTask]) -> list[Needles]:
    """The share found by where in the prompt the answer stands, in `DEPTHS` parts; parts without samples are left out.

    Of tasks whose first metric is 0 or 1 for each sample: a mean of others is no share.
    """
    grouped: dict[tuple[str, str, int, int], list[float]] = {}
    for row in samples:
        metric = tasks[row.task].metrics[0]
        if row.depth is not None and row.metric == metric.name and metric.binary:
            part = min(int(row.depth * DEPTHS), DEPTHS - 1)
            grouped.setdefault((row.task, row.method, row.length, part), []).append(row.score)
    rows = []
    for (task, method, length, part), values in sorted(grouped.items(), key=lambda item: item[0][2:]):
        low, high = map(or_nan, interval(values, tasks[task].metrics[0]))
        share, mean = part / DEPTHS, float(np.mean(values))
        rows.append(
            Needles(task=task, method=method, length=length, depth=share, mean=mean, low=low, high=high, n=len(values))
        )
    return rows


def of_methods(cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose scores depend on the method."""
    return [cell for cell in cells if not cell.of_prompts]


def score_tables(cells: Sequence[Cell]) -> Iterator[Table]:
    """A table a task and metric, methods down, lengths across; after each the differences to the reference."""
    for group in _by_metric(cells):
        yield from mean_tables(group)
        yield from difference_tables(group)


def mean_tables(cells: Sequence[Cell]) -> Iterator[Table]:
    """Of `score_tables` the means alone."""
    for group in _by_metric(cells):
        yield _table(f"{_title(group)}; mean of {_counts(group)} [95% interval]", group, f"z.{places(group)}f")


def difference_tables(cells: Sequence[Cell]) -> Iterator[Table]:
    """Of `score_tables` the differences to the reference alone."""
    for group in _by_metric(cells):
        pairs = [(cell, less) for cell in group if (less := cell.difference)]
        if pairs:
            compared = [replace(cell, mean=less.mean, low=less.low, high=less.high, n=less.n) for cell, less in pairs]
            same = f"{pairs[0][1].reference} on the same {_counts(compared)}"
            title = f"{_title(compared)}; minus {same} [95% interval, paired]"
            yield _table(title, compared, f"+z.{places(group) + 1}f")


def places(cells: Sequence[Cell]) -> int:
    """Decimals of a table's numbers: three digits of its largest mean, two decimals of smaller ones."""
    means = [abs(cell.mean) for cell in cells if math.isfinite(cell.mean) and cell.mean]
    least, most = (2 - math.floor(math.log10(size)) for size in (max(means, default=1.0), min(means, default=1.0)))
    return max(0, least, min(2, most))


def measure(cell: Cell) -> str:
    """A cell's task and metric, once where they are the same: 'passkey, accuracy', 'nll'."""
    return cell.task if cell.task == cell.metric else f"{cell.task}, {cell.metric}"


def _by_metric(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in of_methods(cells):
        groups.setdefault((cell.task, cell.metric), []).append(cell)
    yield from groups.values()


def _difference_to(reference: str, values: Samples, others: Samples, metric: Metric) -> PairedDifference | None:
    shared = [sample for sample in values if sample in others]
    if not shared:
        return None
    mine, theirs = ([scores[sample] for sample in shared] for scores in (values, others))
    low, high = map(or_nan, paired(mine, theirs, metric))
    return PairedDifference(reference, float(np.mean(np.subtract(mine, theirs))), low, high, len(shared))


def _table(title: str, cells: Sequence[Cell], form: str) -> Table:
    texts = {(cell.method, cell.length): shown(cell.mean, cell.low, cell.high, form) for cell in cells}
    return cross_table(title, texts, sorted({cell.length for cell in cells}))


def _title(cells: Sequence[Cell]) -> str:
    return f"{measure(cells[0])} ({cells[0].unit})"


def _counts(cells: Sequence[Cell]) -> str:
    counts = sorted({cell.n for cell in cells})
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])


# Pages: scores by length as charts, tables, notes


def evaluation_charts(result: Evaluated) -> dict[str, fig.Chart]:
    """One chart a task of an evaluation, a panel a metric, by the task's name."""
    cells = of_methods(result.cells)
    charts: dict[str, fig.Chart] = {}
    for task in dict.fromkeys(cell.task for cell in cells):
        rows = [cell for cell in cells if cell.task == task]
        metrics = dict.fromkeys(row.metric for row in rows)
        panels = [_metric_panel(rows, metric, result.trained_length) for metric in metrics]
        about = rows[0].about or task
        charts[task] = fig.Chart(f"{about[0].upper()}{about[1:]}: {result.model}; {MEAN}", tuple(panels))
    return charts


def evaluation_numbers(result: Evaluated) -> dict[str, xr.Dataset]:
    """The numbers of the charts, a dataset (method, length) a task and metric; NaN for missing ones."""
    frame = pd.DataFrame(result.cells)
    numbers = {}
    for task, metric in dict.fromkeys(zip(frame["task"], frame["metric"], strict=True)):
        rows = frame[(frame["task"] == task) & (frame["metric"] == metric)]
        less = pd.json_normalize([cell or {} for cell in rows["difference"]]).reindex(columns=["mean", "low", "high"])
        names = ["difference", "difference_low", "difference_high"]  # to the reference, paired
        rows = rows.assign(**dict(zip(names, less.to_numpy(float).T, strict=True)))
        values = rows.set_index(["method", "length"])[["mean", "low", "high", "n", *names]].astype(float).to_xarray()
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


def needle_maps(result: Evaluated) -> dict[str, fig.Heatmaps]:
    """By task what is found by depth of the answer and length, a block a method; none of one depth alone."""
    maps = {}
    for task in dict.fromkeys(row.task for row in result.needles):
        rows = having(result.needles, task=task)
        if len({row.depth for row in rows}) < 2:
            continue
        lengths = sorted({row.length for row in rows})
        methods = [name for name in result.methods if having(rows, method=name)]
        blocks = [_needle_block(having(rows, method=name), lengths, name) for name in methods]
        figure = fig.tile_map(
            f"{task}: share found, by length and depth of the answer (0%: start of the prompt). {result.model}, "
            f"M = {result.trained_length}",
            "share found",
            blocks,
            fig.SCORES,
        )
        maps[f"{task}{_DEPTH}"] = replace(
            figure,
            note=("empty: no answer stood there",) if figure.note else (),
            seen=_lowest(rows),
        )
    return maps


def _lowest(rows: Sequence[Needles]) -> str:
    """The shortest of the tiles with the least mean, and how many more there are; empty where all are equal."""
    least = min(row.mean for row in rows)
    lowest = having(rows, mean=least)
    if len(lowest) == len(rows):
        return ""
    first = min(lowest, key=lambda row: row.length)
    more = f" (and {len(lowest) - 1} more)" if len(lowest) > 1 else ""
    return f"Least found: {first.method}, {_where(first)}{more}."


def _needle_block(rows: Sequence[Needles], lengths: Sequence[int], method: str) -> fig.Heatmap:
    """Tiles of one method, lengths across and depths down."""
    at = {(PARTS.index(row.depth), lengths.index(row.length)): row for row in rows}
    triples = {place: (row.mean, row.low, row.high) for place, row in at.items()}
    block = fig.tiles(method, list(map(str, lengths)), range(DEPTHS), triples, fig.SCORES)
    texts = np.full(block.values.shape, "", dtype=object)
    for place, row in at.items():
        texts[place] = f"{method}, {_where(row)}"
    ticks = {number: f"{begin:.0%}" for number, begin in enumerate(PARTS)}
    muted = np.zeros_like(block.values, bool)  # an interval that holds 0 says nothing here
    return replace(block, texts=texts, muted=muted, x_title="length (tokens)", y_title="depth, from", y_ticks=ticks)


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


def _metric_panel(cells: Sequence[Cell], metric: str, trained: int) -> fig.Panel:
    rows = [cell for cell in cells if cell.metric == metric]
    lines = []
    for label in dict.fromkeys(row.method for row in rows):
        points = sorted((row.length, row.mean, row.low, row.high) for row in rows if row.method == label)
        x, y, low, high = np.array(points, float).T
        lines.append(fig.Line(label, x, y, *fig.style(label.rpartition(", ")[2]), interval=(low, high)))
    return fig.Panel(
        title="",  # the y axis names it
        x_title=f"length (tokens); {max(row.n for row in rows)} samples",
        y_title=f"{metric} ({rows[0].unit}){'; lower is better' * rows[0].unit.startswith('nats')}",
        lines=tuple(lines),
        y_range=y_range(lines),
        rules=(fig.trained_rule(trained),),
        x_ticks=fig.log_ticks(sorted({row.length for row in rows})),
        log_x=True,
        seen=seen_lines(lines, f"the mean {metric} is"),
    )


_COSTS = ("latency",)  # tasks that are folded away


def title(result: Evaluated) -> str:
    """The page's heading."""
    return f"{result.model}: scores by prompt length"


def sections(result: Evaluated) -> list[Section]:
    """Differences to the reference and charts by length first; all scores, and what they cost, folded."""
    named = (cell.difference.reference for cell in result.cells if cell.difference)  # as in the tables
    reference = next(named, reference_method(list(result.methods)))
    charts = evaluation_charts(result)
    scores, costs = ([cell for cell in result.cells if (cell.task in _COSTS) == is_cost] for is_cost in (False, True))
    drawn: dict[str, fig.Drawable] = {task: chart for task, chart in charts.items() if task not in _COSTS}
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
