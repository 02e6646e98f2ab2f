"""Anatomy: what heads attend to, unmet phases, the logit lens and positional vectors under each method."""

from __future__ import annotations

from typing import Any

import streamlit as st

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.downloads import buttons
from mesa_lens.dashboard.look import columns, plain, show
from mesa_lens.dashboard.runs import Entry
from probe.anatomy_report import told_of_heads
from probe.figures.anatomy import head_map
from probe.figures.anatomy_charts import lens_chart
from probe.figures.anatomy_export import anatomy_export, head_rows, known, layer_figures
from probe.figures.interactive import draw
from probe.figures.positional_charts import share_chart
from probe.figures.render import Drawn
from probe.mechanism.anatomy.words import anatomy_findings
from probe.store.anatomy import Anatomy, find_anatomy

_RETRIEVAL, _PHASES, _ATTENTION, _LENS, _POSITIONS = (
    "retrieval",
    "unmet phases",
    "attention",
    "logit lens",
    "positional vectors",
)
_SHOWN = {"beyond": "keys beyond M", "distance": "mean distance", "entropy": "entropy", "sink": "token 0"}


def page(context: Context) -> None:
    """What was found in words; method, length and layer; figures; means over heads as a table; downloads."""
    found = find_anatomy(context.run.path)
    if found is None:
        say_how(context.run)
        return
    for heading, text in anatomy_findings(found.summary):
        st.subheader(plain(heading), anchor=False)
        st.markdown(plain(text))
    st.subheader("Figures", anchor=False)
    chosen = _choose(found)
    _figures(found, **chosen)
    _heads(found, chosen["length"])
    asked = {"methods": [chosen["method"]], "lengths": [chosen["length"]], "layers": [chosen["layer"]]}
    several = ("csv", "png", "svg", "pdf")
    buttons(lambda: anatomy_export(found, **asked), "anatomy", several, several)


def say_how(entry: Entry) -> None:
    """The command that makes what is missing."""
    st.info("This run does not say what the inside looks like. Find out, then reload this page:")
    st.code(f"mesa-lens anatomy --out {entry.path}", language="bash")


def _choose(found: Anatomy) -> dict[str, Any]:
    """Method, length and layer; at first the last method, the longest length and the middle layer."""
    values = known(found)
    first = {
        "method": len(values["method"]) - 1,
        "length": len(values["length"]) - 1,
        "layer": len(values["layer"]) // 2,
    }
    return {
        name: place.selectbox(name.capitalize(), values[name], first[name], key=f"anatomy_{name}", bind="query-params")
        for place, name in zip(st.columns(3), first, strict=True)
    }


def _figures(found: Anatomy, method: str, length: int, layer: int) -> None:
    """The chosen kind of figure: maps of the method, charts of all methods."""
    methods = known(found)["method"]
    maps: dict[str, dict[str, Drawn | None]] = {
        _RETRIEVAL: {"retrieval": head_map(found, "retrieval", method, length)},
        _PHASES: {"unmet": head_map(found, "unmet", method, length)},
        _ATTENTION: {name: head_map(found, name, method, length) for name in _SHOWN},
        _LENS: {"lens": lens_chart(found, length, methods)},
        _POSITIONS: {**layer_figures(found, layer, methods), "shares": share_chart(found, methods)},
    }
    kinds = [kind for kind, figures in maps.items() if any(figure is not None for figure in figures.values())]
    if not kinds:
        st.info("Nothing was measured at this length under this method.")
        return
    kind = st.segmented_control(
        "Of", kinds, default=kinds[0], required=True, key="anatomy_figures", bind="query-params"
    )
    shown = maps[kind]
    if kind == _ATTENTION:
        names = list(_SHOWN)
        name = st.segmented_control(
            "Shown", names, default=names[0], required=True, key="anatomy_shown", bind="query-params",
            format_func=_SHOWN.__getitem__,
        )  # fmt: skip
        shown = {name: shown[name]}
    for name, figure in shown.items():
        if figure is not None:
            show(draw(figure), figure.title, f"anatomy-{name}")


def _heads(found: Anatomy, length: int) -> None:
    rows = [
        {**{name: row[name] for name in ("method", "span")}, **told_of_heads(row)}
        for row in head_rows(found.summary, length)
    ]
    if rows:
        st.subheader(f"All heads at {length} tokens", anchor=False)
        st.dataframe(columns(rows), hide_index=True, alt="Means over all heads with 95% intervals, by method and span")
