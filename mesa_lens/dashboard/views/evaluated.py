"""An evaluation: differences to the reference with their intervals, curves over length, all scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.downloads import FORMS, buttons, named
from mesa_lens.dashboard.look import plain, sheet, show
from mesa_lens.dashboard.results import Result
from mesa_lens.dashboard.width import is_narrow
from mesa_lens.paper.words import harness_table, words
from probe.evaluation.effective import effective_table
from probe.evaluation.summary import Table, difference_tables, longppl_table, mean_tables
from probe.figures.curves import evaluation_charts, evaluation_numbers
from probe.figures.export import Export
from probe.store.results import find_summary

_CHARACTER, _LONG = 8, 20  # pixels; characters that fit where columns share the page's width
_NEEDED = ("model", "trained_length", "out_of_memory", "cells_left", "cells")


def page(context: Context, result: Result) -> None:
    """What the folder's summary.json says."""
    summary = read(result, _NEEDED, "eval")
    st.markdown(
        f"Model **{plain(summary['model'])}**, trained window **M = {plain(summary['trained_length'])}** tokens."
    )
    for sentence in words(summary):
        st.markdown(plain(sentence))
    scores(summary, result.name)


def harness_page(context: Context, result: Result) -> None:
    """lm-eval's scores, as `mesa-lens eval --harness` wrote them."""
    summary = read(result, ("model", "max_length", "results"), "eval")
    st.markdown(f"Model **{plain(summary['model'])}**, prompts of at most {plain(summary['max_length'])} tokens.")
    table(harness_table(summary))


def read(result: Result, names: tuple[str, ...], command: str) -> Mapping[str, Any]:
    """The result's file; ValueError, naming the command that writes it, for one that is damaged."""
    found = find_summary(result.path, result.file.relative_to(result.path), names, command)
    if found is None:
        raise ValueError(f"{result.file} has gone; reload this page")
    return found


def scores(summary: Mapping[str, Any], stem: str) -> None:
    """Effective lengths, LongPPL, differences to the reference, curves with downloads, and all means in a fold."""
    judged = {
        "Effective length": effective_table(summary.get("effective", ())),
        "LongPPL": longppl_table(summary.get("longppl", ())),
    }
    for heading, found in judged.items():
        if found:
            st.subheader(heading, anchor=False)
            table(found)
    compared = list(difference_tables(summary["cells"]))
    if compared:
        st.subheader("Differences to the reference", anchor=False)
        for each in compared:
            table(each)
        st.subheader("Scores over length", anchor=False)
    numbers = evaluation_numbers(summary)
    for task, chart in evaluation_charts(summary).items():
        key = named(stem, task)
        show(chart, chart.title, key)
        own = {name: values for name, values in numbers.items() if values.attrs["task"] == task}
        made = Export({task: chart}, own)
        buttons(lambda made=made: made, key, FORMS, ("csv",) if len(own) > 1 else ())
    with st.expander("All scores"):
        for each in mean_tables(summary["cells"]):
            table(each)


def table(shown: Table) -> None:
    """A table under its title."""
    st.markdown(plain(shown.title))
    cells = {name: [row[at] for row in shown.rows] for at, name in enumerate(shown.head)}
    longest = {name: max(map(len, (name, *column))) for name, column in cells.items()}
    most = _LONG if is_narrow() else max(longest.values(), default=0)  # so that a phone shows more than names
    wide = {
        name: st.column_config.TextColumn(width=_CHARACTER * min(size, most))
        for name, size in longest.items()
        if size > _LONG
    }
    sheet(cells, shown.title, height="content", column_config=wide)
