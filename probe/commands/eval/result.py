"""What `mesa-lens eval` measured, as its summary.json and harness.json hold it, with means and intervals. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass

from probe.eval_tasks.base import EvalKey, EvalTask, Metric, interval, paired
from probe.statistics import shown
from probe.store.result_file import Number, ResultFile, RunSummary, or_nan
from probe.tables import Table, cross_table

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
    """Of tasks whose answer stands at a place in the prompt; by task, method, length and depth, in order."""
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
    reference = "origin" if "origin" in methods else next(iter(methods), "")
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
    """The scores by where in the prompt the answer stands, in `DEPTHS` parts; parts without samples are left out."""
    grouped: dict[tuple[str, str, int, int], list[float]] = {}
    for row in samples:
        if row.depth is not None and row.metric == tasks[row.task].metrics[0].name:
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
