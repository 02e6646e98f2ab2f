"""Results: what `mesa-lens eval` and `paper` found, differences to the reference first."""

from __future__ import annotations

import streamlit as st

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.look import plain
from mesa_lens.dashboard.results import EVALUATION, HARNESS, PAPER, results
from mesa_lens.dashboard.views import evaluated, progress, reproduced
from probe.store.location import as_path

_PAGES = {PAPER: reproduced.page, HARNESS: evaluated.harness_page, EVALUATION: evaluated.page}
_HOW = "mesa-lens eval --out {0}/eval\nmesa-lens paper --out {0}/paper"


def page(context: Context) -> None:
    """The chosen result, at first the newest; or the commands that make one."""
    root = as_path(context.root)
    found = {result.label: result for result in results(root)}
    progress.unfinished_runs(root)
    if not found:
        st.info(plain(f"There is no evaluation or paper run under {context.root}. Make one, e.g.:"))
        st.code(_HOW.format(context.root), language="bash")
        return
    asked = st.query_params.get("result")
    if asked is not None and asked not in found:
        st.warning(plain(f"There is no result {asked} under the folder of runs."))
    chosen = found[st.selectbox("Result", list(found), key="result", bind="query-params", help="Newest first")]
    _PAGES[chosen.kind](context, chosen)
