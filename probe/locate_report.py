"""Where inside, as HTML: the section in a probe run's report, and the report of `mesa-lens locate` itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from probe.figures.figure_data import Drawable
from probe.figures.locate import MEASURES, about
from probe.figures.mechanism_export import TABLES, common_figures, judged_labels, located_tables, method_figures
from probe.figures.render import html_embed
from probe.figures.tables import csv_bytes
from probe.files import write
from probe.interventions.sentences import located_findings
from probe.store.results import LOCATED, Located, find_located, headline, number

REPORT = LOCATED.with_name("report.html")
"""Below the folder that `mesa-lens locate` was given."""


@dataclass(frozen=True)
class Section:
    """What the clearest loss was traced to: sentences, figures as HTML without plotly.js, and whether more is there."""

    findings: list[tuple[str, list[str]]]
    figures: list[str]
    report: str | None


def located_section(folder: Path) -> Section | None:
    """The section "Where inside" of the run in the folder; None where `mesa-lens locate` was not run."""
    summary = find_located(folder)
    if summary is None:
        return None
    report = REPORT.as_posix() if (folder / REPORT).is_file() else None
    shown = headline(summary)
    if shown is None:
        return Section(located_findings(summary), [], report)
    own = method_figures(summary, **shown)
    return Section(located_findings(summary, **shown), _html(own[name] for name in own if name == "map"), report)


def write_locate_report(summary: Located, out: Path) -> Path:
    """Writes locate/report.html, which opens offline, and its tables as csv beside it; returns the report's path."""
    folder = (out / REPORT).parent
    folder.mkdir(parents=True, exist_ok=True)
    tables = {name: csv_bytes(table) for name, table in located_tables(summary, {}).items()}
    for name in TABLES:
        (folder / f"{name}.csv").unlink(missing_ok=True)  # an earlier run's, where this one has none
    for name, content in tables.items():
        write(folder / f"{name}.csv", content)
    write(out / REPORT, render_located(summary, list(tables)).encode())
    return out / REPORT


def render_located(summary: Located, tables: Iterable[str] = ()) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. tables: names of csv files beside it."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    shown = headline(summary)
    clear = located_findings(summary, **shown) if shown else []
    return environment.get_template("locate_report.html").render(
        summary=summary,
        headline=clear,
        map=_html([figure for figure in [method_figures(summary, **shown).get("map")] if figure] if shown else []),
        parts=[_part(summary, length, measure) for length, measure in _places(summary)],
        gaps=[_gap_row(gap) for gap in summary["gaps"]],
        tables=list(tables),
        plotly_js=get_plotlyjs(),
    )


def _places(summary: Located) -> list[tuple[int, str]]:
    return list(dict.fromkeys((gap["length"], gap["measure"]) for gap in summary["gaps"]))


def _part(summary: Located, length: int, measure: str) -> dict[str, Any]:
    """What one length and measure gave: sentences, the methods together, then each with its own figures."""
    methods = judged_labels(summary)["method"]
    each = {name: _html(method_figures(summary, name, length, measure).values()) for name in methods}
    return {
        "title": about(summary, length, measure),
        "findings": located_findings(summary, length=length, measure=measure),
        "common": _html(common_figures(summary, length, measure, methods).values()),
        "methods": {name: figures for name, figures in each.items() if figures},
    }


def _gap_row(gap: Any) -> dict[str, Any]:
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


def _html(figures: Iterable[Drawable]) -> list[str]:
    return [html_embed(figure) for figure in figures]
