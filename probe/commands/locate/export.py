"""Figures and tables of what `mesa-lens locate` measured, for files, reports and pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import xarray as xr

from mesa.errors import Refused
from probe.commands.locate.figures import clamp_chart, layer_chart, restoration_map, smallest_chart
from probe.commands.locate.result import Located, Loss, SmallestSet
from probe.figures.chosen import Figures, Labels, chosen_labels, chosen_rows, labels_text, present
from probe.figures.export import Export, safe_name
from probe.figures.figure_data import Figure
from probe.store.result_file import having

TABLES = ("loss_gaps", "effects", "smallest")


def method_figures(summary: Located, method: str, length: int, measure: str) -> Figures:
    """The located figures of one method at one length, by name, the restoration map first; without those not run."""
    at = (summary, method, length, measure)
    rules = dict.fromkeys(row.rule for row in having(summary.effects, kind="clamp"))
    clamps = {f"clamp-{safe_name(rule)}" if rule else "clamp": clamp_chart(*at, rule) for rule in rules}
    return present({"map": restoration_map(*at), "map-without": restoration_map(*at, "without"), **clamps})


def common_figures(summary: Located, length: int, measure: str, methods: Sequence[str]) -> Figures:
    """The located figures of several methods at one length, by name; without those not run."""
    at = (summary, length, measure, methods)
    return present({"layers": layer_chart(*at), "smallest": smallest_chart(*at)})


def judged_labels(summary: Located) -> dict[str, list[Any]]:
    """The methods, lengths and measures with a judged loss in the summary, each in its order."""
    return _labels(having(summary.loss_gaps, judged=True))


def located_export(
    summary: Located,
    methods: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    measures: Sequence[str] | None = None,
) -> Export:
    """Figures as `locate-NAME-METHOD-LENGTH-MEASURE`, and their tables; default: everything judged.

    Raises Refused for a method, length or measure that is not there.
    """
    requested = {"method": methods, "length": lengths, "measure": measures}
    chosen = chosen_labels(requested, _labels(summary.loss_gaps), judged_labels(summary), "located")
    figures: dict[str, Figure] = {}
    for at in product(chosen["length"], chosen["measure"]):
        parts = {"": common_figures(summary, *at, chosen["method"])}
        parts |= {f"{safe_name(method)}-": method_figures(summary, method, *at) for method in chosen["method"]}
        for part, (name, figure) in ((part, item) for part, named in parts.items() for item in named.items()):
            figures[f"locate-{name}-{part}{at[0]}-{at[1]}"] = figure
    if not figures:
        raise Refused(
            f"no effect is there for {labels_text(chosen)}: baseline and method do not differ, or it was not run"
        )
    return Export(figures, located_tables(summary, chosen))


def located_tables(summary: Located, chosen: Labels) -> dict[str, xr.Dataset]:
    """Loss gaps, effects and smallest sets as tables; those without rows are left out."""
    tables = {
        "loss_gaps": list(map(asdict, summary.loss_gaps)),
        "effects": list(map(asdict, summary.effects)),
        "smallest": list(_by_size(summary.smallest)),
    }
    return chosen_rows(tables, chosen, model=summary.model, trained_length=summary.trained_length)


def _labels(gaps: Sequence[Loss]) -> dict[str, list[Any]]:
    return {name: list(dict.fromkeys(gap.labels[name] for gap in gaps)) for name in ("method", "length", "measure")}


def _by_size(rows: Sequence[SmallestSet]) -> Iterator[dict[str, Any]]:
    """A row for each size of every smallest set: the head added, and what so many restore."""
    for row in rows:
        labels = {"method": row.method, "length": row.length, "measure": row.measure}
        for n, (layer, head) in enumerate(row.heads):
            columns = ("share", "low", "high", "random_low", "random", "random_high")
            shares = {name: getattr(row, name)[n] for name in columns}
            yield labels | {"size": n + 1, "layer": layer, "head": head} | shares
