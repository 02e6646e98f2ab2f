"""New run: a form that starts `mesa-lens probe` as a process, its progress and log, stop and resume."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import streamlit as st

from mesa.methods import standard_methods
from mesa_lens.dashboard import run_control
from mesa_lens.dashboard.elements import plain
from mesa_lens.dashboard.run_control import OPTIONS
from mesa_lens.dashboard.runs import Context, name_of
from probe.request import METHODS

_INTERVAL = 2  # seconds
_LINES = 30  # of a log
_STARTED = "started"
_ROWS = (("model", "trained_length"), ("set",), ("length", "lengths"), ("samples", "texts"), ("prompt", "text"))


def page(context: Context) -> None:
    """The runs that were started here, the newest first, and the form."""
    inputs, root = run_control.input_folders(), Path(context.root)
    if inputs is None:
        st.info("Runs are started from here only where the dashboard was opened with \\-\\-allow-runs:")
        st.code(f"mesa-lens app --store {root} --allow-runs", language="bash")
        return
    _started(context, root, inputs)
    _form(root, inputs)


def _started(context: Context, root: Path, inputs: tuple[Path, ...]) -> None:
    """The chosen one of the runs started here, read again and again while it runs."""
    runs = {name_of(folder, root): folder for folder in run_control.started_runs(root)}
    if not runs:
        return
    st.subheader("Started here", anchor=False)
    if st.session_state.get(_STARTED) not in runs:
        st.session_state[_STARTED] = next(iter(runs))
    name = st.selectbox("Started run", list(runs), key=_STARTED, help="Newest first")
    running = run_control.progress(runs[name]).running
    draw = partial(_progress, context, root, runs[name], name, inputs, running)
    st.fragment(draw, run_every=_INTERVAL if running else None)()


def _progress(context: Context, root: Path, folder: Path, name: str, inputs: tuple[Path, ...], running: bool) -> None:
    """Progress, log and what can be done; the whole page is drawn anew when the run begins or ends."""
    now = run_control.progress(folder)
    if now.running != running:
        st.rerun()
    if now.running:
        st.progress(now.share, plain(now.text))
        if st.button("Stop", key="stop", icon=":material/stop:", help="As Ctrl-C does; finished tasks are kept"):
            run_control.stop(folder)
            st.info("Stopping: finished tasks are kept.")
    elif now.finished:
        st.success("The run is finished.")
        st.page_link(context.pages["overview"], label=f"Overview of {plain(name)}", query_params={"run": name})
    else:
        st.warning(plain(now.error or "It ended without an error; see the log."))
        if st.button("Resume", key="resume", icon=":material/play_arrow:", help="The same command continues"):
            _act(partial(run_control.resume, root, folder, inputs))
    with st.expander("Log", expanded=now.running):
        st.code("\n".join(now.lines[-_LINES:]) or "nothing yet", language=None, wrap_lines=True)


def _act(act: partial) -> None:
    """Does what changes a run and draws the page anew, or prints why it could not be done."""
    try:
        act()
    except (ValueError, OSError) as error:
        st.error(plain(error))
    else:
        st.rerun()


def _form(root: Path, inputs: tuple[Path, ...]) -> None:
    """What to run; its command line, estimate and start."""
    st.subheader("Start one", anchor=False)
    name = st.text_input("Name", "mine", key="ask_name", help="Its folder below the folder of runs, e.g. my/run")
    values, typed = _values(inputs)
    try:
        words = run_control.arguments(values, run_control.run_folder(root, name), inputs)
    except (ValueError, OSError) as error:
        st.error(plain(error))
        return
    st.caption("The same in a terminal" + (", with the text in a file named by \\-\\-text" if typed else ""))
    st.code(run_control.command_line(words), language="bash", wrap_lines=True)
    above, below = (place.empty() for place in (st.container(), st.container()))
    with st.container(horizontal=True):
        estimating = st.button("Estimate", key="estimate", icon=":material/straighten:")
        starting = st.button("Start", key="start", icon=":material/play_arrow:", type="primary")
    if estimating:
        with above, st.spinner("Estimating …"):
            _print_estimate(root, name, values, typed, inputs)
    if starting:
        with below, st.spinner("Checking, then starting …"):
            _act(partial(_begin, root, name, values, typed, inputs))


def _values(inputs: tuple[Path, ...]) -> tuple[dict[str, str], str]:
    """The options by key as texts, and a text that is typed."""
    where = f"; paths are read from {', '.join(map(str, inputs))}"
    default = METHODS.split(",")
    values = {}
    for row in _ROWS:
        for key, column in zip(row, st.columns(len(row)), strict=True):
            option = OPTIONS[key]
            values[key] = column.text_input(
                option.label,
                "" if option.default in (None, ()) else option.default_text,
                key=f"ask_{key}",
                placeholder=option.unset or option.help,
                help=f"{option.help}{where if key in ('model', 'text') else ''}",
            )
        if row[0] == "model":
            help = f"{OPTIONS['methods'].help}; first: the reference"
            methods = st.multiselect("Methods", list(standard_methods()), default, key="ask_methods", help=help)
            values["methods"] = "" if methods == default else ",".join(methods)
    typed = st.text_area("Or type a text", key="ask_typed", placeholder="in place of a text file")
    return {**values, "text": "" if typed else values["text"]}, typed


def _print_estimate(root: Path, name: str, values: dict[str, str], typed: str, inputs: tuple[Path, ...]) -> None:
    try:
        text = run_control.estimate(root, name, values, typed, inputs)
    except (ValueError, OSError) as error:
        st.error(plain(error))
    else:
        st.code(text, language=None, wrap_lines=True)


def _begin(root: Path, name: str, values: dict[str, str], typed: str, inputs: tuple[Path, ...]) -> None:
    run_control.start(root, name, values, typed, inputs)
    st.session_state.pop(_STARTED, None)  # the newest is displayed
