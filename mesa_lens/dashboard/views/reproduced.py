"""The paper's experiments on a model: each section's numbers beside what the paper says and prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import streamlit as st

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.downloads import named
from mesa_lens.dashboard.look import plain
from mesa_lens.dashboard.results import REPORT, Result
from mesa_lens.dashboard.views.evaluated import read, scores, table
from mesa_lens.paper.sections import SECTIONS, Section
from mesa_lens.paper.words import harness_table, words
from probe.evaluation.summary import Table
from probe.store.results import VERDICT
from probe.verdict.verdict import html


def page(context: Context, result: Result) -> None:
    """One section after another, in the report's order; the report as a download."""
    found = read(result, ("model", "sections"), "paper")
    printed = json.loads(files("mesa_lens.paper").joinpath("printed.json").read_text(encoding="utf-8"))
    st.markdown(f"Model **{plain(found['model'])}**. The paper's own numbers are of its models, not of this one.")
    st.download_button(
        "Report (HTML)",
        (result.path / REPORT).read_bytes,
        f"{named(result.name)}.html",
        "text/html",
        on_click="ignore",
        icon=":material/download:",
    )
    for name, given in found["sections"].items():
        section = SECTIONS.get(name)
        if section is None:
            st.warning(plain(f"Section {name} is not known to this version."))
            continue
        st.header(plain(section.title), anchor=False, divider="gray")
        st.caption(plain(f"{section.place}. The paper: {section.paper}"))
        _section(context, result, section, given)
        for each in section.printed:
            with st.expander(plain(f"Printed in the paper: {printed[each]['title']}")):
                table(Table("", tuple(printed[each]["head"]), tuple(map(tuple, printed[each]["rows"]))))


def _section(context: Context, result: Result, section: Section, given: Mapping[str, Any]) -> None:
    """What a section gave, or why it was left out."""
    if "left_out" in given:
        st.info(plain(f"Not run: {given['left_out']}."))
    elif "results" in given:
        table(harness_table(given))
    elif VERDICT in given:
        st.html(html(given[VERDICT]))
        run = f"{result.name}/{section.name}"
        if any(entry.name == run for entry in context.entries):
            st.page_link(context.pages["overview"], label="Look closer at this run", query_params={"run": run})
    else:
        for sentence in words(given):
            st.markdown(plain(sentence))
        scores(given, named(result.name, section.name))
