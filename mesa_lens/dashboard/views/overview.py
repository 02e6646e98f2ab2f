"""Overview: what broke, where, what mended it, how sure that is; then what it rests on."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from typing import Any

import streamlit as st

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.downloads import FORMS, buttons, named
from mesa_lens.dashboard.look import plain, sheet, show
from mesa_lens.dashboard.runs import Entry, changed
from mesa_lens.dashboard.state import analysed, opened, while_unchanged
from mesa_lens.dashboard.views import anatomy, drift, mechanism, progress
from probe.figures.curves import curves_chart
from probe.figures.export import curves_export
from probe.report import provenance, whole_summary
from probe.store.reader import Run
from probe.store.results import LOCATED, VERDICT, find_located, run_summary
from probe.thresholds.calls import Call
from probe.thresholds.failure import measured_failure
from probe.thresholds.findings import difference_table, findings
from probe.thresholds.predict import Prediction
from probe.verdict.verdict import html, verdict


def page(context: Context) -> None:
    """The verdict, curves over length, the map of what was located, words, links and provenance."""
    progress.overview(context.run.path)
    run = opened(context.run)
    summary = run_summary(context.run.path, run) or whole_summary(analysed(context.run))
    trained, captured = summary["trained_length"], summary["captured_length"]
    st.markdown(
        f"Model **{plain(summary['model'])}**, trained window **M = {trained}** tokens, "
        f"read up to **{captured}** tokens under {len(summary['methods'])} methods."
    )
    st.html(html(_verdict(context.run, summary)))
    _scores(summary)
    _curves(context.run, run, summary)
    drift.overview(context)
    mechanism.overview(context)
    anatomy.overview(context)
    for heading, text in findings(summary):
        st.subheader(heading)
        st.markdown(plain(text))
    _links(context, summary)
    _provenance(run, summary)


def _verdict(entry: Entry, summary: dict[str, Any]) -> dict[str, Any]:
    """The verdict with what was located since the summary was written; what is damaged of that is told further down."""
    if changed(entry.path / LOCATED) > changed(entry.path / "summary.json"):
        with suppress(ValueError):
            return verdict(summary, find_located(entry.path))
    return summary[VERDICT]


def _scores(summary: dict[str, Any]) -> None:
    """Every method's scores by length, and those less the reference's."""
    rows = [_row(row) for row in summary["methods"]]
    with st.expander("Scores by length"):
        alt = "Predicted failure length and scores of each method"
        sheet(rows, alt, column_config=_formats(rows[0]), height="content")
        if compared := difference_table(summary):
            st.markdown(plain(f"{compared.title[0].upper()}{compared.title[1:]}"))
            rows = [dict(zip(compared.head, row, strict=True)) for row in compared.rows]
            alt = "Differences to the reference with their intervals"
            sheet(rows, alt, height="content")


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """One method's line of the table."""
    scores = {f"NLL {name}": each["tail_nll"] for name, each in row["scores"].items()}
    scores |= {f"passkey {name}": each["passkey"] for name, each in row["scores"].items()}
    return {"method": row["method"], "predicted": row["predicted"]["text"], **scores}


def _formats(row: dict[str, Any]) -> dict[str, Any]:
    """Two decimals, and what the columns mean."""
    predicted = (
        "Failure length in tokens, read from hidden states alone: where the states of the first layer leave what they "
        "did inside the window. Descriptive: the reference's own, which follows the stated M by construction"
    )
    named = {"predicted": st.column_config.TextColumn(help=predicted)}
    scores = [name for name in row if name.startswith(("NLL", "passkey"))]
    return named | {name: st.column_config.NumberColumn(format="%.2f") for name in scores}


def _curves(entry: Entry, run: Run, summary: dict[str, Any]) -> None:
    if run.evaluation is None:
        st.info("Nothing was measured by length: the run was made with \\-\\-samples 0.")
        return
    kind = Call if summary.get("predicted_by") == "drift" else Prediction
    known = [field.name for field in fields(kind)]
    predictions = [kind(**{name: row["predicted"][name] for name in known}) for row in summary["methods"]]
    measured = measured_failure(run.evaluation, run.trained_length, summary["reference"])
    failing = ", ".join(f"{each.method} {each}" for each in measured.failures)
    shown = (run.evaluation, measured, run.trained_length, predictions)
    alt = f"Tail NLL and passkey accuracy over length by method. Measured failure: {failing}"
    show(curves_chart(*shown), alt, "curves")
    make = while_unchanged(entry, lambda: curves_export(*shown))
    buttons(make, named(entry.name, "curves"), FORMS, ("csv",))


def _links(context: Context, summary: dict[str, Any]) -> None:
    """Links to the other pages, with the run and the clearest dim in the URL."""
    st.subheader("Look closer")
    here = {"run": context.run.name, "prompt": summary["prompt"]}
    best = summary["best"]
    clearest = {"pairs": f"{best[0]['layer']}:{best[0]['dim']}"} if best else {}
    places = (
        ("thresholds", "The clearest dim over position", here | clearest),
        ("heatmaps", "Hidden states, method by method", here),
        ("compare", "Beside another run", {"run": context.run.name}),
    )
    for column, (url, label, query) in zip(st.columns(len(places)), places, strict=True):
        column.page_link(context.pages[url], label=label, query_params=query)


def _provenance(run: Run, summary: dict[str, Any]) -> None:
    with st.expander("Where these numbers come from"):
        st.json(provenance(run) | {"versions": summary["versions"]})
        st.markdown("Methods, as they were run, and the rule that thresholds were read by:")
        st.json({"methods": summary["method_configs"], "rule": summary["rule"]}, expanded=False)
    st.download_button(
        "Summary (JSON)",
        json.dumps(summary, indent=1),
        "summary.json",
        "application/json",
        on_click="ignore",
        icon=":material/download:",
    )
