"""Figures and tables of what `mesa-lens anatomy` measured, for files, reports and pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from mesa.errors import Refused
from probe.commands.anatomy.result import ANATOMY, TABLES, Anatomy, Mean
from probe.commands.anatomy.sections import place, sections, title
from probe.figures.export import Export
from probe.figures.labels import Labels, Row, chosen_labels, chosen_rows, labels_text
from probe.figures.section import figures_of, write_page


def anatomy_export(
    summary: Anatomy, methods: Sequence[str] | None = None, lengths: Sequence[int] | None = None
) -> Export:
    """Figures as `anatomy-NAME-METHOD-LENGTH`, and their tables; default: all.

    Raises Refused for a method or length that is not there.
    """
    known = {"method": list(summary.methods), "length": summary.lengths}
    chosen = chosen_labels({"method": methods, "length": lengths}, known, known, "measured")
    names, measured = chosen.values()
    figures = figures_of([place(summary, length, names) for length in measured])
    if not figures:
        raise Refused(f"nothing is there for {labels_text(chosen)}; run those --parts of `mesa-lens anatomy`")
    return Export(figures, anatomy_tables(summary, chosen))


def anatomy_tables(summary: Anatomy, chosen: Labels) -> dict[str, xr.Dataset]:
    """The measurements as tables; those without rows are left out. chosen: labels to keep, all if empty."""
    tables = {name: [_flat(row) for row in getattr(summary, name)] for name in ("heads", "all_heads", "retrieval")}
    tables["retrieval_heads"] = [  # a row for each head that retrieves inside M and each method beyond it
        {"method": method, **_flat(head), **_flat({"beyond": beyond, "recovered": method in head.recovered_by})}
        for head in summary.retrieval_heads
        for method, beyond in head.beyond.items()
    ]
    return chosen_rows(tables, chosen, model=summary.model, trained_length=summary.trained_length)


def write_anatomy(folder: Path, summary: Anatomy) -> Path:
    """Writes the report and its tables in a run's folder; returns the page's path."""
    tables = anatomy_tables(summary, {})
    return write_page(folder / ANATOMY.command, title(summary), sections(summary), tables, TABLES)


def _flat(row: Any) -> Row:
    """The row with a column for each text and number, and for the ends of intervals _low and _high; no lists."""
    flat: Row = {}
    for name, value in (row if isinstance(row, dict) else vars(row)).items():
        if isinstance(value, Mean):
            flat |= zip((name, f"{name}_low", f"{name}_high"), value, strict=True)
        elif isinstance(value, str | float | int):
            flat[name] = value
    return flat
