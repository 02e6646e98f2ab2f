"""The report of `mesa-lens anatomy` as HTML, and its section in a run's report."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from probe.commands.anatomy import export
from probe.commands.anatomy.result import ANATOMY, Anatomy, Measured
from probe.commands.anatomy.sentences import anatomy_findings
from probe.figures.embedded import embedded, existing, write_with_tables
from probe.figures.figure_data import at_length
from probe.glossary import template
from probe.store.results import ranged

ANATOMY_REPORT = ANATOMY.path.with_name("report.html")
"""Below the folder of the run."""


_COLUMNS = {
    "mean distance (tokens)": ("mean_distance", 0),
    "beyond M": ("mass_beyond", 2),
    "on token 0": ("sink", 2),
    "entropy (nats)": ("entropy", 2),
}


def anatomy_section(folder: Path) -> dict[str, Any] | None:
    """The section "Anatomy", as `located_section`; None where `mesa-lens anatomy` was not run."""
    summary = ANATOMY.find(folder)
    if summary is None:
        return None
    return {"findings": anatomy_findings(summary), "report": existing(folder, ANATOMY_REPORT)}


def write_anatomy_report(summary: Anatomy, out: Path) -> Path:
    """Writes anatomy/report.html, which opens offline, and its tables as csv beside it; returns the report's path."""
    return write_with_tables(export.anatomy_tables(summary, {}), partial(render_anatomy, summary), out / ANATOMY_REPORT)


def render_anatomy(summary: Anatomy, tables: Iterable[str] = ()) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. tables: names of csv files beside it."""
    return template("commands/anatomy/report.html").render(
        summary=summary,
        findings=anatomy_findings(summary),
        columns=list(_COLUMNS),
        heads=[
            {"method": row.method, "length": row.length, "span": row.span, "cells": list(head_texts(row).values())}
            for row in summary.all_heads
        ],
        parts=[part for length in summary.lengths if (part := _anatomy_part(summary, length))],
        tables=list(tables),
        plotly_js=get_plotlyjs(),
    )


def head_texts(row: Measured) -> dict[str, str]:
    """The means over heads with their intervals, by column title."""
    return {title: ranged(*getattr(row, column), digits=digits) for title, (column, digits) in _COLUMNS.items()}


def _anatomy_part(summary: Anatomy, length: int) -> dict[str, Any] | None:
    """One length: every method's maps; None where there is nothing."""
    maps = {name: embedded(export.head_figures(summary, name, length).values()) for name in summary.methods}
    maps = {name: figures for name, figures in maps.items() if figures}
    return {"title": at_length(summary.model, summary.trained_length, length), "methods": maps} if maps else None
