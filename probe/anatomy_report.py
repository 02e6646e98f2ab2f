"""Anatomy as HTML: the section in a probe run's report, and the report of `mesa-lens anatomy` itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from probe.attention.sentences import anatomy_findings
from probe.figures.anatomy import lens_chart, share_chart
from probe.figures.figure_data import Drawable
from probe.figures.locate import at_length
from probe.figures.mechanism_export import (
    anatomy_labels,
    anatomy_tables,
    displayed_layers,
    head_figures,
    head_rows,
    layer_figures,
)
from probe.figures.render import html_embed
from probe.figures.tables import csv_bytes
from probe.files import write
from probe.store.results import ANATOMY, Anatomy, find_anatomy, ranged

REPORT = ANATOMY.with_name("report.html")
"""Below the folder that `mesa-lens anatomy` was given."""
_COLUMNS = {
    "mean distance (tokens)": ("mean_distance", 0),
    "beyond M": ("mass_beyond", 2),
    "on token 0": ("sink", 2),
    "entropy (nats)": ("entropy", 2),
    "unmet phases": ("attention", 2),
}


@dataclass(frozen=True)
class AnatomySection:
    """What was found: sentences, figures as HTML without plotly.js, and the report with more, if it is there."""

    findings: list[str]
    figures: list[str]
    report: str | None


def anatomy_section(folder: Path) -> AnatomySection | None:
    """The section "Anatomy" of the run in the folder; None where `mesa-lens anatomy` was not run."""
    found = find_anatomy(folder)
    if found is None:
        return None
    lens = lens_chart(found, found.summary["lengths"][-1], anatomy_labels(found)["method"])
    report = REPORT.as_posix() if (folder / REPORT).is_file() else None
    return AnatomySection(anatomy_findings(found.summary), _html([lens]), report)


def write_anatomy_report(found: Anatomy, out: Path) -> Path:
    """Writes anatomy/report.html, which opens offline, and its tables as csv beside it; returns the report's path."""
    folder = (out / REPORT).parent
    folder.mkdir(parents=True, exist_ok=True)
    tables = {name: csv_bytes(table) for name, table in anatomy_tables(found, {}).items()}
    for name, content in tables.items():
        write(folder / f"{name}.csv", content)
    write(out / REPORT, render_anatomy(found, list(tables)).encode())
    return out / REPORT


def render_anatomy(found: Anatomy, tables: Iterable[str] = ()) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. tables: names of csv files beside it."""
    summary = found.summary
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("anatomy_report.html").render(
        summary=summary,
        findings=anatomy_findings(summary),
        columns=list(_COLUMNS),
        heads=[_head_row(row) for row in head_rows(summary)],
        parts=[part for length in summary["lengths"] if (part := _part(found, length))],
        vectors=_vectors(found),
        reliable=summary["vectors"]["reliable"] if summary["vectors"] else None,
        tables=list(tables),
        plotly_js=get_plotlyjs(),
    )


def told_of_heads(row: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of one row of `head_rows` with their intervals, by what they are; blank where not measured."""
    return {
        title: ranged(*row[column], digits=digits) if column in row else ""
        for title, (column, digits) in _COLUMNS.items()
    }


def _head_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: row[name] for name in ("method", "length", "span")}, "cells": list(told_of_heads(row).values())}


def _part(found: Anatomy, length: int) -> dict[str, Any] | None:
    """What one length gave: the methods together, then each with its maps; None where there is nothing."""
    methods = anatomy_labels(found)["method"]
    common = _html([lens_chart(found, length, methods)])
    each = {name: _html(head_figures(found, name, length).values()) for name in methods}
    each = {name: figures for name, figures in each.items() if figures}
    return {"title": at_length(found.summary, length), "common": common, "methods": each} if common or each else None


def _vectors(found: Anatomy) -> dict[str, Any] | None:
    methods = anatomy_labels(found)["method"]
    common = _html([share_chart(found, methods)])
    layers = {layer: _html(layer_figures(found, layer, methods).values()) for layer in displayed_layers(found)}
    return {"common": common, "layers": layers} if common else None


def _html(figures: Iterable[Drawable | None]) -> list[str]:
    return [html_embed(figure) for figure in figures if figure is not None]
