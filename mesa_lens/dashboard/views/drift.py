"""Where inside drift shows: the map of layers and positions on the Overview."""

from __future__ import annotations

import streamlit as st

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.downloads import FORMS, buttons, named
from mesa_lens.dashboard.look import plain, show
from mesa_lens.dashboard.offered import offer
from mesa_lens.dashboard.state import NotWorkedOut, drifted, while_unchanged
from probe.figures.drift import drift_map
from probe.figures.export import Export, drift_export


def overview(context: Context) -> None:
    """The map of the first prompt, with its downloads; or why there is none."""
    st.subheader("Where inside does it show?", anchor=False)
    try:
        found = drifted(context.run)
    except NotWorkedOut as lacking:
        offer(lacking)
        return
    if isinstance(found, str):
        st.info(plain(f"Drift could not be judged: {found}."))
        return
    prompt = next(iter(found))
    figure = drift_map(found[prompt], prompt)
    show(figure, "; ".join(one.title for one in figure.maps), "drift-map")

    def export() -> Export:
        whole = drift_export(found[prompt], prompt)
        return Export({"drift-map": figure}, whole.numbers)

    buttons(while_unchanged(context.run, export), named(context.run.name, prompt, "drift-map"), FORMS, ("csv",))
