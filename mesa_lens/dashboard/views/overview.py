"""Overview: the answer in two sentences and one chart, the way to the other pages, and what the answer rests on."""

from __future__ import annotations

from typing import cast

import streamlit as st

from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard.runs import Context
from probe.commands.probe.report import provenance, scores
from probe.commands.probe.result import Summary
from probe.commands.probe.verdict import about_run
from probe.figures.curves import parted
from probe.figures.figure_data import Chart
from probe.glossary import explained
from probe.run import Run
from probe.store.result_file import result_text

_ANSWER = 2  # parts of the verdict whose first sentence opens the page: what fails, what fixes it
_CARDS = {
    "mechanism": "Which layers and attention heads lose it, and where a method fixes it.",
    "thresholds": "Single dims of hidden states whose values pass a threshold at M.",
    "heatmaps": "Hidden states over layers, dims and positions, method by method.",
    "theory": "How far the paper's constructions reach, and which of its claims hold.",
}


def page(context: Context) -> None:
    """Two sentences, the loss by length, links to the other pages; then the verdict, scores, and their origin."""
    status = context.run.status
    if status is not None and status.state != "finished":
        ui.show_status(status)
    run, summary = context.run.run, context.run.summary
    answer = [part.text.partition(". ") for part in summary.verdict.sentences[:_ANSWER]]
    read = f"It is read up to {summary.captured_length} tokens here."
    texts = [f"{first.removesuffix('.')}." for first, *_ in answer]
    large = "".join(f"<p style='font-size: 1.2rem; margin: 0 0 .5rem'>{explained(text)}</p>" for text in texts)
    terms = explained(f"{about_run(summary)} {read}")
    st.html(f"<div style='max-width: 100ch'>{large}<p>{terms}</p></div>")
    export = None if run.evaluation is None else run.curves().export
    charts = parted(cast(Chart, export.figures["curves"])) if export else []
    if charts:
        ui.show(charts[0], "curves", file=ui.file_stem(context.run.name, "curves"))
    else:
        st.info("Nothing was measured by length: the run was started with \\-\\-samples 0.")
    _cards(context)
    st.html(summary.verdict.html())
    if export:
        with st.expander("Passkeys, and files"):
            for chart in charts[1:]:
                ui.show(chart, "passkeys", file=ui.file_stem(context.run.name, "passkeys"))
            ui.buttons(lambda: export, ui.file_stem(context.run.name, "curves"), ui.FORMS, ("csv",))
    ui.draw([scores(summary)], "overview")
    _provenance(run, summary)


def _cards(context: Context) -> None:
    """A link to each page that shows more, with what is there."""
    for column, (name, text) in zip(st.columns(len(_CARDS)), _CARDS.items(), strict=True):
        with column.container(border=True, height="stretch"):
            st.page_link(context.pages[name], query_params={"run": context.run.name})
            st.markdown(ui.plain(text))


def _provenance(run: Run, summary: Summary) -> None:
    with st.expander("Where these numbers come from"):
        st.json(provenance(run) | {"versions": summary.versions})
        st.markdown("Methods, as they were run, and the rule that thresholds were read by:")
        st.json({"methods": summary.method_configs, "rule": vars(summary.rule)}, expanded=False)
    ui.download("Summary (JSON)", result_text(summary), "summary.json")
