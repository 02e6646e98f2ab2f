"""Every figure and table of what `mesa-lens locate` found, for files, reports and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from probe.figures.attribution_chart import attribution_chart
from probe.figures.cells import Cells
from probe.figures.export import Export, safe_name
from probe.figures.marks import Chart
from probe.figures.mechanism import head_patch_map, patch_map, restoration_map
from probe.figures.mechanism_charts import clamp_chart, layer_chart, smallest_chart
from probe.figures.render import Figure
from probe.store.results import Located, Row, having, number

_TEXTS = ("method", "measure", "kind", "way", "hook", "span", "rule", "which", "what", "with", "slope_reason")
_INDICES = "length layer head items dims size places enough n begin end offset best_offset first_unmet".split()
_JUDGED = ("judged", "dies", "keeps", "revived")
TABLES = ("gaps", "effects", "attribution", "agreement", "smallest")


def method_figures(summary: Located, method: str, length: int, measure: str) -> dict[str, Chart | Cells]:
    """The figures of one method at one length, by name, the restoration map first; without those that were not run."""
    made: dict[str, Chart | Cells | None] = {
        "map": restoration_map(summary, method, length, measure),
        "map-without": restoration_map(summary, method, length, measure, "without"),
        "patch": patch_map(summary, method, length, measure),
        "patch-break": patch_map(summary, method, length, measure, "break"),
        "patch-heads": head_patch_map(summary, method, length, measure),
        "patch-heads-break": head_patch_map(summary, method, length, measure, "break"),
    }
    for hook in dict.fromkeys(row["hook"] for row in summary["attribution"]):
        made[f"attribution-{hook}"] = attribution_chart(summary, method, length, measure, hook)
    rules = dict.fromkeys(row.get("rule") for row in having(summary["effects"], kind="clamp"))
    for rule in rules:
        name = f"clamp-{safe_name(rule)}" if rule else "clamp"
        made[name] = clamp_chart(summary, method, length, measure, rule)
    return {name: figure for name, figure in made.items() if figure is not None}


def common_figures(summary: Located, length: int, measure: str, methods: Sequence[str]) -> dict[str, Chart | Cells]:
    """The figures of several methods at one length, by name; without those that were not run."""
    made = {
        "layers": layer_chart(summary, length, measure, methods),
        "smallest": smallest_chart(summary, length, measure, methods),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def gone_over(summary: Located) -> dict[str, list[Any]]:
    """The methods, lengths and measures of the summary that are judged somewhere, each in its order."""
    judged = [gap for gap in summary["gaps"] if gap["judged"]]
    return {name: list(dict.fromkeys(gap[name] for gap in judged)) for name in ("method", "length", "measure")}


def located_export(
    summary: Located,
    methods: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    measures: Sequence[str] | None = None,
) -> Export:
    """Figures as `locate-NAME-METHOD-LENGTH-MEASURE`, and the tables behind them; default: all that is judged.

    Raises ValueError for a method, length or measure that is not there.
    """
    asked = {"method": methods, "length": lengths, "measure": measures}
    known = {name: list(dict.fromkeys(gap[name] for gap in summary["gaps"])) for name in asked}
    for name, values in asked.items():
        for value in values or ():
            if value not in known[name]:
                raise ValueError(f"{name} {value!r} was not gone over; known: {', '.join(map(str, known[name]))}")
    chosen = {name: list(values or gone_over(summary)[name]) for name, values in asked.items()}
    figures: dict[str, Figure] = {}
    for length in chosen["length"]:
        for measure in chosen["measure"]:
            end = f"{length}-{measure}"
            common = common_figures(summary, length, measure, chosen["method"])
            figures |= {f"locate-{name}-{end}": figure for name, figure in common.items()}
            for method in chosen["method"]:
                own = method_figures(summary, method, length, measure)
                figures |= {f"locate-{name}-{safe_name(method)}-{end}": figure for name, figure in own.items()}
    if not figures:
        wanted = "; ".join(f"{name} {', '.join(map(str, values)) or 'any'}" for name, values in chosen.items())
        raise ValueError(f"no effect is there for {wanted}: broken and mended do not differ, or it was not run")
    return Export(figures, located_tables(summary, chosen))


def located_tables(summary: Located, chosen: Mapping[str, Sequence[Any]]) -> dict[str, xr.Dataset]:
    """Gaps, effects, smallest sets, attribution and agreement as tables, a row each; those with no row are left out."""
    tables = {name: summary.get(name, ()) for name in TABLES} | {"smallest": _by_size(summary["smallest"])}
    kept = {
        name: [row for row in rows if all(row[label] in values for label, values in chosen.items())]
        for name, rows in tables.items()
    }
    attrs = {name: summary[name] for name in ("model", "trained_length")}
    return {name: row_table(rows).assign_attrs(attrs) for name, rows in kept.items() if rows}


def _by_size(found: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each size of every smallest set: the head added, and what so many restore."""
    rows = []
    for each in found:
        labels = {name: each[name] for name in ("method", "length", "measure")}
        for n, (layer, head) in enumerate(each["heads"]):
            lists = ("share", "low", "high", "random_low", "random", "random_high")
            scores = {name: each[name][n] for name in lists}
            rows.append(labels | {"size": n + 1, "layer": layer, "head": head} | scores)
    return rows


def row_table(rows: Sequence[Row]) -> xr.Dataset:
    """Columns over `row`: texts, whole numbers and numbers, blank or NaN where there is none."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name in _TEXTS:
            columns[name] = ("row", ["" if value is None else str(value) for value in values])
        elif name in _JUDGED:
            columns[name] = ("row", [bool(value) for value in values])
        else:
            units = {"units": "index"} if name in _INDICES else {}
            columns[name] = ("row", [number(value) for value in values], units)
    return xr.Dataset(columns)
