"""Figures and tables of what `mesa-lens locate` and `mesa-lens anatomy` measured, for files, reports and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import xarray as xr

from mesa.errors import Refused
from probe.attention.result import Anatomy, Mean
from probe.figures.anatomy import STATISTICS, head_map
from probe.figures.export import Export, safe_name
from probe.figures.figure_data import Drawable, Figure
from probe.figures.locate import clamp_chart, layer_chart, restoration_map, smallest_chart
from probe.figures.tables import row_table
from probe.interventions.result import Located, Loss, SmallestSet
from probe.store.result_file import having

TABLES = ("loss_gaps", "effects", "smallest")
Labels = Mapping[str, Sequence[Any]]
Figures = dict[str, Drawable]
Row = dict[str, Any]


def method_figures(summary: Located, method: str, length: int, measure: str) -> Figures:
    """The located figures of one method at one length, by name, the restoration map first; without those not run."""
    at = (summary, method, length, measure)
    rules = dict.fromkeys(row.rule for row in having(summary.effects, kind="clamp"))
    clamps = {f"clamp-{safe_name(rule)}" if rule else "clamp": clamp_chart(*at, rule) for rule in rules}
    return _present({"map": restoration_map(*at), "map-without": restoration_map(*at, "without"), **clamps})


def common_figures(summary: Located, length: int, measure: str, methods: Sequence[str]) -> Figures:
    """The located figures of several methods at one length, by name; without those not run."""
    at = (summary, length, measure, methods)
    return _present({"layers": layer_chart(*at), "smallest": smallest_chart(*at)})


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
    chosen = _chosen(requested, _labels(summary.loss_gaps), judged_labels(summary), "located")
    figures: dict[str, Figure] = {}
    for at in product(chosen["length"], chosen["measure"]):
        parts = {"": common_figures(summary, *at, chosen["method"])}
        parts |= {f"{safe_name(method)}-": method_figures(summary, method, *at) for method in chosen["method"]}
        for part, (name, figure) in ((part, item) for part, named in parts.items() for item in named.items()):
            figures[f"locate-{name}-{part}{at[0]}-{at[1]}"] = figure
    if not figures:
        raise Refused(f"no effect is there for {_text(chosen)}: baseline and method do not differ, or it was not run")
    return Export(figures, located_tables(summary, chosen))


def located_tables(summary: Located, chosen: Labels) -> dict[str, xr.Dataset]:
    """Loss gaps, effects and smallest sets as tables; those without rows are left out."""
    tables = {
        "loss_gaps": list(map(asdict, summary.loss_gaps)),
        "effects": list(map(asdict, summary.effects)),
        "smallest": list(_by_size(summary.smallest)),
    }
    return _tables(summary, tables, chosen)


def head_figures(summary: Anatomy, method: str, length: int) -> Figures:
    """The maps of one method at one length, by name; without those not run."""
    return _present({name: head_map(summary, name, method, length) for name in STATISTICS})


def anatomy_labels(summary: Anatomy) -> dict[str, list[Any]]:
    """The methods and lengths of the summary."""
    return {"method": list(summary.methods), "length": summary.lengths}


def anatomy_export(
    summary: Anatomy, methods: Sequence[str] | None = None, lengths: Sequence[int] | None = None
) -> Export:
    """Figures as `anatomy-NAME-METHOD-LENGTH`, and their tables; default: all.

    Raises Refused for a method or length that is not there.
    """
    known = anatomy_labels(summary)
    chosen = _chosen({"method": methods, "length": lengths}, known, known, "measured")
    figures: dict[str, Figure] = {
        f"anatomy-{name}-{safe_name(method)}-{length}": figure
        for length, method in product(chosen["length"], chosen["method"])
        for name, figure in head_figures(summary, method, length).items()
    }
    if not figures:
        raise Refused(f"nothing is there for {_text(chosen)}; run those --parts of `mesa-lens anatomy`")
    return Export(figures, anatomy_tables(summary, chosen))


def anatomy_tables(summary: Anatomy, chosen: Labels) -> dict[str, xr.Dataset]:
    """The measurements as tables; those without rows are left out. chosen: labels to keep, all if empty."""
    tables = {name: [_flat(row) for row in getattr(summary, name)] for name in ("heads", "all_heads", "retrieval")}
    tables["retrieval_heads"] = [  # a row for each head that retrieves inside M and each method beyond it
        {"method": method, **_flat(head), **_flat({"beyond": beyond, "restored": method in head.restored})}
        for head in summary.retrieval_heads
        for method, beyond in head.beyond.items()
    ]
    return _tables(summary, tables, chosen)


def _present(figures: Mapping[str, Drawable | None]) -> Figures:
    return {name: figure for name, figure in figures.items() if figure is not None}


def _labels(gaps: Sequence[Loss]) -> dict[str, list[Any]]:
    return {name: list(dict.fromkeys(gap.labels[name] for gap in gaps)) for name in ("method", "length", "measure")}


def _text(chosen: Labels) -> str:
    return "; ".join(f"{name} {', '.join(map(str, values)) or 'any'}" for name, values in chosen.items())


def _chosen(requested: Mapping[str, Sequence[Any] | None], known: Labels, default: Labels, verb: str) -> Labels:
    """The labels requested, or the default ones; Refused for one that is not known."""
    for name, values in requested.items():
        for value in values or ():
            if value not in known[name]:
                raise Refused(f"{name} {value!r} was not {verb}; known: {', '.join(map(str, known[name]))}")
    return {name: list(values or default[name]) for name, values in requested.items()}


def _tables(summary: Located | Anatomy, tables: Mapping[str, Sequence[Row]], chosen: Labels) -> dict[str, xr.Dataset]:
    """The tables' rows with the chosen labels; a row without a label has all of them."""
    attrs = {"model": summary.model, "trained_length": summary.trained_length}
    kept = {
        name: [row for row in rows if all(row.get(label, values[0]) in values for label, values in chosen.items())]
        for name, rows in tables.items()
    }
    return {name: row_table(rows).assign_attrs(attrs) for name, rows in kept.items() if rows}


def _by_size(rows: Sequence[SmallestSet]) -> Iterator[dict[str, Any]]:
    """A row for each size of every smallest set: the head added, and what so many restore."""
    for row in rows:
        labels = {"method": row.method, "length": row.length, "measure": row.measure}
        for n, (layer, head) in enumerate(row.heads):
            columns = ("share", "low", "high", "random_low", "random", "random_high")
            shares = {name: getattr(row, name)[n] for name in columns}
            yield labels | {"size": n + 1, "layer": layer, "head": head} | shares


def _flat(row: Any) -> Row:
    """The row with a column for each text and number, and for the ends of intervals _low and _high; no lists."""
    flat: dict[str, Any] = {}
    for name, value in (row if isinstance(row, dict) else vars(row)).items():
        if isinstance(value, Mean):
            flat |= zip((name, f"{name}_low", f"{name}_high"), value, strict=True)
        elif isinstance(value, str | float | int):
            flat[name] = value
    return flat
