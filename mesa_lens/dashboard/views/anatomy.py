"""Anatomy: what heads attend to under each method."""

from __future__ import annotations

import streamlit as st

from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard.runs import Context
from probe.commands.anatomy.page import all_heads, anatomy_export, anatomy_findings, place
from probe.commands.anatomy.result import ANATOMY
from probe.figures.section import Section


def page(context: Context) -> None:
    """Findings; a method's map at a length, or means over all heads; downloads."""
    anatomy = ui.written(context, ANATOMY.find, "anatomy")
    if anatomy is None:
        return
    ui.draw([Section("", anatomy_findings(anatomy))], "anatomy")
    if not (anatomy.heads or anatomy.retrieval or anatomy.all_heads):
        st.info("Nothing was measured of its heads.")
        return
    lengths = sorted({row.length for row in (*anatomy.heads, *anatomy.retrieval)}) or anatomy.lengths
    known = {"method": list(anatomy.methods), "length": lengths}
    last = {name: values[-1] for name, values in known.items()}
    method, length = ui.choose_labels(known, last, "anatomy").values()
    maps = [part for shown in place(anatomy, length, [method]).parts for part in shown.parts]
    ui.choose_part([*maps, *all_heads(anatomy, [length])], "anatomy_figures")
    if maps:
        stem = ui.file_stem(context.run.name, "anatomy", method, length)
        ui.buttons(lambda: anatomy_export(anatomy, [method], [length]), stem, ui.FORMS, ui.FORMS)
