"""Which methods, lengths and measures of a summary an export takes, and its rows as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from mesa.errors import Refused
from probe.figures.figure_data import Drawable
from probe.figures.tables import row_table

Labels = Mapping[str, Sequence[Any]]
Figures = dict[str, Drawable]
Row = dict[str, Any]


def present(figures: Mapping[str, Drawable | None]) -> Figures:
    """The figures that there are."""
    return {name: figure for name, figure in figures.items() if figure is not None}


def labels_text(chosen: Labels) -> str:
    """The labels in words, for an error."""
    return "; ".join(f"{name} {', '.join(map(str, values)) or 'any'}" for name, values in chosen.items())


def chosen_labels(requested: Mapping[str, Sequence[Any] | None], known: Labels, default: Labels, verb: str) -> Labels:
    """The labels requested, or the default ones; Refused for one that is not known."""
    for name, values in requested.items():
        for value in values or ():
            if value not in known[name]:
                raise Refused(f"{name} {value!r} was not {verb}; known: {', '.join(map(str, known[name]))}")
    return {name: list(values or default[name]) for name, values in requested.items()}


def chosen_rows(
    tables: Mapping[str, Sequence[Row]], chosen: Labels, *, model: str, trained_length: int
) -> dict[str, xr.Dataset]:
    """The tables' rows with the chosen labels, without empty tables; a row without a label has all of them."""
    attrs = {"model": model, "trained_length": trained_length}
    kept = {
        name: [row for row in rows if all(row.get(label, values[0]) in values for label, values in chosen.items())]
        for name, rows in tables.items()
    }
    return {name: row_table(rows).assign_attrs(attrs) for name, rows in kept.items() if rows}
