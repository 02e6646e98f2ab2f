"""What the reports of several commands share: figures embedded, tables beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import xarray as xr

from probe.figures.figure_data import Drawable
from probe.figures.render import html_embed
from probe.figures.tables import csv_bytes
from probe.files import write


def existing(folder: Path, report: Path) -> str | None:
    """The report's path as text, if it is in the folder."""
    return report.as_posix() if (folder / report).is_file() else None


def write_with_tables(tables: Mapping[str, xr.Dataset], render: Callable[[list[str]], str], path: Path) -> Path:
    """Writes the tables as csv beside the report, then the report of their names; returns the report's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write(path.with_name(f"{name}.csv"), csv_bytes(table))
    write(path, render(list(tables)).encode())
    return path


def embedded(figures: Iterable[Drawable | None]) -> list[str]:
    """The figures that there are, as HTML without plotly.js."""
    return [html_embed(figure) for figure in figures if figure is not None]
