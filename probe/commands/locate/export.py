"""Figures and tables of what `mesa-lens locate` measured, for files, reports and pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import xarray as xr

from mesa.errors import Refused
from probe.commands.locate.result import LOCATED, Located, Loss, SmallestSet
from probe.commands.locate.sections import place, sections, title
from probe.figures.export import Export
from probe.figures.labels import Labels, Row, chosen_labels, chosen_rows, labels_text
from probe.figures.section import figures_of, write_page
from probe.store.result_file import having

TABLES = ("loss_gaps", "effects", "smallest")


def located_export(
    summary: Located,
    methods: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    measures: Sequence[str] | None = None,
) -> Export:
    """Figures as `locate-NAME-METHOD-LENGTH-MEASURE`, and their tables; default: every significant loss.

    Raises Refused for a method, length or measure that is not there.
    """
    requested = {"method": methods, "length": lengths, "measure": measures}
    significant = _labels(having(summary.loss_gaps, significant=True))
    chosen = chosen_labels(requested, _labels(summary.loss_gaps), significant, "located")
    names, *places = chosen.values()
    figures = figures_of([place(summary, length, measure, names) for length, measure in product(*places)])
    if not figures:
        raise Refused(
            f"no effect is there for {labels_text(chosen)}: baseline and method do not differ, or it was not run"
        )
    return Export(figures, located_tables(summary, chosen))


def located_tables(summary: Located, chosen: Labels) -> dict[str, xr.Dataset]:
    """Loss gaps, effects and smallest sets as tables; those without rows are left out."""
    tables = {
        "loss_gaps": list(map(asdict, summary.loss_gaps)),
        "effects": list(map(asdict, summary.effects)),
        "smallest": list(_by_size(summary.smallest)),
    }
    return chosen_rows(tables, chosen, model=summary.model, trained_length=summary.trained_length)


def write_located(folder: Path, summary: Located) -> Path:
    """Writes the report and its tables in a run's folder; returns the page's path."""
    tables = located_tables(summary, {})
    return write_page(folder / LOCATED.command, title(summary), sections(summary), tables, TABLES)


def _labels(gaps: Sequence[Loss]) -> dict[str, list[Any]]:
    return {name: list(dict.fromkeys(gap.labels[name] for gap in gaps)) for name in ("method", "length", "measure")}


def _by_size(rows: Sequence[SmallestSet]) -> Iterator[Row]:
    """A row for each size of every smallest set: the head added, and the loss recovered in so many."""
    for row in rows:
        labels = {"method": row.method, "length": row.length, "measure": row.measure}
        for n, (layer, head) in enumerate(row.heads):
            columns = ("share", "low", "high", "random_low", "random", "random_high")
            shares = {name: getattr(row, name)[n] for name in columns}
            yield labels | {"size": n + 1, "layer": layer, "head": head} | shares
