"""Anatomy: what heads attend to, unmet phases, the logit lens and positional vectors under each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.downloads import FORMS, buttons, named
from mesa_lens.dashboard.look import plain, sheet, show
from mesa_lens.dashboard.runs import Entry
from probe.attention.sentences import anatomy_findings
from probe.figures.anatomy import head_map, lens_chart, share_chart
from probe.figures.export import Export
from probe.figures.figure_data import Drawable
from probe.figures.mechanism_export import anatomy_labels, anatomy_tables, head_rows, layer_figures
from probe.mechanism_report import head_texts
from probe.store.results import Anatomy, find_anatomy

Made = dict[str, Drawable | None]
_ATTENTION = {
    "keys beyond M": "beyond",
    "keys from N to M": "window",
    "keys within N": "near",
    "first 4 keys": "first",
    "mean distance": "distance",
    "entropy": "entropy",
    "token 0": "sink",
}
_TABLE = "all heads"


def page(context: Context) -> None:
    """What was found in words; a kind of figure with its selectors; downloads of what is shown."""
    found = find_anatomy(context.run.path)
    if found is None:
        say_how(context.run)
        return
    for paragraph in anatomy_findings(found.summary):
        st.markdown(plain(paragraph))
    kinds = [*_KINDS, _TABLE]
    kind = st.segmented_control(
        "Figures", kinds, default=kinds[0], required=True, key="anatomy_figures", bind="query-params"
    )
    if kind == _TABLE:
        _heads(found, **_choose(found, "length"))
        return
    names, make = _KINDS[kind]
    chosen = _choose(found, *names)
    made = {name: figure for name, figure in make(found, **chosen).items() if figure is not None}
    for name, figure in made.items():
        show(figure, figure.title, f"anatomy-{name}")
    if not made:
        st.info("It was not measured here: see \\-\\-parts of `mesa-lens anatomy`.")
        return
    labels = {name: [value] for name, value in chosen.items() if name in anatomy_labels(found)}
    figures = {f"anatomy-{name}": figure for name, figure in made.items()}
    several = FORMS if len(figures) > 1 else ("csv",)
    stem = named(context.run.name, "anatomy", kind, *chosen.values())
    buttons(lambda: Export(figures, anatomy_tables(found, labels)), stem, FORMS, several)


def overview(context: Context) -> None:
    """The first finding and a link to the page; nothing where the inside was not looked at."""
    try:
        found = find_anatomy(context.run.path)
    except ValueError as error:
        st.warning(plain(error))
        return
    if found is None:
        return
    st.subheader("What does the inside look like?", anchor=False)
    st.markdown(plain(next(iter(anatomy_findings(found.summary)), "")))
    here = {"run": context.run.name}
    st.page_link(context.pages["anatomy"], label="Heads, phases, logit lens, positional vectors", query_params=here)


def say_how(entry: Entry) -> None:
    """The command that makes what is missing."""
    st.info("This run does not say what the inside looks like. Find out, then reload this page:")
    st.code(f"mesa-lens anatomy --out {entry.path}", language="bash")


def _choose(found: Anatomy, *names: str) -> dict[str, Any]:
    """What each selector is set to: at first the last method, the longest length, the middle layer.

    after_layer, which the logit lens is read after, is at first the last layer.
    """
    there = anatomy_labels(found)
    values: Mapping[str, list[Any]] = {**there, "statistic": list(_ATTENTION), "after_layer": there["layer"]}
    first = {"method": -1, "length": -1, "layer": len(there["layer"]) // 2, "statistic": 0, "after_layer": -1}
    chosen = {}
    for place, name in zip(st.columns(3), names, strict=False):
        index = first[name] % len(values[name])
        chosen[name] = place.selectbox(
            name.replace("_", " ").capitalize(), values[name], index, key=f"anatomy_{name}", bind="query-params"
        )
    return chosen


def _retrieval(found: Anatomy, method: str, length: int) -> Made:
    return {"retrieval": head_map(found, "retrieval", method, length)}


def _phases(found: Anatomy, method: str, length: int) -> Made:
    return {"unmet": head_map(found, "unmet", method, length)}


def _attention(found: Anatomy, method: str, length: int, statistic: str) -> Made:
    name = _ATTENTION[statistic]
    return {name: head_map(found, name, method, length)}


def _lens(found: Anatomy, length: int, after_layer: int) -> Made:
    return {"lens": lens_chart(found, length, anatomy_labels(found)["method"], after_layer)}


def _positions(found: Anatomy, layer: int) -> Made:
    methods = anatomy_labels(found)["method"]
    return {**layer_figures(found, layer, methods), "shares": share_chart(found, methods)}


_KINDS: dict[str, tuple[tuple[str, ...], Callable[..., Made]]] = {
    "retrieval": (("method", "length"), _retrieval),
    "unmet phases": (("method", "length"), _phases),
    "attention": (("method", "length", "statistic"), _attention),
    "logit lens": (("length", "after_layer"), _lens),
    "positional vectors": (("layer",), _positions),
}


def _heads(found: Anatomy, length: int) -> None:
    rows = [
        {"method": row["method"], "queries": row["span"], **head_texts(row)} for row in head_rows(found.summary, length)
    ]
    sheet(rows, "Means over all heads with 95% intervals, by method and queries")
