"""Where inside: what a method or a clamp in one place recovers, by layer and head."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard.runs import Context
from probe.commands.locate.export import located_export, located_tables
from probe.commands.locate.figures import MEASURES
from probe.commands.locate.result import LOCATED
from probe.commands.locate.sections import clearest, losses, place
from probe.store.result_file import having

_FIRST = 3  # sentences on the Overview: the excess loss, which layers recover it, which are needed


def page(context: Context) -> None:
    """Findings for a method, length and measure; figures; a table of all effects; downloads."""
    summary = ui.written(context, LOCATED.find, "locate")
    if summary is None:
        return
    if summary.clearest is None:
        ui.draw([clearest(summary), losses(summary)], "locate")
        return
    first = summary.clearest.labels
    known = {name: list(dict.fromkeys(gap.labels[name] for gap in summary.loss_gaps)) for name in first}
    chosen = ui.choose_labels(known, first, "locate", lambda value: MEASURES.get(value, str(value)))
    section = place(summary, chosen["length"], chosen["measure"], [chosen["method"]])
    ui.choose_part(section.parts, "locate_figures")
    labels = {name: [value] for name, value in chosen.items()}
    if (effects := located_tables(summary, labels).get("effects")) is not None:
        with st.expander(f"All {effects.sizes['row']} effects as a table"):
            formats = {name: st.column_config.NumberColumn(format="percent") for name in ("share", "low", "high")}
            ui.sheet(effects.to_dataframe(), "Every effect with its interval", column_config=formats)
    if having(summary.loss_gaps, **chosen, judged=True):
        stem = ui.file_stem(context.run.name, "locate", *chosen.values())
        several = {f"{name}s": values for name, values in labels.items()}
        ui.buttons(lambda: located_export(summary, **several), stem, ui.FORMS, ui.FORMS)


def overview(context: Context) -> None:
    """The map of the clearest loss, or the command that makes one."""
    st.subheader("Where inside does it arise?", anchor=False)
    if summary := ui.written(context, LOCATED.find, "locate"):
        section = clearest(summary)
        ui.draw([replace(section, sentences=section.sentences[:_FIRST])], "overview")
