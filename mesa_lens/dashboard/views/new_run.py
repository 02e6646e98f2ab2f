"""New run: a form that starts `mesa-lens probe` as a process of its own, its progress and log, stop and resume."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import streamlit as st

from mesa.methods import registry
from mesa_lens.dashboard.asked import NAMES, arguments, input_folders, run_folder
from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.look import plain
from mesa_lens.dashboard.runs import name_of
from mesa_lens.dashboard.started import estimate, progress, resume, shown, start, started_runs, stop
from probe.request import METHODS

_EVERY = 2  # seconds between two looks at a run
_LINES = 30  # of a log
_CHOSEN = "started"
_METHODS = "First: reference. Left as they are: less what the model cannot have."


def page(context: Context) -> None:
    """The runs that were started here, the newest first, and the form."""
    inputs, root = input_folders(), Path(context.root)
    if inputs is None:
        st.info("Runs are started from here only where the dashboard was opened with \\-\\-allow-runs:")
        st.code(f"mesa-lens app --store {root} --allow-runs", language="bash")
        return
    _started(context, root, inputs)
    _form(root, inputs)


def _started(context: Context, root: Path, inputs: tuple[Path, ...]) -> None:
    """The chosen one of the runs started here, looked at again and again while it runs."""
    found = {name_of(folder, root): folder for folder in started_runs(root)}
    if not found:
        return
    st.subheader("Started here", anchor=False)
    if st.session_state.get(_CHOSEN) not in found:
        st.session_state[_CHOSEN] = next(iter(found))
    name = st.selectbox("Started run", list(found), key=_CHOSEN, help="Newest first")
    running = progress(found[name]).running
    watched = partial(_watched, context, root, found[name], name, inputs, running)
    st.fragment(watched, run_every=_EVERY if running else None)()


def _watched(context: Context, root: Path, folder: Path, name: str, inputs: tuple[Path, ...], running: bool) -> None:
    """Progress, log and what can be done; the whole page is drawn anew when the run begins or ends."""
    now = progress(folder)
    if now.running != running:
        st.rerun()
    if now.running:
        text, share = now.bar or ("starting", 0.0)
        st.progress(share, plain(text))
        if st.button("Stop", key="stop", icon=":material/stop:", help="As Ctrl-C does; what is done is kept"):
            stop(folder)
            st.info("Stopping: what is done is kept.")
    elif now.done:
        st.success("The run is finished.")
        st.page_link(context.pages["overview"], label=f"Overview of {plain(name)}", query_params={"run": name})
    else:
        st.warning(plain(now.said or "It ended without a word; see the log."))
        if st.button("Resume", key="resume", icon=":material/play_arrow:", help="The same command goes on"):
            _told(partial(resume, root, folder, inputs))
    with st.expander("Log", expanded=now.running):
        st.code("\n".join(now.lines[-_LINES:]) or "nothing yet", language=None, wrap_lines=True)


def _told(act: partial) -> None:
    """Does what changes a run and draws the page anew, or says why it could not be done."""
    try:
        act()
    except (ValueError, OSError) as error:
        st.error(plain(error))
    else:
        st.rerun()


def _form(root: Path, inputs: tuple[Path, ...]) -> None:
    """What to run; its command line, estimate and start."""
    st.subheader("Start one", anchor=False)
    name = st.text_input(
        "Name", "mine", key="ask_name", help="Its folder below the folder of runs, e.g. mine or my/run"
    )
    asked, own = _asked(inputs)
    try:
        options = arguments(asked, run_folder(root, name), inputs)
    except (ValueError, OSError) as error:
        st.error(plain(error))
        return
    st.caption("The same in a terminal" + (", with the text in a file given by \\-\\-text" if own else ""))
    st.code(shown(options), language="bash", wrap_lines=True)
    wanted, begun = (place.empty() for place in (st.container(), st.container()))
    with st.container(horizontal=True):
        estimating = st.button("Estimate", key="estimate", icon=":material/straighten:")
        starting = st.button("Start", key="start", icon=":material/play_arrow:", type="primary")
    if estimating:
        with wanted, st.spinner("Asking the command …"):
            _estimated(root, name, asked, own, inputs)
    if starting:
        with begun, st.spinner("Checking what is asked, then starting …"):
            _told(partial(_begin, root, name, asked, own, inputs))


def _asked(inputs: tuple[Path, ...]) -> tuple[dict[str, str], str]:
    """The options by name as texts, and a text of the user's own."""
    names, where = ", ".join(NAMES), ", ".join(map(str, inputs))
    left, right = st.columns(2)
    model = left.text_input(
        "Model", "default", key="ask_model", help=f"{names}, a hub id, or a folder or .gguf file in {where}"
    )
    trained = right.text_input("Trained window M", key="ask_trained", placeholder="the config's", help="tokens")
    methods = st.multiselect("Methods", list(registry()), METHODS.split(","), key="ask_methods", help=_METHODS)
    settings = st.text_input("Settings of methods", key="ask_set", placeholder="e.g. rerope.window=64 mesa.window=32")
    left, right = st.columns(2)
    length = left.text_input("Length read", key="ask_length", placeholder="4 M", help="tokens")
    lengths = right.text_input(
        "Lengths measured", key="ask_lengths", placeholder="0.5 to 8 M", help="e.g. 256,512 or 1k:16k:1k"
    )
    left, right = st.columns(2)
    samples = left.text_input("Prompts a length", "20", key="ask_samples", help="0: do not measure the real failure")
    texts = right.text_input("Texts read beside the word", "2", key="ask_texts")
    left, right = st.columns(2)
    word = left.text_input("Repeated word", "hello", key="ask_word")
    file = right.text_input("Text file", key="ask_file", placeholder="the shipped text", help=f"in {where}")
    own = st.text_area("Or a text of your own", key="ask_own", placeholder="in place of a text file")
    return {
        "model": model,
        "trained-length": trained,
        "methods": "" if methods == METHODS.split(",") else ",".join(methods),
        "set": settings,
        "length": length,
        "lengths": lengths,
        "samples": samples,
        "texts": texts,
        "prompt": word,
        "text": "" if own else file,
    }, own


def _estimated(root: Path, name: str, asked: dict[str, str], own: str, inputs: tuple[Path, ...]) -> None:
    try:
        told = estimate(root, name, asked, own, inputs)
    except (ValueError, OSError) as error:
        st.error(plain(error))
    else:
        st.code(told, language=None, wrap_lines=True)


def _begin(root: Path, name: str, asked: dict[str, str], own: str, inputs: tuple[Path, ...]) -> None:
    start(root, name, asked, own, inputs)
    st.session_state.pop(_CHOSEN, None)  # the newest is shown
