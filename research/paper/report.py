"""One HTML file with a section for every figure and table of the paper that was run; opens offline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from probe.commands.eval.page import evaluation_charts, harness_table, score_tables, sentences
from probe.commands.probe.verdict import Summary
from probe.figures.curves import curves_chart
from probe.figures.export import html_embed
from probe.figures.figure_data import Drawable
from probe.figures.heatmap import default_regions, heatmap_grid, layer_limits, pool, regions
from probe.figures.states import threshold_chart
from probe.files import write, write_json
from probe.store.reader import open_run
from probe.store.result_file import as_json
from probe.thresholds.analysis import analyse
from research.paper.config import PaperConfig
from research.paper.sections import SECTIONS

_HERE = Path(__file__).parent
REPORTED = ("report.html", "results.json")
_SHOWN_DIMS = 2
_HEATMAP_METHODS = 4


@dataclass(frozen=True)
class Outcome:
    """What a section gave: a command's result, or why it was left out. failed: cells that no worker could finish."""

    result: Any = None
    left_out: str = ""
    failed: Sequence[Any] = ()

    def as_json(self) -> dict[str, Any]:
        """The result as its file holds it, or the reason."""
        if self.result is None:
            return {"left_out": self.left_out, **({"failed": self.failed} if self.failed else {})}
        return as_json(self.result)


def write_report(config: PaperConfig, results: Mapping[str, Outcome], out: Path) -> Path:
    """Writes report.html and results.json into `out`; returns the report's path."""
    printed = json.loads((_HERE / "printed.json").read_text(encoding="utf-8"))
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        (_HERE / "report.html").read_text(encoding="utf-8")
    )
    sections = [
        {
            "section": SECTIONS[name],
            "left_out": result.left_out,
            "printed": [printed[table] for table in SECTIONS[name].printed],
            **_content(name, result, out / name),
        }
        for name, result in results.items()
    ]
    page = template.render(config=config, sections=sections, plotly_js=Markup(get_plotlyjs()))
    write(out / "report.html", page.encode())
    given = {name: result.as_json() for name, result in results.items()}
    write_json(out / "results.json", {"model": config.model, "sections": given})
    return out / "report.html"


def _content(name: str, outcome: Outcome, folder: Path) -> dict[str, Any]:
    """Figures (HTML), tables and sentences of a section."""
    empty: dict[str, Any] = {"figures": [], "tables": [], "words": []}
    result = outcome.result
    if result is None:
        return empty
    if name == "probe":
        return _probe(result, folder)
    if SECTIONS[name].by_lm_eval:
        return {**empty, "tables": [harness_table(result)]}
    charts = evaluation_charts(result)
    return {
        "figures": [Markup(html_embed(chart)) for chart in charts.values()],
        "tables": list(score_tables(result.cells)),
        "words": sentences(result),
    }


def _probe(summary: Summary, folder: Path) -> dict[str, Any]:
    run = open_run(folder)
    analysis = analyse(run)
    hidden, crossings = analysis.hidden.sel(prompt=analysis.prompt), analysis.crossings.sel(prompt=analysis.prompt)
    figures: list[Drawable] = [
        threshold_chart(hidden, crossings, layer, dim) for layer, dim in analysis.best[:_SHOWN_DIMS]
    ]
    if run.evaluation is not None and analysis.measured is not None:
        figures.append(curves_chart(run.evaluation, analysis.measured, analysis.trained_length))
    bounds = default_regions(hidden["position"].values, run.trained_length)
    panel = regions(hidden.isel({"method": slice(_HEATMAP_METHODS)}), bounds)
    figures.append(heatmap_grid(pool(panel.load()), run.trained_length, layer_limits(panel)))
    verdict = summary.verdict
    table = {"title": "Methods, ranked (lengths in tokens)", "head": verdict.head, "rows": verdict.cells}
    text = [f"{sentence.heading}: {sentence.text}" for sentence in verdict.sentences] + verdict.notes
    if omitted := hidden["method"].values.tolist()[_HEATMAP_METHODS:]:
        text.append(f"The heatmap shows the first {_HEATMAP_METHODS} methods, without {', '.join(omitted)}.")
    return {"figures": [Markup(html_embed(figure)) for figure in figures], "tables": [table], "words": text}
