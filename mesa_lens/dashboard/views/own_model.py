"""Run your model: the command for a model of one's own, and how far a run is that somebody started; it starts none."""

from collections.abc import Callable
from pathlib import Path
from shlex import join, quote

import streamlit as st

from mesa_lens.dashboard import address, elements as ui
from mesa_lens.dashboard.runs import Context, Entry, holds_run, name_of, place_of_more, unfinished
from probe.commands.probe.verdict import run_summary
from probe.figures.export import safe_name

_MODEL = "<hub id or local path>"
_MINUTES = 10
_EVERY = 5  # seconds between two looks at a run
_LONGEST = 7 * 24 * 60  # minutes: a week
_MEANING = (
    "It goes through stages, the most telling first, and from the second on writes a report after each. It ends when "
    "the minutes are over; the same command goes on from there."
)


def page(context: Context) -> None:
    """The command and how to get its estimate; then the runs under way."""
    left, right = st.columns([3, 1])
    with left:
        model = address.text("Model", "model", placeholder=_MODEL, help="As transformers loads it; or a GGUF file")
    minutes = address.number(right, "Minutes", 1, _LONGEST, _MINUTES, "minutes", step=5)
    root = Path(context.root)
    place, show = place_of_more(root)
    command = probe_command(model.strip(), minutes, place)
    st.markdown("Run this in a terminal. The dashboard starts nothing.")
    st.code(command + show, language=None, wrap_lines=True)
    st.markdown(ui.plain(_MEANING))
    st.markdown("Its time, memory and disk on this machine, before anything is measured:")
    st.code(f"{command} --estimate", language=None, wrap_lines=True)
    ui.heading("Runs in progress")
    names = _in_progress(root)
    if not names:
        address.keep("running")  # the address may name a run that has ended
        _polled(_waiting, root)
        return
    name = address.select(st, "Run in progress", names, "running")
    _polled(_watched, name, root if name == name_of(root, root) else root / name)


def _polled(draw: Callable[..., None], *values: object) -> None:
    """Draws again and again; Streamlit would fade what is read at each look."""
    with st.container(key="polled"):
        st.html("<style>.st-key-polled [data-stale=true] {opacity: 1 !important}</style>")
        st.fragment(draw, run_every=_EVERY)(*values)


def _in_progress(root: Path) -> list[str]:
    return [name_of(status.path, root) for status in unfinished(root) if status.state == "running"]


def _waiting(root: Path) -> None:
    """Draws the page again once a run is there."""
    if _in_progress(root):
        st.rerun()
    yours = "" if holds_run(root) else "; yours is displayed here once it is"
    st.markdown(ui.plain(f"No run under {root} is in progress{yours}."))


def probe_command(model: str, minutes: int, root: Path) -> str:
    """The command line that probes a model within these minutes, into a folder below `root` that is named after it."""
    name = safe_name(Path(model).name) if model else "mine"
    shown = quote(model) if model else _MODEL
    return f"mesa-lens probe --model {shown} --minutes {minutes} {join(['--out', str(root / name)])}"


def _watched(name: str, path: Path) -> None:
    """How far it is, and the verdict of its last report: the first one has brackets already."""
    entry = Entry(name, path)  # which reads each property once
    if (status := entry.status) is None:
        st.info("The run cannot be read; reload this page.")
        return
    ui.show_status(status)
    summary = run_summary(entry.checked.path)
    if summary is None:
        st.markdown(
            "Its first report is written when the stage that brackets the failure is done."
            if status.state == "running"
            else "It ended without a report."
        )
        return
    st.markdown("Its last report, of what was measured by then:")
    st.html(summary.verdict.html())
