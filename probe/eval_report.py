"""The report of `mesa-lens eval`: one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from probe.evaluation.summary import difference_tables, mean_tables
from probe.evaluation.text import sentences
from probe.figures.curves import evaluation_charts
from probe.figures.render import html_embed
from probe.files import write
from probe.glossary import template
from probe.verdict.verdict import about

REPORT = "report.html"
_COSTS = ("latency",)  # tasks that are folded away


def write_eval_report(summary: Mapping[str, Any], folder: Path) -> Path:
    """Writes report.html into the folder of an evaluation; returns its path."""
    write(folder / REPORT, render_evaluation(summary).encode())
    return folder / REPORT


def render_evaluation(summary: Mapping[str, Any]) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped."""
    methods = summary["methods"]
    reference = "origin" if "origin" in methods else next(iter(methods))
    figures = {task: html_embed(chart) for task, chart in evaluation_charts(summary).items()}
    cells = {is_cost: [cell for cell in summary["cells"] if (cell["task"] in _COSTS) == is_cost] for is_cost in (0, 1)}
    return template("eval_report.html").render(
        summary=summary,
        about=about(summary["model"], summary["trained_length"], reference),
        sentences=sentences(summary),
        figures=[figure for task, figure in figures.items() if task not in _COSTS],
        costs=[figure for task, figure in figures.items() if task in _COSTS],
        first=list(difference_tables(cells[0])),
        means=list(mean_tables(cells[0])),
        cost_tables=[*mean_tables(cells[1]), *difference_tables(cells[1])],
        tables=["samples"],
        plotly_js=get_plotlyjs(),
    )
