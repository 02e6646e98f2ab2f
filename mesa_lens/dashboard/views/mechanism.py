"""Where inside: what a method or a clamp in one place restores, by layer and head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import streamlit as st

from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard.runs import Context
from probe.commands.locate.export import common_figures, judged_labels, located_export, method_figures
from probe.commands.locate.figures import MEASURES
from probe.commands.locate.result import LOCATED, Located
from probe.commands.locate.sentences import located_findings
from probe.store.result_file import having

_KINDS = {  # of figures, and how their names begin
    "maps": ("layers", "map"),
    "smallest set": ("smallest",),
    "clamps": ("clamp",),
}
_FIRST = 3  # sentences on the Overview: what was lost, which layers restore it, which are needed
_COLUMNS = ("layer", "head", "kind", "way", "rule", "which", "share", "low", "high", "items")


def page(context: Context) -> None:
    """Findings for a method, length and measure; figures; a table of all effects; downloads."""
    summary = ui.written(context, LOCATED.find, "locate")
    if summary is None:
        return
    if summary.clearest is None:
        st.info("No loss is clear at any length and measure, so nothing is located.")
        ui.sheet(list(map(asdict, summary.loss_gaps)), "Losses by method, length and measure")
        return
    first = summary.clearest.labels
    known = {name: list(dict.fromkeys(gap.labels[name] for gap in summary.loss_gaps)) for name in first}
    chosen = ui.choose_labels(known, first, "locate", lambda value: MEASURES.get(value, str(value)))
    for heading, sentences in located_findings(summary, **chosen):
        st.subheader(ui.plain(heading), anchor=False)
        st.markdown(ui.bullets(sentences))
    _figures(summary, chosen)
    _effects(summary, chosen)
    if having(summary.loss_gaps, **chosen, judged=True):
        labels = {f"{name}s": [value] for name, value in chosen.items()}
        stem = ui.file_stem(context.run.name, "locate", *chosen.values())
        ui.buttons(lambda: located_export(summary, **labels), stem, ui.FORMS, ui.FORMS)


def overview(context: Context) -> None:
    """The map of the clearest loss, or the command that makes one."""
    st.subheader("Where inside does it arise?", anchor=False)
    summary = ui.written(context, LOCATED.find, "locate")
    if summary is None:
        return
    chosen = {} if summary.clearest is None else summary.clearest.labels
    for _, sentences in located_findings(summary, **chosen):
        st.markdown(ui.bullets(sentences[:_FIRST]))
    figure = method_figures(summary, **chosen).get("map") if chosen else None
    if figure is not None:
        ui.show(figure, "located")


def _figures(summary: Located, chosen: Mapping[str, Any]) -> None:
    """The chosen kind of figure, of all methods or of the chosen one."""
    methods = judged_labels(summary)["method"]
    figures = common_figures(summary, chosen["length"], chosen["measure"], methods) | method_figures(summary, **chosen)
    kinds = [kind for kind, begins in _KINDS.items() if any(name.startswith(begins) for name in figures)]
    if not kinds:
        return
    begins = _KINDS[ui.choose_one("Figures", kinds, "locate_figures")]
    for name, figure in figures.items():
        if name.startswith(begins):
            ui.show(figure, f"locate-{name}")


def _effects(summary: Located, chosen: Mapping[str, Any]) -> None:
    rows = [{name: getattr(row, name) for name in _COLUMNS} for row in having(summary.effects, **chosen)]
    if rows:
        with st.expander(f"All {len(rows)} effects as a table"):
            formats = {name: st.column_config.NumberColumn(format="percent") for name in ("share", "low", "high")}
            ui.sheet(rows, "Every effect with its interval", column_config=formats)
