"""New run: a form that starts `mesa-lens probe` as a process, its progress and log, stop and resume."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import streamlit as st

from mesa.errors import Refused
from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard import run_control
from mesa_lens.dashboard.runs import Context, find_status, name_of

_INTERVAL = 2  # seconds
_LINES = 30  # of a log


def page(context: Context) -> None:
    """The runs that were started here, the newest first, and the form."""
    root = Path(context.root)
    if run_control.ALLOWED_VARIABLE not in os.environ:
        text = "Runs are started from here only where the dashboard was opened with --allow-runs:"
        ui.suggest(text, f"mesa-lens app --store {root} --allow-runs")
        return
    runs = {name_of(folder, root): folder for folder in run_control.started_runs(root)}
    if runs:
        st.subheader("Started here", anchor=False)
        name = str(st.selectbox("Started run", list(runs), help="Newest first"))
        running = run_control.is_running(runs[name])
        draw = partial(_progress, context, name, runs[name], running)
        st.fragment(draw, run_every=_INTERVAL if running else None)()
    _form(root)


def _progress(context: Context, name: str, folder: Path, running: bool) -> None:
    """Status, log and what can be done; the whole page is drawn anew when the run begins or ends."""
    if run_control.is_running(folder) != running:
        st.rerun()
    status, lines = find_status(folder), run_control.last_log(folder)
    if status is not None:
        st.code(status.text(), language=None, wrap_lines=True)
    if running:
        if st.button("Stop", key="stop", icon=":material/stop:", help="As Ctrl-C does; finished tasks are kept"):
            run_control.stop(folder)
            st.info("Stopping: finished tasks are kept.")
    elif status is not None and status.state == "finished":
        st.success("The run is finished.")
        st.page_link(context.pages["overview"], label=f"Overview of {ui.plain(name)}", query_params={"run": name})
    else:
        st.warning(ui.plain(run_control.last_error(lines) or "It ended without an error; see the log."))
        if st.button("Resume", key="resume", icon=":material/play_arrow:", help="The same command continues"):
            run_control.resume(folder)
            st.rerun()
    with st.expander("Log", expanded=running):
        st.code("\n".join(lines[-_LINES:]), language=None, wrap_lines=True)


def _form(root: Path) -> None:
    """What to run; its command line, estimate and start."""
    st.subheader("Start one", anchor=False)
    name = st.text_input("Name", "mine", key="ask_name", help="Its folder below the folder of runs, e.g. my/run")
    values = {
        key: column.text_input(option.label, key=f"ask_{key}", placeholder=option.default_text, help=option.help)
        for (key, option), column in zip(run_control.OPTIONS.items(), cycle(st.columns(2)), strict=False)
    }
    try:
        folder = run_control.run_folder(root, name)
        words = run_control.arguments(values, folder)
    except Refused as error:
        st.error(ui.plain(error))
        return
    st.code(run_control.command_line(words), language="bash", wrap_lines=True)
    with st.container(horizontal=True):
        estimating = st.button("Estimate", key="estimate", icon=":material/straighten:")
        starting = st.button("Start", key="start", icon=":material/play_arrow:", type="primary")
    if estimating:
        _act("Estimating …", lambda: st.code(run_control.estimate(words), language=None, wrap_lines=True))
    if starting and _act("Checking, then starting …", lambda: run_control.start(folder, words)):
        st.rerun()


def _act(label: str, act: Callable[[], object]) -> bool:
    """Whether it could be done; else why not is printed."""
    try:
        with st.spinner(label):
            act()
    except (Refused, OSError) as error:
        st.error(ui.plain(error))
        return False
    return True
