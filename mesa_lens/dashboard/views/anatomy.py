"""Anatomy: attention of heads, unmet phases, the logit lens and positional vectors under each method."""

from __future__ import annotations

from typing import Any

import streamlit as st

from mesa_lens.dashboard.elements import (
    FORMS,
    buttons,
    choose_labels,
    choose_one,
    file_stem,
    plain,
    sheet,
    show,
    suggest,
)
from mesa_lens.dashboard.runs import Context
from probe.attention.sentences import anatomy_findings
from probe.figures.anatomy import head_map, lens_chart, share_chart
from probe.figures.export import Export
from probe.figures.figure_data import Drawable
from probe.figures.mechanism_export import anatomy_labels, anatomy_tables, head_rows, layer_figures
from probe.mechanism_report import head_texts
from probe.store.results import Anatomy, find_anatomy

_STATISTICS = {
    "keys beyond M": "beyond",
    "keys from N to M": "window",
    "keys within N": "near",
    "first 4 keys": "first",
    "mean distance": "distance",
    "entropy": "entropy",
    "token 0": "sink",
}
_TABLE = "all heads"
_KINDS = {  # of figures, and what each is chosen by
    "retrieval": ("method", "length"),
    "unmet phases": ("method", "length"),
    "attention": ("method", "length", "statistic"),
    "logit lens": ("length", "after_layer"),
    "positional vectors": ("layer",),
    _TABLE: ("length",),
}


def page(context: Context) -> None:
    """Findings; one kind of figure with its select boxes; downloads of what is displayed."""
    anatomy = find_anatomy(context.run.path)
    if anatomy is None:
        text = (
            "Attention, phases and the logit lens of this run were not measured. Measure them, then reload this page:"
        )
        suggest(text, f"mesa-lens anatomy --out {context.run.path}")
        return
    for paragraph in anatomy_findings(anatomy.summary):
        st.markdown(plain(paragraph))
    kind = choose_one("Figures", list(_KINDS), "anatomy_figures")
    chosen = _choose(anatomy, kind)
    if kind == _TABLE:
        rows = [
            {"method": row["method"], "queries": row["span"], **head_texts(row)}
            for row in head_rows(anatomy.summary, **chosen)
        ]
        sheet(rows, "Means over all heads with 95% intervals, by method and queries")
        return
    figures = {name: figure for name, figure in _figures(anatomy, kind, **chosen).items() if figure is not None}
    for name, figure in figures.items():
        show(figure, figure.title, name)
    if not figures:
        st.info("It was not measured here: see \\-\\-parts of `mesa-lens anatomy`.")
        return
    labels = {name: [value] for name, value in chosen.items() if name in anatomy_labels(anatomy)}
    stem = file_stem(context.run.name, "anatomy", kind, *chosen.values())
    several = FORMS if len(figures) > 1 else ("csv",)
    buttons(lambda: Export(figures, anatomy_tables(anatomy, labels)), stem, FORMS, several)


def overview(context: Context) -> None:
    """The first finding and a link to the page; nothing where `mesa-lens anatomy` was not run."""
    try:
        anatomy = find_anatomy(context.run.path)
    except ValueError as error:
        st.warning(plain(error))
        return
    if anatomy is None:
        return
    st.subheader("What does the inside look like?", anchor=False)
    st.markdown(plain(next(iter(anatomy_findings(anatomy.summary)), "")))
    label, query = "Heads, phases, logit lens, positional vectors", {"run": context.run.name}
    st.page_link(context.pages["anatomy"], label=label, query_params=query)


def _choose(anatomy: Anatomy, kind: str) -> dict[str, Any]:
    """The labels of a figure. Defaults: last method, longest length, middle layer; the logit lens after the last."""
    known = anatomy_labels(anatomy)
    known |= {"statistic": list(_STATISTICS), "after_layer": known["layer"]}
    first = {name: values[-1] for name, values in known.items()}
    first |= {"layer": known["layer"][len(known["layer"]) // 2], "statistic": next(iter(_STATISTICS))}
    return choose_labels({name: known[name] for name in _KINDS[kind]}, first, "anatomy")


def _figures(anatomy: Anatomy, kind: str, **chosen: Any) -> dict[str, Drawable | None]:
    """The figures of a kind by name; None where it was not measured."""
    methods = anatomy_labels(anatomy)["method"]
    if kind == "logit lens":
        return {"anatomy-lens": lens_chart(anatomy, chosen["length"], methods, chosen["after_layer"])}
    if kind == "positional vectors":
        figures = layer_figures(anatomy, chosen["layer"], methods) | {"shares": share_chart(anatomy, methods)}
        return {f"anatomy-{name}": figure for name, figure in figures.items()}
    heads = {"retrieval": "retrieval", "unmet phases": "unmet"}
    name = heads[kind] if kind in heads else _STATISTICS[chosen["statistic"]]
    return {f"anatomy-{name}": head_map(anatomy, name, chosen["method"], chosen["length"])}
