"""Compare runs: two stores side by side, such as two models or two lengths."""

from __future__ import annotations

from typing import Any

import streamlit as st

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.look import columns, plain, show
from mesa_lens.dashboard.runs import Entry
from mesa_lens.dashboard.state import analysed
from probe.figures.interactive import curves_figure, threshold_figure
from probe.thresholds.analysis import Analysis, summarize

_PROVENANCE = (
    "model",
    "model_revision",
    "trained_length",
    "length",
    "source_dtype",
    "samples",
    "seed",
    "word",
    "created",
)


def page(context: Context) -> None:
    """The second run's choice, the difference in settings, results by method, figures side by side."""
    others = [entry for entry in context.entries if entry.name != context.run.name]
    if not others:
        st.info(plain(f"There is no second run under {context.root}. Make one, e.g.:"))
        st.code("mesa-lens probe --length 1024 --prompt world --out runs/second", language="bash")
        return
    names = [entry.name for entry in others]
    name = st.selectbox("Second run", names, key="with", bind="query-params")
    pair = (context.run, others[names.index(name)])
    found = [analysed(entry) for entry in pair]
    summaries = [summarize(each) for each in found]
    st.subheader("Predicted and measured failure length")
    st.dataframe(columns(_rows(pair, summaries)), hide_index=True, alt="Failure lengths of both runs by method")
    for place, entry, analysis, summary in zip(st.columns(2), pair, found, summaries, strict=True):
        with place:
            st.subheader(plain(entry.name), anchor=False)
            _draw(entry, analysis, summary)
    st.subheader("Settings that differ")
    differences = _differences(pair, found)
    if differences:
        st.dataframe(columns(differences), hide_index=True, alt="Settings in which the runs differ")
    else:
        st.markdown("None of those that are recorded.")


def _rows(pair: tuple[Entry, ...], summaries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a method; empty where a run does not have it."""
    by_run = [{row["method"]: row for row in summary["methods"]} for summary in summaries]
    rows = []
    for method in dict.fromkeys(name for each in by_run for name in each):
        row: dict[str, Any] = {"method": method}
        for what in ("predicted", "measured"):
            for entry, each in zip(pair, by_run, strict=True):
                row[f"{what}, {entry.name}"] = each[method][what]["text"] if method in each else None
        rows.append(row)
    return rows


def _draw(entry: Entry, analysis: Analysis, summary: dict[str, Any]) -> None:
    """A run's curves, and its clearest dim."""
    trained = analysis.trained_length
    st.caption(plain(f"{summary['model']}, M = {trained}, read up to {summary['captured_length']} tokens"))
    if analysis.run.evaluation is not None and analysis.measured is not None:
        predictions = analysis.headline
        curves = curves_figure(analysis.run.evaluation, analysis.measured, trained, predictions)
        show(_stacked(curves), f"Scores over length of run {entry.name}", f"curves-{entry.name}")
    if not analysis.best:
        st.info("No dim shows an observable threshold.")
        return
    layer, dim = analysis.best[0]
    st.markdown(f"Its clearest dim: layer {layer}, dim {dim}")
    found = analysis.found.sel(prompt=analysis.prompt)
    figure = threshold_figure(analysis.hidden.sel(prompt=analysis.prompt), found, layer, dim)
    show(_stacked(figure), f"Layer {layer}, dim {dim} of run {entry.name} over position", f"dim-{entry.name}")


def _stacked(figure: Any) -> Any:
    """Two panels one above the other, untitled: half a page is too narrow for more."""
    if "xaxis2" not in figure.layout:
        return figure
    figure.update_layout(
        xaxis_domain=[0, 1], xaxis2_domain=[0, 1], yaxis_domain=[0.58, 1], yaxis2_domain=[0, 0.42], height=820
    )
    titles = [note for note in figure.layout["annotations"] if note["yref"] == "paper" and note["y"] == 1]
    for note, height in zip(titles, (1, 0.42), strict=False):
        note.update(x=0, y=height, xanchor="left")
    return figure.update_layout(legend_y=-0.12, title_text=None)


def _differences(pair: tuple[Entry, ...], found: list[Analysis]) -> list[dict[str, Any]]:
    attrs = [each.run.hidden.attrs for each in found]
    return [
        {"setting": name, **{entry.name: str(each.get(name)) for entry, each in zip(pair, attrs, strict=True)}}
        for name in _PROVENANCE
        if attrs[0].get(name) != attrs[1].get(name)
    ]
