"""What pages need of a large store and nobody worked out yet: said, and worked out when asked for, under a bar."""

from __future__ import annotations

import shlex

import streamlit as st

from mesa_lens.dashboard.look import plain
from mesa_lens.dashboard.state import NotWorkedOut, work_out


def offer(lacking: NotWorkedOut) -> None:
    """Says what is lacking of which run, with the button that has it made and the command that does."""
    entry, hook = lacking.entry, lacking.hook
    st.info(plain(f"{lacking}."))
    if st.button("Work it out now", key=f"work out {entry.name} {hook}"):
        bar = st.progress(0.0, "Reading …")
        work_out(entry, hook, bar.progress)
        st.rerun()
    st.caption("The same from the command line, which also writes the run's report anew:")
    st.code(f"mesa-lens report {shlex.quote(str(entry.path))}", language="bash")
