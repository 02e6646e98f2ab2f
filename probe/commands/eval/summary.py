"""Means of scores with their intervals, by task, metric, method and length, and differences to the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from probe.commands.eval.result import Cell, PairedDifference, Sample
from probe.eval_tasks.base import EvalTask, Metric
from probe.eval_tasks.intervals import interval, paired
from probe.statistics import shown
from probe.store.results import number
from probe.tables import Table, cross_table

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
        low, high = map(number, interval([*values.values()], metric))
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
    low, high = map(number, paired(mine, theirs, metric))
    return PairedDifference(reference, float(np.mean(np.subtract(mine, theirs))), low, high, len(shared))


def _table(title: str, cells: Sequence[Cell], form: str) -> Table:
    texts = {(cell.method, cell.length): shown(cell.mean, cell.low, cell.high, form) for cell in cells}
    return cross_table(title, texts, sorted({cell.length for cell in cells}))


def _title(cells: Sequence[Cell]) -> str:
    return f"{measure(cells[0])} ({cells[0].unit})"


def _counts(cells: Sequence[Cell]) -> str:
    counts = sorted({cell.n for cell in cells})
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
