"""Scores of an evaluation, as sections of a page."""

from __future__ import annotations

from probe.commands.eval.figures import evaluation_charts
from probe.commands.eval.result import Evaluated
from probe.commands.eval.summary import difference_tables, mean_tables
from probe.commands.eval.text import sentences
from probe.figures.section import Section
from probe.glossary import about

_COSTS = ("latency",)  # tasks that are folded away


def title(result: Evaluated) -> str:
    """The page's heading."""
    return f"{result.model}: scores by prompt length"


def sections(result: Evaluated) -> list[Section]:
    """Differences to the reference and charts by length first; all scores, and what they cost, folded."""
    reference = "origin" if "origin" in result.methods else next(iter(result.methods))
    charts = evaluation_charts(result)
    scores, costs = ([cell for cell in result.cells if (cell.task in _COSTS) == is_cost] for is_cost in (False, True))
    drawn = {task: chart for task, chart in charts.items() if task not in _COSTS}
    parts = [
        Section("", [about(result.model, result.trained_length, reference)], drawn),
        Section("", sentences(result), tables=list(difference_tables(scores))),
        Section("All scores", tables=list(mean_tables(scores)), folded=True),
    ]
    if costs:
        cost_charts = {task: chart for task, chart in charts.items() if task in _COSTS}
        tables = [*mean_tables(costs), *difference_tables(costs)]
        parts.append(Section("Time and memory", figures=cost_charts, tables=tables, folded=True))
    return parts
