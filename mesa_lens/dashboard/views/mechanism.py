"""Where inside: what a method, a patch or a clamp in one place restores, by layer and head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import streamlit as st

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.downloads import FORMS, buttons, named
from mesa_lens.dashboard.look import listed, plain, sheet, show
from mesa_lens.dashboard.runs import Entry
from probe.figures.export import Export
from probe.figures.figure_data import Chart, TileMap
from probe.figures.locate import MEASURES
from probe.figures.mechanism_export import common_figures, judged_labels, located_export, located_tables, method_figures
from probe.interventions.sentences import located_findings
from probe.store.results import Located, find_located, having, headline

_MAPS, _PATCHES, _SETS, _CLAMPS, _ATTRIBUTION = "maps", "patches", "smallest set", "clamps", "attribution"
_SHOWN = {  # of the figures' names: how they begin
    _MAPS: ("layers", "map"),
    _PATCHES: ("patch",),
    _SETS: ("smallest",),
    _CLAMPS: ("clamp",),
    _ATTRIBUTION: ("attribution",),
}
_FIRST = 3  # sentences of a finding on the Overview: what was lost, which layers restore it, which are needed
_LISTED = ("layer", "head", "kind", "way", "hook", "span", "rule", "which", "share", "low", "high", "items")


def page(context: Context) -> None:
    """Method, length and measure; what was found in words; figures; the effects as a table; downloads."""
    summary = find_located(context.run.path)
    if summary is None:
        say_how(context.run)
        return
    first = headline(summary)
    if first is None:
        st.info("No loss is clear at any length and measure, so nothing is located.")
        sheet(summary["gaps"], "What was lost, by method, length and measure")
        return
    chosen = _choose(summary, first)
    for heading, sentences in located_findings(summary, **chosen):
        st.subheader(plain(heading), anchor=False)
        st.markdown(listed(sentences))
    _figures(summary, chosen)
    _effects(summary, chosen)
    asked = {f"{name}s": [value] for name, value in chosen.items()}
    if having(having(summary["gaps"], **chosen), judged=True):
        stem = named(context.run.name, "locate", *chosen.values())
        buttons(lambda: located_export(summary, **asked), stem, FORMS, FORMS)


def overview(context: Context) -> None:
    """The map of the clearest loss, or how to make one."""
    st.subheader("Where inside does it arise?", anchor=False)
    try:
        summary = find_located(context.run.path)
    except ValueError as error:
        st.warning(plain(error))
        return
    if summary is None:
        say_how(context.run)
        return
    chosen = headline(summary)
    for _, sentences in located_findings(summary, **(chosen or {})):
        st.markdown(listed(sentences[:_FIRST]))
    figure = method_figures(summary, **chosen).get("map") if chosen else None
    if chosen is not None and figure is not None:
        show(figure, _alt(figure), "located")
        tables = located_tables(summary, {name: [value] for name, value in chosen.items()})
        stem = named(context.run.name, "restoration-map", *chosen.values())
        buttons(lambda: Export({"map": figure}, tables), stem, FORMS, ("csv",))
    context_link = {"run": context.run.name}
    st.page_link(context.pages["mechanism"], label="Patches, clamps, smallest sets", query_params=context_link)


def say_how(entry: Entry) -> None:
    """The command that makes what is missing."""
    st.info("This run does not say where inside the loss arises. Find out, then reload this page:")
    st.code(f"mesa-lens locate --out {entry.path}", language="bash")


def _choose(summary: Located, first: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: list(dict.fromkeys(gap[name] for gap in summary["gaps"])) for name in first}
    chosen = {}
    for place, (name, values) in zip(st.columns(3), known.items(), strict=True):
        chosen[name] = place.selectbox(
            name.capitalize(),
            values,
            values.index(first[name]),
            key=f"locate_{name}",
            bind="query-params",
            format_func=lambda value: MEASURES.get(value, str(value)),
        )
    return chosen


def _figures(summary: Located, chosen: Mapping[str, Any]) -> None:
    """The chosen kind of figure; the methods together where they compare."""
    length, measure = chosen["length"], chosen["measure"]
    made = common_figures(summary, length, measure, judged_labels(summary)["method"]) | method_figures(
        summary, **chosen
    )
    kinds = [kind for kind, begins in _SHOWN.items() if any(name.startswith(begins) for name in made)]
    if not kinds:
        return
    kind = st.segmented_control(
        "Figures", kinds, default=kinds[0], required=True, key="locate_figures", bind="query-params"
    )
    for name, figure in made.items():
        if name.startswith(_SHOWN[kind]):
            show(figure, _alt(figure), f"locate-{name}")


def _effects(summary: Located, chosen: Mapping[str, Any]) -> None:
    rows = [{name: row.get(name) for name in _LISTED} for row in having(summary["effects"], **chosen)]
    if rows:
        with st.expander(f"All {len(rows)} effects as a table"):
            formats = {name: st.column_config.NumberColumn(format="percent") for name in ("share", "low", "high")}
            sheet(rows, "Every effect with its interval", column_config=formats)


def _alt(figure: Chart | TileMap) -> str:
    """The title, and of a table the largest share in it, if any is known."""
    if isinstance(figure, Chart):
        return figure.title
    values = np.concatenate([block.values.ravel() for block in figure.blocks])
    known = values[np.isfinite(values)]
    return f"{figure.title}. Largest: {known.max():.0%}" if known.size else figure.title
