"""The report of `mesa-lens eval`: one HTML file that opens offline."""

from __future__ import annotations

from pathlib import Path

from plotly.offline import get_plotlyjs

from probe.commands.eval.figures import evaluation_charts
from probe.commands.eval.result import Evaluated
from probe.commands.eval.summary import difference_tables, mean_tables
from probe.commands.eval.text import sentences
from probe.figures.render import html_embed
from probe.files import write
from probe.glossary import about, template

REPORT = "report.html"
_COSTS = ("latency",)  # tasks that are folded away


def write_eval_report(result: Evaluated, folder: Path) -> Path:
    """Writes report.html into the folder of an evaluation; returns its path."""
    write(folder / REPORT, render_evaluation(result).encode())
    return folder / REPORT


def render_evaluation(result: Evaluated) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped."""
    reference = "origin" if "origin" in result.methods else next(iter(result.methods))
    figures = {task: html_embed(chart) for task, chart in evaluation_charts(result).items()}
    cells = {is_cost: [cell for cell in result.cells if (cell.task in _COSTS) == is_cost] for is_cost in (0, 1)}
    return template("commands/eval/report.html").render(
        summary=result,
        about=about(result.model, result.trained_length, reference),
        sentences=sentences(result),
        figures=[figure for task, figure in figures.items() if task not in _COSTS],
        costs=[figure for task, figure in figures.items() if task in _COSTS],
        first=list(difference_tables(cells[0])),
        means=list(mean_tables(cells[0])),
        cost_tables=[*mean_tables(cells[1]), *difference_tables(cells[1])],
        tables=["samples"],
        plotly_js=get_plotlyjs(),
    )
