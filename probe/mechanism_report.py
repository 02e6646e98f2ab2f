"""Reports of `mesa-lens locate` and `mesa-lens anatomy` as HTML, and their sections in a run's report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import xarray as xr
from plotly.offline import get_plotlyjs

from probe.attention.result import ANATOMY, Anatomy, Measured
from probe.attention.sentences import anatomy_findings
from probe.figures import mechanism_export as export
from probe.figures.figure_data import Drawable
from probe.figures.locate import MEASURES, about, at_length
from probe.figures.render import html_embed
from probe.figures.tables import csv_bytes
from probe.files import write
from probe.glossary import template
from probe.interventions.result import LOCATED, Located, Loss
from probe.interventions.sentences import located_findings
from probe.store.results import ranged

LOCATE_REPORT, ANATOMY_REPORT = (result.path.with_name("report.html") for result in (LOCATED, ANATOMY))
"""Below the folder of the run."""
_COLUMNS = {
    "mean distance (tokens)": ("mean_distance", 0),
    "beyond M": ("mass_beyond", 2),
    "on token 0": ("sink", 2),
    "entropy (nats)": ("entropy", 2),
}


def located_section(folder: Path) -> dict[str, Any] | None:
    """The section "Where inside": the clearest loss; None where `mesa-lens locate` was not run.

    findings: sentences. figures: HTML without plotly.js. report: with more, if there is one.
    """
    summary = LOCATED.find(folder)
    if summary is None:
        return None
    findings = located_findings(summary, **_clearest(summary))
    sentences = [sentence for _, sentences in findings for sentence in sentences]
    return {"findings": sentences, "figures": _restoration_map(summary), "report": _existing(folder, LOCATE_REPORT)}


def anatomy_section(folder: Path) -> dict[str, Any] | None:
    """The section "Anatomy", as `located_section`; None where `mesa-lens anatomy` was not run."""
    summary = ANATOMY.find(folder)
    if summary is None:
        return None
    return {"findings": anatomy_findings(summary), "report": _existing(folder, ANATOMY_REPORT)}


def write_locate_report(summary: Located, out: Path) -> Path:
    """Writes locate/report.html, which opens offline, and its tables as csv beside it; returns the report's path."""
    for name in export.TABLES:
        (out / LOCATE_REPORT).with_name(f"{name}.csv").unlink(missing_ok=True)  # of an earlier run
    return _write(export.located_tables(summary, {}), render_located, summary, out / LOCATE_REPORT)


def write_anatomy_report(summary: Anatomy, out: Path) -> Path:
    """Writes anatomy/report.html, which opens offline, and its tables as csv beside it; returns the report's path."""
    return _write(export.anatomy_tables(summary, {}), render_anatomy, summary, out / ANATOMY_REPORT)


def render_located(summary: Located, tables: Iterable[str] = ()) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. tables: names of csv files beside it."""
    places = dict.fromkeys((gap.length, gap.measure) for gap in summary.loss_gaps)
    return template("locate_report.html").render(
        summary=summary,
        headline=located_findings(summary, **labels) if (labels := _clearest(summary)) else [],
        map=_restoration_map(summary),
        parts=[_located_part(summary, length, measure) for length, measure in places],
        gaps=[_gap_row(gap) for gap in summary.loss_gaps],
        tables=list(tables),
        plotly_js=get_plotlyjs(),
    )


def render_anatomy(summary: Anatomy, tables: Iterable[str] = ()) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. tables: names of csv files beside it."""
    return template("anatomy_report.html").render(
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


def _existing(folder: Path, report: Path) -> str | None:
    return report.as_posix() if (folder / report).is_file() else None


def _write(
    tables: Mapping[str, xr.Dataset], render: Callable[..., str], summary: Located | Anatomy, path: Path
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write(path.with_name(f"{name}.csv"), csv_bytes(table))
    write(path, render(summary, list(tables)).encode())
    return path


def _restoration_map(summary: Located) -> list[str]:
    """The map of the clearest loss; none where no loss is clear."""
    labels = _clearest(summary)
    return _html([export.method_figures(summary, **labels).get("map")]) if labels else []


def _clearest(summary: Located) -> dict[str, Any]:
    return {} if summary.clearest is None else summary.clearest.labels


def _located_part(summary: Located, length: int, measure: str) -> dict[str, Any]:
    """One length and measure: sentences, the methods together, then every method's figures."""
    methods = export.judged_labels(summary)["method"]
    figures = {name: _html(export.method_figures(summary, name, length, measure).values()) for name in methods}
    return {
        "title": about(summary, length, measure),
        "findings": located_findings(summary, length=length, measure=measure),
        "common": _html(export.common_figures(summary, length, measure, methods).values()),
        "methods": {name: parts for name, parts in figures.items() if parts},
    }


def _gap_row(gap: Loss) -> dict[str, Any]:
    interval = (gap.low, gap.high)
    return {
        "method": gap.method,
        "length": gap.length,
        "measure": MEASURES.get(gap.measure, gap.measure),
        "items": gap.items,
        "baseline": f"{gap.baseline:z.2f}",
        "patched": f"{gap.patched:z.2f}",
        "interval": "{:z.2f} to {:z.2f}".format(*interval) if all(end == end for end in interval) else "–",
        "judged": "yes" if gap.judged else "no",
    }


def _anatomy_part(summary: Anatomy, length: int) -> dict[str, Any] | None:
    """One length: every method's maps; None where there is nothing."""
    maps = {name: _html(export.head_figures(summary, name, length).values()) for name in summary.methods}
    maps = {name: figures for name, figures in maps.items() if figures}
    return {"title": at_length(summary, length), "methods": maps} if maps else None


def _html(figures: Iterable[Drawable | None]) -> list[str]:
    return [html_embed(figure) for figure in figures if figure is not None]
