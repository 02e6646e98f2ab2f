"""Overview: the answer in two sentences and one chart, and what it rests on; and runs compared side by side."""

import json
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any, cast

import numpy as np
import streamlit as st

from mesa.errors import Refused
from mesa_lens.dashboard import address, elements as ui
from mesa_lens.dashboard.runs import Context, Entry, place_of_more
from probe.commands.probe.report import provenance, scores
from probe.commands.probe.verdict import Summary, about_run, failure_text, onset_title
from probe.figures.curves import overlaid, parted
from probe.figures.export import Export, safe_name
from probe.figures.figure_data import Chart
from probe.figures.section import Section, Table
from probe.glossary import explained
from probe.run import Run
from probe.store.reader import hooks_of
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
    read = f"Its hidden states are stored up to {summary.captured_length} tokens." if hooks_of(run) else ""
    texts = [f"{first.removesuffix('.')}." for first, *_ in answer]
    large = "".join(f"<p style='font-size: 1.2rem; margin: 0 0 .5rem'>{explained(text)}</p>" for text in texts)
    terms = explained(f"{about_run(summary)} {read}")
    st.html(f"<div style='max-width: 100ch'>{large}<p>{terms}</p></div>")
    export = None if run.evaluation is None else run.curves().export
    charts = parted(cast(Chart, export.figures["curves"])) if export else []
    if charts:
        ui.show(
            charts[0],
            "curves",
            file=ui.file_stem(context.run.name, "curves"),
            on_point=lambda point: _near(context, summary, point),
        )
        stored = "stored hidden states near that position, and to " if hooks_of(run) else ""
        st.caption(f"A click on a point links to {stored}other pages.")
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
    st.page_link(context.pages["own-model"], label="Run your model: the command, its estimate and its progress")


def _near(context: Context, summary: Summary, point: Mapping[str, Any]) -> None:
    """Links to hidden states near a point of the curves, where such are stored, and to pages of its method."""
    length, method = round(point["x"]), str(point.get("legendgroup"))
    run, half = context.run.run, summary.trained_length // 2
    stored = run.hidden["position"].values if hooks_of(run) else np.array([])  # a run in stages stores them last
    last = int(stored.max(initial=-1))
    begin = max(0, min(length - half, last - 2 * half + 1))
    span = max(begin, int(stored.min(initial=last))), min(begin + 2 * half - 1, last)
    methods = {"methods": method, "minus": "nothing"} if method in {row.method for row in summary.methods} else {}
    links: dict[str, tuple[str, dict[str, Any]]] = {}
    if length <= last + 1 and np.any((span[0] <= stored) & (stored <= span[1])):
        zoom = {"positions": "choose", "zoom": list(map(str, span))}
        links["heatmaps"] = f"Hidden states of tokens {span[0]} to {span[1]}", zoom | methods
    if stored.size:
        links["thresholds"] = "Single dims that pass a threshold", {}
    links["tokens"] = "The loss of a text, token by token", {"tokens_method": method} if methods else {}
    limit = f" (hidden states are stored up to {last + 1})" if 0 <= last < length - 1 else ""
    st.markdown(ui.plain(f"At {length} tokens{limit}, {method}:"))
    with st.container(horizontal=True):
        for name, (label, values) in links.items():
            if name in context.pages:
                st.page_link(context.pages[name], label=label, query_params={"run": context.run.name} | values)


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


_SETTINGS = "model model_revision source_dtype trained_length length samples seed word".split()
_UNLISTED = "complete spec method_configs versions inputs weights config tokenizer created lengths".split()
_LONGEST = 120  # characters of a setting
Runs = Mapping[str, tuple[Run, Summary]]
"""Stores and summaries by the run's name."""


def compare(context: Context) -> None:
    """Failure lengths by method, the settings that differ, and scores over length of the chosen runs."""
    others = {entry.name: entry for entry in context.entries if entry.name != context.run.name and entry.finished}
    if not others:
        address.keep()
        second = quote(str(context.run.path.with_name("second")))
        command = f"mesa-lens probe --length 1024 --prompt world --out {second}"
        show = place_of_more(Path(context.root))[1]
        ui.suggest(f"There is no second run under {context.root}. Make one, e.g.:", command + show)
        return
    default = [name for name, entry in others.items() if entry.opens][:1]
    names = address.select_several(st, "Compare with", list(others), "with", default, filter_mode="contains")
    runs = {context.run.name: _read(context.run)}
    for name in names:
        try:
            runs[name] = _read(others[name])
        except (Refused, OSError) as error:
            st.warning(ui.plain(f"{name} is left out: {error}"))
    ui.draw([Section("Failure lengths and onsets", tables=[_failures(runs)]), _differences(runs)], "compare")
    _curves(runs)


def _read(entry: Entry) -> tuple[Run, Summary]:
    return entry.run, entry.summary


def _failures(runs: Runs) -> Table:
    """One row a method: by run what was measured, what `mesa-lens predict` computed if it was run, and the onset."""
    columns: dict[str, dict[str, str]] = {}
    summaries = {name: summary for name, (_, summary) in runs.items()}
    for name, summary in summaries.items():
        columns[f"measured failure, {name}"] = {
            result.method: failure_text(result.measured) for result in summary.methods
        }
    for name, summary in summaries.items():
        if predicted := summary.verdict.predicted:
            columns[f"predicted failure, {name}"] = {
                result.method: str(predicted.get(result.method, "–")) for result in summary.methods
            }
    for name, summary in summaries.items():
        title = onset_title(summary.onset_by)
        columns[f"{title}, {name}"] = {result.method: str(summary.onset_of(result)) for result in summary.methods}
    methods = dict.fromkeys(method for column in columns.values() for method in column)
    rows = ((method, *(column.get(method, "not run") for column in columns.values())) for method in methods)
    return Table("", ("method", *columns), tuple(rows))


def _curves(runs: Runs) -> None:
    """Scores over length, of all runs that measured them, in one chart."""
    measured = {name: run.curves().export for name, (run, _) in runs.items() if run.evaluation is not None}
    if not measured:
        return
    charts = {name: cast(Chart, curves.figures["curves"]) for name, curves in measured.items()}
    chart = overlaid([(name, str(runs[name][1].model), one) for name, one in charts.items()])
    ui.draw([Section("Scores over length", figures={"curves": chart})], "compare")

    def export() -> Export:
        tables = {
            f"{safe_name(name)}-{table}": values
            for name, curves in measured.items()
            for table, values in curves.numbers.items()
        }
        return Export({"curves": chart}, tables)

    ui.buttons(export, ui.file_stem(*measured, "curves"), ui.FORMS, ("csv",))


def _differences(runs: Runs) -> Section:
    """Every recorded setting that is not the same in all runs: provenance, what was captured, methods' settings."""
    settings = {name: _settings(run) for name, (run, _) in runs.items()}
    names = dict.fromkeys(name for values in settings.values() for name in values)
    rows = tuple(
        (name.replace("_", " "), *(values.get(name, "not recorded") for values in settings.values()))
        for name in names
        if len({values.get(name) for values in settings.values()}) > 1
    )
    if not rows:
        return Section("Settings that differ", ["None of those that are recorded."])
    return Section("Settings that differ", tables=[Table("", ("setting", *settings), rows)])


def _settings(run: Run) -> dict[str, str]:
    hidden, attrs = run.hidden, run.hidden.attrs
    names = dict.fromkeys([*_SETTINGS, *attrs])
    settings = {name: str(attrs[name])[:_LONGEST] for name in names if name in attrs and name not in _UNLISTED}
    settings |= {f"{name}s": ", ".join(map(str, hidden[name].values)) for name in ("method", "prompt")}
    settings |= {f"{name}s": str(size) for name, size in hidden.sizes.items() if name not in ("method", "prompt")}
    if run.evaluation is not None:
        settings["measured lengths"] = ", ".join(map(str, sorted(run.evaluation["length"].values.tolist())))
    for method, config in json.loads(attrs.get("method_configs", "{}")).items():
        settings |= {f"{method}: {name}": str(value) for name, value in config.items() if name != "name"}
    return {name: text for name, text in settings.items() if text}
