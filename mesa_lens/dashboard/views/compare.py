"""Compare runs: models, lengths or settings side by side, on shared axes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import streamlit as st
import xarray as xr

from mesa_lens.dashboard.elements import FORMS, buttons, file_stem, plain, sheet, show, suggest, unchanged
from mesa_lens.dashboard.runs import Context, Entry
from mesa_lens.dashboard.state import analysed, can_open
from probe.figures.curves import curves_chart, overlaid
from probe.figures.export import Export, curves_export, safe_name, threshold_export
from probe.figures.figure_data import Chart, log_ticks
from probe.figures.thresholds import threshold_chart
from probe.thresholds.analysis import Analysis, summarize
from probe.verdict.tables import threshold_doubt

_SETTINGS = "model model_revision source_dtype trained_length length samples seed word".split()
_UNLISTED = "complete spec method_configs versions inputs weights config tokenizer created lengths".split()
_LONGEST = 120  # characters of a setting


@dataclass(frozen=True)
class _Compared:
    """A run and what was read from it."""

    entry: Entry
    analysis: Analysis
    summary: dict[str, Any]


def page(context: Context) -> None:
    """Failure lengths by method, the settings that differ, and figures of the chosen runs."""
    others = {entry.name: entry for entry in context.entries if entry.name != context.run.name and entry.finished}
    if not others:
        command = "mesa-lens probe --length 1024 --prompt world --out runs/second"
        suggest(f"There is no second run under {context.root}. Make one, e.g.:", command)
        return
    default = [name for name, entry in others.items() if can_open(entry)][:1]
    names = st.multiselect("Beside", list(others), default, key="with", bind="query-params", filter_mode="contains")
    runs = [_read(context.run)]
    for name in names:
        try:
            runs.append(_read(others[name]))
        except (ValueError, OSError) as error:
            st.warning(plain(f"{name} is left out: {error}"))
    st.subheader("Predicted and measured failure length")
    sheet(_failures(runs), "Failure lengths of the runs by method", height="content")
    st.subheader("Settings that differ")
    if differing := _differences(runs):
        sheet(differing, "Settings in which the runs differ", height="content")
    else:
        st.markdown("None of those that are recorded.")
    _curves(runs)
    _clearest(runs)


def _read(entry: Entry) -> _Compared:
    analysis = analysed(entry)
    return _Compared(entry, analysis, summarize(analysis))


def _failures(runs: Sequence[_Compared]) -> list[dict[str, Any]]:
    """One row a method."""
    tables = {run.entry.name: {row["method"]: row for row in run.summary["methods"]} for run in runs}
    methods = dict.fromkeys(method for table in tables.values() for method in table)
    return [
        {"method": method}
        | {
            f"{kind}, {name}": table[method][kind]["text"] if method in table else "not run"
            for kind in ("predicted", "measured")
            for name, table in tables.items()
        }
        for method in methods
    ]


def _curves(runs: Sequence[_Compared]) -> None:
    """Scores over length, of all runs that measured them, in one chart."""
    exports, charts = {}, []
    for run in runs:
        evaluation, measured = run.analysis.run.evaluation, run.analysis.measured
        if evaluation is not None and measured is not None:
            inputs = (evaluation, measured, run.analysis.trained_length, run.analysis.headline)
            exports[run.entry.name] = unchanged(run.entry, partial(curves_export, *inputs))
            charts.append((run.entry.name, str(run.summary["model"]), curves_chart(*inputs)))
    if not charts:
        return
    chart = overlaid(charts)

    def export() -> Export:
        numbers = {
            f"{safe_name(name)}-{table}": values
            for name, make in exports.items()
            for table, values in make().numbers.items()
        }
        return Export({"curves": chart}, numbers)

    st.subheader("Scores over length", anchor=False)
    show(chart, f"Scores over length of runs {', '.join(exports)}", "curves")
    buttons(export, file_stem(*exports, "curves"), FORMS, ("csv",))


def _clearest(runs: Sequence[_Compared]) -> None:
    """Each run's clearest dim, on axes that span the same."""
    clear = [run for run in runs if run.analysis.best]
    inputs = [(*_first_prompt(run.analysis), run.analysis.best[:1]) for run in clear]
    charts = [threshold_chart(hidden, thresholds, *pairs[0]) for hidden, thresholds, pairs in inputs]
    for run, chart, exported in zip(clear, _shared(charts), inputs, strict=True):
        entry, summary = run.entry, run.summary
        st.subheader(plain(entry.name), anchor=False)
        captured = f"M = {summary['trained_length']}, read up to {summary['captured_length']} tokens"
        st.caption(plain(f"{summary['model']}, {captured}"))
        if doubt := threshold_doubt(summary):
            st.caption(plain(doubt))
        show(chart, chart.title, f"dim-{entry.name}")
        stem = file_stem(entry.name, run.analysis.prompt, "clearest-dim")
        buttons(partial(threshold_export, *exported), stem, FORMS, ("csv",), entry)
    for run in runs:
        if run not in clear:
            st.info(plain(f"No dim of {run.entry.name} shows an observable threshold."))


def _first_prompt(analysis: Analysis) -> tuple[xr.DataArray, xr.Dataset]:
    """The states and thresholds of the prompt that the predictions are made of."""
    return analysis.hidden.sel(prompt=analysis.prompt), analysis.crossings.sel(prompt=analysis.prompt)


def _shared(charts: Sequence[Chart]) -> list[Chart]:
    """The charts with panels of one kind, known by the title of their y axis, on the same axes."""
    by_kind: dict[str, list[Any]] = {}
    for chart in charts:
        for panel in chart.panels:
            by_kind.setdefault(panel.y_title, []).append(panel)
    axes = {}
    for kind, panels in by_kind.items():
        ticks = tuple(sorted({tick for panel in panels for tick in panel.x_ticks}))
        x = [end for panel in panels for line in panel.lines for end in (np.nanmin(line.x), np.nanmax(line.x))]
        axes[kind] = {
            "y_range": (min(panel.y_range[0] for panel in panels), max(panel.y_range[1] for panel in panels)),
            "x_range": (min(x), max(x)),
            "x_ticks": log_ticks(ticks) if ticks and panels[0].log_x else ticks,
        }
    return [
        replace(chart, panels=tuple(replace(panel, **axes[panel.y_title]) for panel in chart.panels))
        for chart in charts
    ]


def _differences(runs: Sequence[_Compared]) -> list[dict[str, Any]]:
    """Every recorded setting that is not the same in all runs: provenance, what was captured, methods' settings."""
    settings = {run.entry.name: _settings(run.analysis) for run in runs}
    names = dict.fromkeys(name for values in settings.values() for name in values)
    return [
        {"setting": name.replace("_", " ")}
        | {run: values.get(name, "not recorded") for run, values in settings.items()}
        for name in names
        if len({values.get(name) for values in settings.values()}) > 1
    ]


def _settings(analysis: Analysis) -> dict[str, str]:
    attrs, hidden = analysis.run.hidden.attrs, analysis.hidden
    names = dict.fromkeys([*_SETTINGS, *attrs])
    settings = {name: _shorten(attrs[name]) for name in names if name in attrs and name not in _UNLISTED}
    settings |= {f"{name}s": ", ".join(map(str, hidden[name].values)) for name in ("method", "prompt")}
    settings |= {f"{name}s": str(hidden.sizes[name]) for name in ("layer", "position", "dim")}
    evaluation = analysis.run.evaluation
    if evaluation is not None:
        settings["measured lengths"] = ", ".join(map(str, sorted(evaluation["length"].values.tolist())))
    for method, config in json.loads(attrs.get("method_configs", "{}")).items():
        settings |= {f"{method}: {name}": str(value) for name, value in config.items() if name != "name"}
    return {name: text for name, text in settings.items() if text}


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
