"""Means of scores with their intervals, by task, metric, method and length, and differences to the reference."""

from __future__ import annotations

import itertools
import math
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from probe.evaluation.result import Cell, Difference, Sample
from probe.statistics import Ends, bonett_price, shown, student, wilson
from probe.store.results import number
from probe.tasks.base import Metric, Task

_BY_LENGTH = {"tail_nll": Metric("nll", "nats/token"), "passkey": Metric("accuracy", "share found", binary=True)}
_WIDTH = 110  # of text in a terminal
_NARROWEST = 8  # characters of a column that wraps
Samples = dict[int, float]
"""Scores by sample; the same number is the same prompt under every method."""


@dataclass(frozen=True)
class Table:
    """Texts: a row a method, a column a length."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def interval(values: Sequence[float], metric: Metric) -> Ends:
    """95% interval of the mean; (None, None) for fewer than two values.

    Wilson's for 0 and 1, and where all of several limited scores are the same; else Student's, within the limits.
    """
    most = _counted_to(values, metric)
    if most is None:
        return _within(student(values), 0, metric.most)
    low, high = wilson(sum(values) / most, len(values))
    return low * most, high * most


def paired(values: Sequence[float], others: Sequence[float], metric: Metric) -> Ends:
    """95% interval of the mean difference `values` - `others`, prompt by prompt the same; as `interval`.

    Bonett and Price's in place of Wilson's.
    """
    differences = np.subtract(values, others)
    most = _counted_to(differences, metric)
    if most is None:
        return _within(student(differences.tolist()), -metric.most, metric.most)
    gained, lost = (float(np.maximum(0, signed).sum()) / most for signed in (differences, -differences))
    low, high = bonett_price(gained, lost, len(differences))
    return low * most, high * most


def _within(ends: Ends, least: float, most: float) -> Ends:
    """The part of an interval that the mean of limited scores can lie in."""
    low, high = ends
    if low is None or high is None or math.isinf(most):
        return ends
    return float(np.maximum(least, low)), float(np.minimum(most, high))  # NaN stays NaN


def _counted_to(values: Sequence[float] | np.ndarray, metric: Metric) -> float | None:
    """The highest score, where scores are as good as counts; None: Student's it is.

    They are where each is 0 or 1, and where all of several limited ones are the same: Student's has no width then.
    """
    if len(values) < 2:
        return None
    if metric.binary:
        return 1.0
    return metric.most if metric.most < math.inf and min(values) == max(values) else None


def intervals(scores: xr.Dataset) -> dict[str, list[float | None]]:
    """`tail_nll_interval` and `passkey_interval`, [low, high], of one method's scores at one length."""
    return {
        f"{name}_interval": list(interval(scores[name].values.tolist(), metric))
        for name, metric in _BY_LENGTH.items()
        if name in scores
    }


def differences(scores: xr.Dataset, reference: xr.Dataset) -> dict[str, dict[str, float | None]]:
    """`tail_nll_difference` and `passkey_difference` to the reference's scores of the same prompts, at one length."""
    return {
        f"{name}_difference": _difference(scores[name].values, reference[name].values, metric)
        for name, metric in _BY_LENGTH.items()
        if name in scores
    }


def summarize(samples: Sequence[Sample], tasks: Mapping[str, Task]) -> list[Cell]:
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
            title = f"{_title(compared)}; difference to {same} [95% interval, paired]"
            yield _table(title, compared, f"+z.{places(group) + 1}f")


def places(cells: Sequence[Cell]) -> int:
    """Decimals of a table's numbers: three digits of its largest mean, two decimals of smaller ones."""
    means = [abs(cell.mean) for cell in cells if math.isfinite(cell.mean) and cell.mean]
    least, most = (2 - math.floor(math.log10(size)) for size in (max(means, default=1.0), min(means, default=1.0)))
    return max(0, least, min(2, most))


def tables(cells: Sequence[Cell]) -> str:
    """`score_tables` as plain text."""
    return "\n\n".join(map(plain_table, score_tables(cells)))


def filled(text: str) -> str:
    """The text in lines of a terminal's width, and of no more than 110 characters."""
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns)
    return textwrap.fill(text, width, break_on_hyphens=False)  # methods' names have hyphens


def plain_table(table: Table) -> str:
    """A table as plain text, under its title where it has one; on a terminal that is narrower its cells wrap."""
    rows = (table.head, *table.rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    room = columns - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
    return "\n".join([*([table.title] if table.title else []), *lines])


def measure(cell: Cell) -> str:
    """A cell's task and metric, once where they are the same: 'passkey, accuracy', 'nll'."""
    return cell.task if cell.task == cell.metric else f"{cell.task}, {cell.metric}"


def _by_metric(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in of_methods(cells):
        groups.setdefault((cell.task, cell.metric), []).append(cell)
    yield from groups.values()


def _difference_to(reference: str, values: Samples, others: Samples, metric: Metric) -> Difference | None:
    shared = [sample for sample in values if sample in others]
    if not shared:
        return None
    mine, theirs = ([scores[sample] for sample in shared] for scores in (values, others))
    low, high = map(number, paired(mine, theirs, metric))
    return Difference(reference, float(np.mean(np.subtract(mine, theirs))), low, high, len(shared))


def _difference(values: Any, others: Any, metric: Metric) -> dict[str, float | None]:
    low, high = paired(values, others, metric)
    return {"mean": float(np.mean(np.subtract(values, others))), "low": low, "high": high}


def _table(title: str, cells: Sequence[Cell], form: str) -> Table:
    texts = {(cell.method, cell.length): shown(cell.mean, cell.low, cell.high, form) for cell in cells}
    return cross_table(title, texts, sorted({cell.length for cell in cells}))


def _title(cells: Sequence[Cell]) -> str:
    return f"{measure(cells[0])} ({cells[0].unit})"


def _counts(cells: Sequence[Cell]) -> str:
    counts = sorted({cell.n for cell in cells})
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])


def cross_table(title: str, texts: Mapping[tuple[str, Any], str], columns: Sequence[Any]) -> Table:
    """Texts by method and column, a row a method; '-' where there is none."""
    methods = dict.fromkeys(method for method, _ in texts)
    rows = tuple((method, *(texts.get((method, column), "-") for column in columns)) for method in methods)
    return Table(title, ("method", *map(str, columns)), rows)
