"""The report of a run: one HTML file that opens offline, its numbers as summary.json, its figures as files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from tqdm import tqdm

from probe.analysis import TOP, Analysis, analyse, summarize
from probe.exports import THRESHOLDS, panel, write_figures
from probe.figures import curves_figure, heatmap_figure, threshold_figure
from probe.findings import findings
from probe.heatmap import layer_limits
from probe.reader import open_run

_SIDE_BY_SIDE = 4  # methods in one heatmap figure


def write_report(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Analyses the run in the folder `run_dir` and writes report.html, summary.json and figures/ there.

    Returns the summary. Raises what `open_run` and `analyse` raise.
    """
    run = open_run(run_dir)
    with tqdm(total=1, desc="finding thresholds", unit="search") as bar:
        analysis = analyse(run)
        bar.update()
    summary = summarize(analysis)
    folder = run.path.parent
    write_figures(analysis, folder / "figures")
    (folder / "report.html").write_text(render(analysis, summary), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return summary


def render(analysis: Analysis, summary: dict[str, Any]) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    attrs = analysis.run.hidden.attrs
    shown = ("model", "model_revision", "source_dtype", "created", "executor", "word", "text", "seed")
    return environment.get_template("report.html").render(
        summary=summary,
        findings=findings(summary),
        top=TOP,
        curves=_html(_curves(analysis)),
        thresholds=_html(_thresholds(analysis)),
        heatmaps=_html(_heatmaps(analysis)),
        provenance={name: attrs[name] for name in shown if name in attrs},
        plotly_js=get_plotlyjs(),
    )


def _curves(analysis: Analysis) -> list[go.Figure]:
    evaluation, measured = analysis.run.evaluation, analysis.measured
    if evaluation is None or measured is None:
        return []
    predictions = analysis.predictions[analysis.prompt]
    return [curves_figure(evaluation, measured, analysis.trained_length, predictions)]


def _thresholds(analysis: Analysis) -> list[go.Figure]:
    hidden, found = analysis.hidden.sel(prompt=analysis.prompt), analysis.found.sel(prompt=analysis.prompt)
    return [threshold_figure(hidden, found, layer, dim) for layer, dim in analysis.best[:THRESHOLDS]]


def _heatmaps(analysis: Analysis) -> list[go.Figure]:
    shown = panel(analysis)
    limits = layer_limits(shown)
    starts = range(0, shown.sizes["method"], _SIDE_BY_SIDE)
    groups = [shown.isel({"method": slice(start, start + _SIDE_BY_SIDE)}) for start in starts]
    return [heatmap_figure(group, analysis.trained_length, limits) for group in groups]


def _html(figures: list[go.Figure]) -> list[str]:
    """Each figure's HTML, without plotly.js."""
    config = {"responsive": True, "displaylogo": False}
    return [figure.to_html(full_html=False, include_plotlyjs=False, config=config) for figure in figures]
