"""Reports of `mesa-lens locate` and `mesa-lens anatomy` as HTML, and their sections in a run's report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import xarray as xr
from plotly.offline import get_plotlyjs

from probe.attention.sentences import anatomy_findings
from probe.figures.anatomy import lens_chart, share_chart
from probe.figures.figure_data import Drawable
from probe.figures.locate import MEASURES, about, at_length
from probe.figures.mechanism_export import (
    TABLES,
    anatomy_labels,
    anatomy_tables,
    common_figures,
    displayed_layers,
    head_figures,
    head_rows,
    judged_labels,
    layer_figures,
    located_tables,
    method_figures,
)
from probe.figures.render import html_embed
from probe.figures.tables import csv_bytes
from probe.files import write
from probe.interventions.sentences import located_findings
from probe.store.results import (
    ANATOMY,
    LOCATED,
    Anatomy,
    Located,
    find_anatomy,
    find_located,
    headline,
    number,
    ranged,
)

LOCATE_REPORT, ANATOMY_REPORT = (summary.with_name("report.html") for summary in (LOCATED, ANATOMY))
"""Below the folder of the run."""
_COLUMNS = {
    "mean distance (tokens)": ("mean_distance", 0),
    "beyond M": ("mass_beyond", 2),
    "on token 0": ("sink", 2),
    "entropy (nats)": ("entropy", 2),
    "unmet phases": ("attention", 2),
}


@dataclass(frozen=True)
class Section:
    """Sentences, figures as HTML without plotly.js, and the report with more, if there is one."""

    findings: list[str]
    figures: list[str]
    report: str | None


def located_section(folder: Path) -> Section | None:
    """The section "Where inside": the clearest loss; None where `mesa-lens locate` was not run."""
    summary = find_located(folder)
    if summary is None:
        return None
    clearest = headline(summary)
    findings = located_findings(summary, **(clearest or {}))
    sentences = [sentence for _, sentences in findings for sentence in sentences]
    return Section(sentences, _restoration_map(summary), _existing(folder, LOCATE_REPORT))


def anatomy_section(folder: Path) -> Section | None:
    """The section "Anatomy": the logit lens; None where `mesa-lens anatomy` was not run."""
    anatomy = find_anatomy(folder)
    if anatomy is None:
        return None
    lens = lens_chart(anatomy, anatomy.summary["lengths"][-1], anatomy_labels(anatomy)["method"])
    return Section(anatomy_findings(anatomy.summary), _html([lens]), _existing(folder, ANATOMY_REPORT))


def write_locate_report(summary: Located, out: Path) -> Path:
    """Writes locate/report.html, which opens offline, and its tables as csv beside it; returns the report's path."""
    for name in TABLES:
        (out / LOCATE_REPORT).with_name(f"{name}.csv").unlink(missing_ok=True)  # of an earlier run
    tables = _write_tables(located_tables(summary, {}), (out / LOCATE_REPORT).parent)
    write(out / LOCATE_REPORT, render_located(summary, tables).encode())
    return out / LOCATE_REPORT


def write_anatomy_report(anatomy: Anatomy, out: Path) -> Path:
    """Writes anatomy/report.html, which opens offline, and its tables as csv beside it; returns the report's path."""
    tables = _write_tables(anatomy_tables(anatomy, {}), (out / ANATOMY_REPORT).parent)
    write(out / ANATOMY_REPORT, render_anatomy(anatomy, tables).encode())
    return out / ANATOMY_REPORT


def render_located(summary: Located, tables: Iterable[str] = ()) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. tables: names of csv files beside it."""
    clearest = headline(summary)
    places = dict.fromkeys((gap["length"], gap["measure"]) for gap in summary["gaps"])
    return template("locate_report.html").render(
        summary=summary,
        headline=located_findings(summary, **clearest) if clearest else [],
        map=_restoration_map(summary),
        parts=[_located_part(summary, length, measure) for length, measure in places],
        gaps=[_gap_row(gap) for gap in summary["gaps"]],
        tables=list(tables),
        plotly_js=get_plotlyjs(),
    )


def render_anatomy(anatomy: Anatomy, tables: Iterable[str] = ()) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. tables: names of csv files beside it."""
    summary = anatomy.summary
    return template("anatomy_report.html").render(
        summary=summary,
        findings=anatomy_findings(summary),
        columns=list(_COLUMNS),
        heads=[
            {**{name: row[name] for name in ("method", "length", "span")}, "cells": list(head_texts(row).values())}
            for row in head_rows(summary)
        ],
        parts=[part for length in summary["lengths"] if (part := _anatomy_part(anatomy, length))],
        vectors=_vectors(anatomy),
        reliable=summary["vectors"]["reliable"] if summary["vectors"] else None,
        tables=list(tables),
        plotly_js=get_plotlyjs(),
    )


def head_texts(row: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of one row of `head_rows` with their intervals, by column title; blank where not measured."""
    return {
        title: ranged(*row[column], digits=digits) if column in row else ""
        for title, (column, digits) in _COLUMNS.items()
    }


def template(name: str) -> jinja2.Template:
    """The package's HTML template of that name; every text is escaped, a missing one is an error."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template(name)


def _existing(folder: Path, report: Path) -> str | None:
    return report.as_posix() if (folder / report).is_file() else None


def _write_tables(tables: Mapping[str, xr.Dataset], folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write(folder / f"{name}.csv", csv_bytes(table))
    return list(tables)


def _restoration_map(summary: Located) -> list[str]:
    """The map of the clearest loss; none where no loss is clear."""
    clearest = headline(summary)
    return _html([method_figures(summary, **clearest).get("map")]) if clearest else []


def _located_part(summary: Located, length: int, measure: str) -> dict[str, Any]:
    """One length and measure: sentences, the methods together, then every method's figures."""
    methods = judged_labels(summary)["method"]
    figures = {name: _html(method_figures(summary, name, length, measure).values()) for name in methods}
    return {
        "title": about(summary, length, measure),
        "findings": located_findings(summary, length=length, measure=measure),
        "common": _html(common_figures(summary, length, measure, methods).values()),
        "methods": {name: parts for name, parts in figures.items() if parts},
    }


def _gap_row(gap: Mapping[str, Any]) -> dict[str, Any]:
    interval = [number(gap[name]) for name in ("low", "high")]
    return {
        "method": gap["method"],
        "length": gap["length"],
        "measure": MEASURES.get(gap["measure"], gap["measure"]),
        "items": gap["items"],
        "broken": f"{number(gap['broken']):z.2f}",
        "mended": f"{number(gap['mended']):z.2f}",
        "interval": "{:z.2f} to {:z.2f}".format(*interval) if all(end == end for end in interval) else "–",
        "judged": "yes" if gap["judged"] else "no",
    }


def _anatomy_part(anatomy: Anatomy, length: int) -> dict[str, Any] | None:
    """One length: the methods together, then every method's maps; None where there is nothing."""
    methods = anatomy_labels(anatomy)["method"]
    common = _html([lens_chart(anatomy, length, methods)])
    maps = {name: _html(head_figures(anatomy, name, length).values()) for name in methods}
    maps = {name: figures for name, figures in maps.items() if figures}
    return {"title": at_length(anatomy.summary, length), "common": common, "methods": maps} if common or maps else None


def _vectors(anatomy: Anatomy) -> dict[str, Any] | None:
    methods = anatomy_labels(anatomy)["method"]
    common = _html([share_chart(anatomy, methods)])
    layers = {layer: _html(layer_figures(anatomy, layer, methods).values()) for layer in displayed_layers(anatomy)}
    return {"common": common, "layers": layers} if common else None


def _html(figures: Iterable[Drawable | None]) -> list[str]:
    return [html_embed(figure) for figure in figures if figure is not None]
