"""Results: scores of `mesa-lens eval`, differences to the reference first."""

from dataclasses import replace
from pathlib import Path
from shlex import quote

import streamlit as st

from mesa_lens.dashboard import address, elements as ui
from mesa_lens.dashboard.runs import Context, place_of_more, results, unfinished
from probe.commands.eval.page import Evaluated, HarnessScores, evaluation_numbers, harness_table, sections
from probe.figures.export import Export
from probe.figures.section import figures_of

_HOW = "mesa-lens eval --out {0}/eval"


def page(context: Context) -> None:
    """The chosen result, by default the newest; or the commands that make one."""
    root = Path(context.root)
    known = {result.label: result for result in results(root)}
    if running := unfinished(root):
        with st.expander(f"Not finished: {len(running)}"):
            ui.show_status(*running)
    if not known:
        address.keep()
        place, show = place_of_more(root)
        ui.suggest(f"There is no evaluation under {root}. Make one, e.g.:", _HOW.format(quote(str(place))) + show)
        return
    result = known[address.select(st, "Result", list(known), "result", help="Newest first")]
    read = result.read()
    if isinstance(read, HarnessScores):
        st.markdown(f"Model **{ui.plain(read.model)}**, prompts of at most {read.max_length} tokens.")
        ui.table(harness_table(read))
    else:
        _evaluation(read, result.name)


def _evaluation(result: Evaluated, stem: str) -> None:
    """What the report says, and downloads of each chart."""
    about, *others = sections(result)
    ui.draw([replace(about, figures={}), *others[:1]], "")
    numbers = evaluation_numbers(result)
    for task, chart in figures_of([about]).items():
        key = ui.file_stem(stem, task)
        ui.show(chart, key)
        export = Export({task: chart}, {name: data for name, data in numbers.items() if data.attrs["task"] == task})
        ui.buttons(lambda export=export: export, key, ui.FORMS, ("csv",) if len(export.numbers) > 1 else ())
    ui.draw(others[1:], stem)
