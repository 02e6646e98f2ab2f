"""Figures and tables of what `mesa-lens locate` and `mesa-lens anatomy` measured, for files, reports and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import xarray as xr

from probe.figures.anatomy import STATISTICS, head_map
from probe.figures.export import Export, safe_name
from probe.figures.figure_data import Chart, Figure, Heatmaps
from probe.figures.locate import clamp_chart, layer_chart, restoration_map, smallest_chart
from probe.figures.tables import row_table
from probe.store.results import Anatomy, Located, Row, having, number

TABLES = ("loss_gaps", "effects", "smallest")
_ANATOMY_TABLES = ("heads", "all_heads", "retrieval")
Labels = Mapping[str, Sequence[Any]]
T = TypeVar("T")


def method_figures(summary: Located, method: str, length: int, measure: str) -> dict[str, Chart | Heatmaps]:
    """The located figures of one method at one length, by name, the restoration map first; without those not run."""
    at = (summary, method, length, measure)
    figures: dict[str, Chart | Heatmaps | None] = {
        "map": restoration_map(*at),
        "map-without": restoration_map(*at, "without"),
    }
    for rule in dict.fromkeys(row.get("rule") for row in having(summary["effects"], kind="clamp")):
        figures[f"clamp-{safe_name(rule)}" if rule else "clamp"] = clamp_chart(*at, rule)
    return _present(figures)


def common_figures(summary: Located, length: int, measure: str, methods: Sequence[str]) -> dict[str, Chart]:
    """The located figures of several methods at one length, by name; without those not run."""
    figures = {"layers": layer_chart, "smallest": smallest_chart}
    return _present({name: chart(summary, length, measure, methods) for name, chart in figures.items()})


def judged_labels(summary: Located) -> dict[str, list[Any]]:
    """The methods, lengths and measures with a judged loss in the summary, each in its order."""
    judged = [gap for gap in summary["loss_gaps"] if gap["judged"]]
    return {name: list(dict.fromkeys(gap[name] for gap in judged)) for name in ("method", "length", "measure")}


def located_export(
    summary: Located,
    methods: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    measures: Sequence[str] | None = None,
) -> Export:
    """Figures as `locate-NAME-METHOD-LENGTH-MEASURE`, and their tables; default: everything judged.

    Raises ValueError for a method, length or measure that is not there.
    """
    requested = {"method": methods, "length": lengths, "measure": measures}
    known = {name: list(dict.fromkeys(gap[name] for gap in summary["loss_gaps"])) for name in requested}
    chosen = _chosen(requested, known, judged_labels(summary), "located")
    figures: dict[str, Figure] = {}
    for length in chosen["length"]:
        for measure in chosen["measure"]:
            end = f"{length}-{measure}"
            for name, figure in common_figures(summary, length, measure, chosen["method"]).items():
                figures[f"locate-{name}-{end}"] = figure
            for method in chosen["method"]:
                for name, figure in method_figures(summary, method, length, measure).items():
                    figures[f"locate-{name}-{safe_name(method)}-{end}"] = figure
    if not figures:
        wanted = "; ".join(f"{name} {', '.join(map(str, values)) or 'any'}" for name, values in chosen.items())
        raise ValueError(f"no effect is there for {wanted}: baseline and method do not differ, or it was not run")
    return Export(figures, located_tables(summary, chosen))


def located_tables(summary: Located, chosen: Labels) -> dict[str, xr.Dataset]:
    """Loss gaps, effects and smallest sets as tables; those without rows are left out."""
    tables = {name: summary.get(name, ()) for name in TABLES} | {"smallest": list(_by_size(summary["smallest"]))}
    return _tables(summary, tables, chosen)


def head_figures(summary: Anatomy, method: str, length: int) -> dict[str, Heatmaps]:
    """The maps of one method at one length, by name; without those not run."""
    return _present({name: head_map(summary, name, method, length) for name in STATISTICS})


def anatomy_labels(summary: Anatomy) -> dict[str, list[Any]]:
    """The methods and lengths of the summary."""
    return {"method": list(summary["methods"]), "length": summary["lengths"]}


def anatomy_export(
    summary: Anatomy, methods: Sequence[str] | None = None, lengths: Sequence[int] | None = None
) -> Export:
    """Figures as `anatomy-NAME-METHOD-LENGTH`, and their tables; default: all.

    Raises ValueError for a method or length that is not there.
    """
    known = anatomy_labels(summary)
    chosen = _chosen({"method": methods, "length": lengths}, known, known, "measured")
    figures: dict[str, Figure] = {}
    for length in chosen["length"]:
        for method in chosen["method"]:
            for name, figure in head_figures(summary, method, length).items():
                figures[f"anatomy-{name}-{safe_name(method)}-{length}"] = figure
    if not figures:
        wanted = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in chosen.items())
        raise ValueError(f"nothing is there for {wanted}; run those --parts of `mesa-lens anatomy`")
    return Export(figures, anatomy_tables(summary, chosen))


def anatomy_tables(summary: Anatomy, chosen: Labels) -> dict[str, xr.Dataset]:
    """The measurements as tables; those without rows are left out. chosen: labels to keep, all if empty."""
    tables = {name: [_flat(row) for row in summary[name]] for name in _ANATOMY_TABLES}
    return _tables(summary, tables | {"retrieval_heads": list(_retrieval_rows(summary))}, chosen)


def _present(figures: Mapping[str, T | None]) -> dict[str, T]:
    return {name: figure for name, figure in figures.items() if figure is not None}


def _chosen(requested: Mapping[str, Sequence[Any] | None], known: Labels, default: Labels, verb: str) -> Labels:
    """The labels requested, or the default ones; ValueError for one that is not known."""
    for name, values in requested.items():
        for value in values or ():
            if value not in known[name]:
                raise ValueError(f"{name} {value!r} was not {verb}; known: {', '.join(map(str, known[name]))}")
    return {name: list(values or default[name]) for name, values in requested.items()}


def _tables(summary: Mapping[str, Any], tables: Mapping[str, Sequence[Row]], chosen: Labels) -> dict[str, xr.Dataset]:
    """The tables' rows with the chosen labels; a row without a label has all of them."""
    attrs = {name: summary[name] for name in ("model", "trained_length")}
    datasets = {}
    for name, rows in tables.items():
        subset = [row for row in rows if all(row.get(label, values[0]) in values for label, values in chosen.items())]
        if subset:
            datasets[name] = row_table(subset).assign_attrs(attrs)
    return datasets


def _by_size(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """A row for each size of every smallest set: the head added, and what so many restore."""
    for row in rows:
        labels = {name: row[name] for name in ("method", "length", "measure")}
        for n, (layer, head) in enumerate(row["heads"]):
            columns = ("share", "low", "high", "random_low", "random", "random_high")
            yield labels | {"size": n + 1, "layer": layer, "head": head} | {name: row[name][n] for name in columns}


def _flat(row: Row) -> dict[str, Any]:
    """The row with a column for each number: intervals as _low and _high."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list):
            flat |= dict(zip((name, f"{name}_low", f"{name}_high"), map(number, value), strict=True))
        else:
            flat[name] = value
    return flat


def _retrieval_rows(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each head that retrieves inside M and each method beyond it."""
    for head in summary["retrieval_heads"]:
        labels = {name: head[name] for name in ("length", "layer", "head", "offset", "lost", "kept")}
        for method, beyond in head["beyond"].items():
            scores = _flat({"inside": head["inside"], "beyond": beyond})
            yield {"method": method, **labels, **scores, "restored": method in head["restored"]}
