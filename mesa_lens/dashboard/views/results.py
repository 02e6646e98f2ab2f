"""Results: scores of `mesa-lens eval` and `paper`, differences to the reference first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any

import streamlit as st

from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard.runs import EVALUATION, HARNESS, REPORT, Context, Result, results, unfinished
from mesa_lens.paper.sections import SECTIONS, Section
from probe.evaluation.effective import effective_table
from probe.evaluation.summary import Table, difference_tables, longppl_table, mean_tables
from probe.evaluation.text import harness_table, sentences
from probe.figures.curves import evaluation_charts, evaluation_numbers
from probe.figures.export import Export
from probe.store.results import VERDICT
from probe.verdict.verdict import html

_HOW = "mesa-lens eval --out {0}/eval\nmesa-lens paper --out {0}/paper"


def page(context: Context) -> None:
    """The chosen result, by default the newest; or the commands that make one."""
    root = Path(context.root)
    known = {result.label: result for result in results(root)}
    if running := unfinished(root):
        with st.expander(f"Not finished: {len(running)}"):
            st.code("\n".join(status.text() for status in running), language=None)
    if not known:
        ui.suggest(f"There is no evaluation or paper run under {root}. Make one, e.g.:", _HOW.format(quote(str(root))))
        return
    name = st.query_params.get("result")
    if name is not None and name not in known:
        st.warning(ui.plain(f"There is no result {name} under the folder of runs."))
    result = known[st.selectbox("Result", list(known), key="result", bind="query-params", help="Newest first")]
    summary = result.read()
    model = f"Model **{ui.plain(summary['model'])}**"
    if result.kind == HARNESS:
        st.markdown(f"{model}, prompts of at most {ui.plain(summary['max_length'])} tokens.")
        ui.table(harness_table(summary))
    elif result.kind == EVALUATION:
        st.markdown(f"{model}, trained window **M = {ui.plain(summary['trained_length'])}** tokens.")
        _evaluation(summary, result.name)
    else:
        st.markdown(f"{model}. The paper's numbers are of its models, not of this one.")
        _paper(context, result, summary)


def _evaluation(summary: Mapping[str, Any], stem: str) -> None:
    """Effective lengths, LongPPL, differences to the reference, curves with downloads, and all means in a fold."""
    for sentence in sentences(summary):
        st.markdown(ui.plain(sentence))
    tables = {
        "Effective length": effective_table(summary.get("effective", ())),
        "LongPPL": longppl_table(summary.get("longppl", ())),
    }
    for heading, values in tables.items():
        if values:
            st.subheader(heading, anchor=False)
            ui.table(values)
    differences = list(difference_tables(summary["cells"]))
    if differences:
        st.subheader("Differences to the reference", anchor=False)
        for values in differences:
            ui.table(values)
        st.subheader("Scores over length", anchor=False)
    numbers = evaluation_numbers(summary)
    for task, chart in evaluation_charts(summary).items():
        key = ui.file_stem(stem, task)
        ui.show(chart, key)
        export = Export({task: chart}, {name: data for name, data in numbers.items() if data.attrs["task"] == task})
        ui.buttons(lambda export=export: export, key, ui.FORMS, ("csv",) if len(export.numbers) > 1 else ())
    with st.expander("All scores"):
        for values in mean_tables(summary["cells"]):
            ui.table(values)


def _paper(context: Context, result: Result, summary: Mapping[str, Any]) -> None:
    """The sections in the report's order, each beside what the paper prints; the report as a download."""
    printed = json.loads(files("mesa_lens.paper").joinpath("printed.json").read_text(encoding="utf-8"))
    ui.download("Report (HTML)", (result.path / REPORT).read_bytes, f"{ui.file_stem(result.name)}.html")
    for name, measured in summary["sections"].items():
        section = SECTIONS.get(name)
        if section is None:
            st.warning(ui.plain(f"Section {name} is not known to this version."))
            continue
        st.header(ui.plain(section.title), anchor=False, divider="gray")
        st.caption(ui.plain(f"{section.place}. The paper: {section.paper}"))
        _section(context, result, section, measured)
        for key in section.printed:
            with st.expander(ui.plain(f"Printed in the paper: {printed[key]['title']}")):
                ui.table(Table("", tuple(printed[key]["head"]), tuple(map(tuple, printed[key]["rows"]))))


def _section(context: Context, result: Result, section: Section, measured: Mapping[str, Any]) -> None:
    """The numbers of a section, or why it was left out."""
    if "left_out" in measured:
        st.info(ui.plain(f"Not run: {measured['left_out']}."))
    elif "results" in measured:
        ui.table(harness_table(measured))
    elif VERDICT in measured:
        st.html(html(measured[VERDICT]))
        run = f"{result.name}/{section.name}"
        if any(entry.name == run for entry in context.entries):
            st.page_link(context.pages["overview"], label="Look closer at this run", query_params={"run": run})
    else:
        _evaluation(measured, ui.file_stem(result.name, section.name))
