"""The report of `mesa-lens locate` as HTML, and its section in a run's report."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from probe.commands.locate import export
from probe.commands.locate.figures import MEASURES, about
from probe.commands.locate.result import LOCATED, Located, Loss
from probe.commands.locate.sentences import located_findings
from probe.figures.embedded import embedded, existing, write_with_tables
from probe.glossary import template

LOCATE_REPORT = LOCATED.path.with_name("report.html")
"""Below the folder of the run."""


def located_section(folder: Path) -> dict[str, Any] | None:
    """The section "Where inside": the clearest loss; None where `mesa-lens locate` was not run.

    findings: sentences. figures: HTML without plotly.js. report: with more, if there is one.
    """
    summary = LOCATED.find(folder)
    if summary is None:
        return None
    findings = located_findings(summary, **_clearest(summary))
    sentences = [sentence for _, sentences in findings for sentence in sentences]
    return {"findings": sentences, "figures": _restoration_map(summary), "report": existing(folder, LOCATE_REPORT)}


def write_locate_report(summary: Located, out: Path) -> Path:
    """Writes locate/report.html, which opens offline, and its tables as csv beside it; returns the report's path."""
    for name in export.TABLES:
        (out / LOCATE_REPORT).with_name(f"{name}.csv").unlink(missing_ok=True)  # of an earlier run
    return write_with_tables(export.located_tables(summary, {}), partial(render_located, summary), out / LOCATE_REPORT)


def render_located(summary: Located, tables: Iterable[str] = ()) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. tables: names of csv files beside it."""
    places = dict.fromkeys((gap.length, gap.measure) for gap in summary.loss_gaps)
    return template("commands/locate/report.html").render(
        summary=summary,
        headline=located_findings(summary, **labels) if (labels := _clearest(summary)) else [],
        map=_restoration_map(summary),
        parts=[_located_part(summary, length, measure) for length, measure in places],
        gaps=[_gap_row(gap) for gap in summary.loss_gaps],
        tables=list(tables),
        plotly_js=get_plotlyjs(),
    )


def _restoration_map(summary: Located) -> list[str]:
    """The map of the clearest loss; none where no loss is clear."""
    labels = _clearest(summary)
    return embedded([export.method_figures(summary, **labels).get("map")]) if labels else []


def _clearest(summary: Located) -> dict[str, Any]:
    return {} if summary.clearest is None else summary.clearest.labels


def _located_part(summary: Located, length: int, measure: str) -> dict[str, Any]:
    """One length and measure: sentences, the methods together, then every method's figures."""
    methods = export.judged_labels(summary)["method"]
    figures = {name: embedded(export.method_figures(summary, name, length, measure).values()) for name in methods}
    return {
        "title": about(summary, length, measure),
        "findings": located_findings(summary, length=length, measure=measure),
        "common": embedded(export.common_figures(summary, length, measure, methods).values()),
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
