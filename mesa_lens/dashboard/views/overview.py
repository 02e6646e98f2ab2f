"""Overview: scores by length, the verdict, then the measurements behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import streamlit as st

from mesa.errors import Refused
from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard.runs import Context, Entry, find_status
from mesa_lens.dashboard.state import drifted, opened, summary_of
from mesa_lens.dashboard.views import anatomy, mechanism
from probe.commands.probe.result import Summary
from probe.commands.probe.sections import provenance
from probe.commands.probe.tables import difference_table, drift_table, onset_title, score_table, threshold_doubt
from probe.figures.curves import parted
from probe.figures.drift import drift_map
from probe.figures.export import Export, drift_export
from probe.figures.figure_data import Chart
from probe.glossary import about, explained
from probe.run import Run
from probe.store.result_file import result_text


def page(context: Context) -> None:
    """Scores over length, the verdict, where drift and loss arise, provenance."""
    status = find_status(context.run.path)
    if status is not None and status.state != "finished":
        ui.show_status(status)
    run, summary = opened(context.run), summary_of(context.run)
    read = f"It is read up to {summary.captured_length} tokens here."
    st.html(f"<p>{explained(f'{about(summary.model, summary.trained_length, summary.reference)} {read}')}</p>")
    _curves(context.run, run)
    st.html(summary.verdict.html())
    _scores(summary)
    _drift(context.run, summary)
    for part in (mechanism.overview, anatomy.overview):
        try:
            part(context)
        except Refused as error:
            st.warning(ui.plain(error))
    _provenance(run, summary)


def _scores(summary: Summary) -> None:
    """Every method's scores by length, and their differences to the reference."""
    with st.expander("Scores by length"):
        ui.table(
            replace(
                score_table(summary),
                title=f"{onset_title(summary.onset_by)}, read from hidden states alone, and scores",
            )
        )
        if compared := difference_table(summary):
            ui.table(compared)


def _curves(entry: Entry, run: Run) -> None:
    if run.evaluation is None:
        st.info("Nothing was measured by length: the run was started with \\-\\-samples 0.")
        return
    export = run.curves().export
    first, *others = parted(cast(Chart, export.figures["curves"]))
    ui.show(first, "curves")
    with st.expander("Passkeys, and files"):
        for chart in others:
            ui.show(chart, "passkeys")
        ui.buttons(lambda: export, ui.file_stem(entry.name, "curves"), ui.FORMS, ("csv",))


def _drift(entry: Entry, summary: Summary) -> None:
    """The map of the first prompt's drift by layer and position, or why there is none; every prompt's onsets."""
    st.subheader("Where inside does it show?", anchor=False)
    drifts = drifted(entry)
    if isinstance(drifts, str):
        st.info(ui.plain(f"Drift could not be judged: {drifts}."))
        return
    prompt, drift = next(iter(drifts.items()))
    figure = drift_map(drift, prompt)
    ui.show(figure, "drift-map")
    stem = ui.file_stem(entry.name, prompt, "drift-map")
    ui.buttons(lambda: Export({"drift-map": figure}, drift_export(drift, prompt).numbers), stem, ui.FORMS, ("csv",))
    if not isinstance(summary.drift, str):
        with st.expander("Drift, prompt by prompt"):
            for name, row in summary.drift.prompts.items():
                ui.table(drift_table(row.methods, name))
    if doubt := threshold_doubt(summary):
        st.caption(ui.plain(doubt))


def _provenance(run: Run, summary: Summary) -> None:
    with st.expander("Where these numbers come from"):
        st.json(provenance(run) | {"versions": summary.versions})
        st.markdown("Methods, as they were run, and the rule that thresholds were read by:")
        st.json({"methods": summary.method_configs, "rule": summary.rule}, expanded=False)
    ui.download("Summary (JSON)", result_text(summary), "summary.json")
