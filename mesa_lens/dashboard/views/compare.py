"""Compare runs: several stores side by side, such as models, lengths or settings, on shared axes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import streamlit as st

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.downloads import FORMS, buttons, named
from mesa_lens.dashboard.look import plain, sheet, show
from mesa_lens.dashboard.runs import Entry
from mesa_lens.dashboard.state import analysed, can_open, while_unchanged
from probe.figures.curves import curves_chart, overlaid
from probe.figures.export import Export, curves_export, safe_name, threshold_export
from probe.figures.figure_data import Chart, log_ticks
from probe.figures.thresholds import threshold_chart
from probe.thresholds.analysis import Analysis, summarize
from probe.thresholds.control import ALPHA

_SETTINGS = "model model_revision source_dtype trained_length length samples seed word".split()
# Told elsewhere, or sums.
_UNTOLD = (
    "complete",
    "spec",
    "method_configs",
    "versions",
    "inputs",
    "weights",
    "config",
    "tokenizer",
    "created",
    "lengths",
)
_LONGEST = 120  # characters of a setting


@dataclass(frozen=True)
class _Compared:
    """A run and what was read from it."""

    entry: Entry
    analysis: Analysis
    summary: dict[str, Any]


def page(context: Context) -> None:
    """The other runs' choice, results by method, the settings that differ, figures side by side on shared axes."""
    others = [entry for entry in context.entries if entry.name != context.run.name and entry.finished]
    if not others:
        st.info(plain(f"There is no second run under {context.root}. Make one, e.g.:"))
        st.code("mesa-lens probe --length 1024 --prompt world --out runs/second", language="bash")
        return
    names = [entry.name for entry in others]
    first = next((entry.name for entry in others if can_open(entry)), None)
    preselected = [] if first is None else [first]
    asked = st.multiselect("Beside", names, preselected, key="with", bind="query-params", filter_mode="contains")
    runs = [_read(context.run), *_readable([others[names.index(name)] for name in asked])]
    st.subheader("Predicted and measured failure length")
    sheet(_rows(runs), "Failure lengths of the runs by method", height="content")
    st.subheader("Settings that differ")
    differing = _differences(runs)
    if differing:
        sheet(differing, "Settings in which the runs differ", height="content")
    else:
        st.markdown("None of those that are recorded.")
    _figures(runs)


def _readable(entries: Sequence[Entry]) -> list[_Compared]:
    """The runs that can be read; of each other one the page says why it is left out."""
    runs = []
    for entry in entries:
        try:
            runs.append(_read(entry))
        except (ValueError, OSError) as error:
            st.warning(plain(f"{entry.name} is left out: {error}"))
    return runs


def _read(entry: Entry) -> _Compared:
    analysis = analysed(entry)
    return _Compared(entry, analysis, summarize(analysis))


def _rows(runs: Sequence[_Compared]) -> list[dict[str, Any]]:
    """One line a method; empty where a run does not have it."""
    by_run = [{row["method"]: row for row in run.summary["methods"]} for run in runs]
    rows = []
    for method in dict.fromkeys(name for each in by_run for name in each):
        row: dict[str, Any] = {"method": method}
        for what in ("predicted", "measured"):
            for run, each in zip(runs, by_run, strict=True):
                row[f"{what}, {run.entry.name}"] = each[method][what]["text"] if method in each else "not run"
        rows.append(row)
    return rows


def _figures(runs: Sequence[_Compared]) -> None:
    """The curves of all runs in one chart, then each run's clearest dim, on axes that span the same."""
    _curves(runs)
    clear = [run for run in runs if run.analysis.best]
    for run, chart in zip(clear, _shared([_clearest(run.analysis) for run in clear]), strict=True):
        _head(run)
        if doubt := _doubt(run.summary):
            st.caption(plain(doubt))
        show(chart, chart.title, f"dim-{run.entry.name}")
        found, pair = run.analysis, run.analysis.best[:1]
        make = while_unchanged(run.entry, lambda found=found, pair=pair: threshold_export(*_of_prompt(found), pair))
        buttons(make, named(run.entry.name, found.prompt, "clearest-dim"), FORMS, ("csv",))
    for run in runs:
        if run not in clear:
            st.info(plain(f"No dim of {run.entry.name} shows an observable threshold."))


def _curves(runs: Sequence[_Compared]) -> None:
    """Scores over length, of all runs that measured them in one chart."""
    exports, charts = {}, []
    for run in runs:
        evaluation, measured = run.analysis.run.evaluation, run.analysis.measured
        if evaluation is not None and measured is not None:
            of = (evaluation, measured, run.analysis.trained_length, run.analysis.headline)
            exports[run.entry.name] = while_unchanged(run.entry, lambda of=of: curves_export(*of))
            charts.append((run.entry.name, str(run.summary["model"]), curves_chart(*of)))
    if not charts:
        return
    chart = overlaid(charts)

    def make() -> Export:
        numbers = {
            f"{safe_name(name)}-{table}": values
            for name, export in exports.items()
            for table, values in export().numbers.items()
        }
        return Export({"curves": chart}, numbers)

    st.subheader("Scores over length", anchor=False)
    show(chart, f"Scores over length of runs {', '.join(exports)}", "curves")
    buttons(make, named(*exports, "curves"), FORMS, ("csv",))


def _head(run: _Compared) -> None:
    summary = run.summary
    st.subheader(plain(run.entry.name), anchor=False)
    captured = f"M = {summary['trained_length']}, read up to {summary['captured_length']} tokens"
    st.caption(plain(f"{summary['model']}, {captured}"))


def _doubt(summary: dict[str, Any]) -> str:
    """Whether the negative control leaves the run's observable dims in doubt; empty where it does not."""
    control = summary["control"]
    if isinstance(control, str):
        return f"Cannot tell whether this dim is above chance: no negative control ({control})."
    share = control["prompts"][summary["prompt"]]["as_many"]
    if share <= ALPHA:
        return ""
    return f"Cannot tell this dim from chance: {share:.0%} of the positions inside M have as many observable dims as M."


def _of_prompt(analysis: Analysis) -> tuple[Any, Any]:
    return analysis.hidden.sel(prompt=analysis.prompt), analysis.crossings.sel(prompt=analysis.prompt)


def _clearest(analysis: Analysis) -> Chart:
    return threshold_chart(*_of_prompt(analysis), *analysis.best[0])


def _shared(charts: Sequence[Chart]) -> list[Chart]:
    """The charts with panels of one kind, known by the titles of their axes, on the same axes."""
    of_kind: dict[str, list[Any]] = {}
    for chart in charts:
        for panel in chart.panels:
            of_kind.setdefault(panel.y_title, []).append(panel)
    spans = {}
    for kind, panels in of_kind.items():
        ticks = tuple(sorted({tick for panel in panels for tick in panel.x_ticks}))
        ticks = log_ticks(ticks) if ticks and panels[0].log_x else ticks
        x = [value for panel in panels for line in panel.lines for value in (np.nanmin(line.x), np.nanmax(line.x))]
        low, high = min(panel.y_range[0] for panel in panels), max(panel.y_range[1] for panel in panels)
        spans[kind] = {"y_range": (low, high), "x_range": (min(x), max(x)), "x_ticks": ticks}
    return [
        replace(chart, panels=tuple(replace(panel, **spans[panel.y_title]) for panel in chart.panels))
        for chart in charts
    ]


def _differences(runs: Sequence[_Compared]) -> list[dict[str, Any]]:
    """Every recorded setting that is not the same in all runs: provenance, what was captured, methods' settings."""
    settings = [_settings(run.analysis) for run in runs]
    names = dict.fromkeys(name for each in settings for name in each)
    return [
        {
            "setting": name.replace("_", " "),
            **{run.entry.name: each.get(name, "not recorded") for run, each in zip(runs, settings, strict=True)},
        }
        for name in names
        if len({each.get(name) for each in settings}) > 1
    ]


def _settings(analysis: Analysis) -> dict[str, str]:
    attrs, hidden = analysis.run.hidden.attrs, analysis.hidden
    names = [*_SETTINGS, *(name for name in attrs if name not in (*_SETTINGS, *_UNTOLD))]
    found = {name: _told(attrs[name]) for name in names if name in attrs}
    found |= {f"{name}s": ", ".join(map(str, hidden[name].values)) for name in ("method", "prompt")}
    found |= {f"{name}s": str(hidden.sizes[name]) for name in ("layer", "position", "dim")}
    evaluation = analysis.run.evaluation
    if evaluation is not None:
        found["measured lengths"] = ", ".join(map(str, sorted(evaluation["length"].values.tolist())))
    for method, config in json.loads(attrs.get("method_configs", "{}")).items():
        found |= {f"{method}: {name}": str(value) for name, value in config.items() if name != "name"}
    return {name: text for name, text in found.items() if text}


def _told(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
