"""Pages of what `mesa-lens locate`, `anatomy` and `readout` found: where inside, what heads attend to, what is read."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard.runs import Context, drifted
from probe.commands import commands
from probe.commands.probe.report import drift_export, map_section
from probe.commands.probe.verdict import drift_table
from probe.figures.export import Export
from probe.figures.figure_data import Drawable, Heatmaps
from probe.figures.section import Section, figures_of
from probe.options import head_name, parse_head
from probe.store.result_file import having
from probe.thresholds.onset import drift_onsets


def located(context: Context) -> None:
    """Where states drift, by layer and position; then what a method in one place fixes."""
    if "locate" in commands():
        _located(context)
    _drift(context)


def _located(context: Context) -> None:
    """Findings for a method, length and measure; figures; a table of all effects; downloads."""
    from probe.commands.locate.page import MEASURES, clearest, located_export, located_tables, losses, place
    from probe.commands.locate.result import LOCATED

    summary = ui.written(context, LOCATED.find, "locate")
    if summary is None:
        return
    if summary.clearest is None:
        ui.draw([clearest(summary), losses(summary)], "locate")
        return
    first = summary.clearest.labels
    known = {name: list(dict.fromkeys(gap.labels[name] for gap in summary.loss_gaps)) for name in first}
    chosen = ui.choose_labels(known, first, "locate", lambda value: MEASURES.get(value, str(value)))
    method, length, measure = chosen.values()
    ui.choose_part(
        place(summary, length, measure, [method]).parts, "locate_figures", partial(_to_tokens, context, method)
    )
    labels = {name: [value] for name, value in chosen.items()}
    if (effects := located_tables(summary, labels).get("effects")) is not None:
        with st.expander(f"All {effects.sizes['row']} effects as a table"):
            formats = {name: st.column_config.NumberColumn(format="percent") for name in ("share", "low", "high")}
            ui.sheet(effects.to_dataframe(), "Every effect with its interval", column_config=formats)
    if having(summary.loss_gaps, **chosen, significant=True):
        stem = ui.file_stem(context.run.name, "locate", *chosen.values())
        ui.buttons(lambda: located_export(summary, [method], [length], [measure]), stem, ui.FORMS, ui.FORMS)


def _drift(context: Context) -> None:
    """The map of the first prompt's drift by layer and position, or why there is none; every prompt's onsets."""
    ui.heading("Where hidden states drift")
    drifts = drifted(context.run)
    if isinstance(drifts, str):
        st.info(ui.plain(f"Drift could not be evaluated: {drifts}."))
        return
    prompt, drift = next(iter(drifts.items()))
    figures = figures_of([map_section(drift, prompt)])
    ui.draw([Section(figures=figures)], "drift")
    stem = ui.file_stem(context.run.name, prompt, "drift-map")
    ui.buttons(lambda: Export(figures, drift_export(drift, prompt).numbers), stem, ui.FORMS, ("csv",))
    with st.expander("Drift, prompt by prompt"):
        for name, of_prompt in drifts.items():
            ui.table(drift_table(drift_onsets(of_prompt), name))


_TILE = re.compile(r"layer (\d+), (?:.* )?(\d+): ")
"""The text of a head's tile in the maps of layers and heads."""


def _to_tokens(context: Context, method: str, figure: Drawable) -> ui.OnPoint | None:
    """What a click on a head's tile does: it opens what that head attends to under the method; None without heads."""
    blocks = [block for row in figure.cells for block in row] if isinstance(figure, Heatmaps) else []
    texts = [text for block in blocks if block.texts is not None for text in block.texts.flat]
    if "tokens" not in context.pages or not any(map(_TILE.match, texts)):
        return None
    st.caption("A click on a head opens what it attends to.")

    def open_tokens(point: Mapping[str, Any]) -> None:
        if tile := _TILE.match(str(point.get("customdata", ""))):
            chosen = {"run": context.run.name, "tokens_head": head_name(*map(int, tile.groups()))}
            st.switch_page(context.pages["tokens"], query_params={**chosen, "tokens_method": method})

    return open_tokens


def anatomy(context: Context) -> None:
    """Findings; a method's map at a length, or means over all heads; downloads."""
    from probe.commands.anatomy.page import all_heads, anatomy_export, anatomy_findings, place
    from probe.commands.anatomy.result import ANATOMY

    summary = ui.written(context, ANATOMY.find, "anatomy")
    if summary is None:
        return
    ui.draw([Section("", anatomy_findings(summary))], "anatomy")
    if not (summary.heads or summary.retrieval or summary.all_heads):
        st.info("Nothing was measured of its heads.")
        return
    lengths = sorted({row.length for row in (*summary.heads, *summary.retrieval)}) or summary.lengths
    known = {"method": list(summary.methods), "length": lengths}
    last = {name: values[-1] for name, values in known.items()}
    method, length = ui.choose_labels(known, last, "anatomy").values()
    maps = [part for shown in place(summary, length, [method]).parts for part in shown.parts]
    ui.choose_part([*maps, *all_heads(summary, [length])], "anatomy_figures", partial(_to_tokens, context, method))
    if maps:
        stem = ui.file_stem(context.run.name, "anatomy", method, length)
        ui.buttons(lambda: anatomy_export(summary, [method], [length]), stem, ui.FORMS, ui.FORMS)


def readouts(context: Context) -> None:
    """The answers; a chart or map of a probe under a method, or the lens; all scores; downloads."""
    from probe.commands.readout.page import answers, lens_section, place, readout_export
    from probe.commands.readout.result import READOUT

    summary = ui.written(context, READOUT.find, "readout")
    if summary is None:
        return
    ui.draw([Section("", answers(summary))], "readout")
    parts = lens_section(summary)
    if summary.probes:
        known = {"probe": list(summary.probed), "method": list(summary.methods)}
        first = {name: values[0] for name, values in known.items()}
        probe, method = ui.choose_labels(known, first, "readout").values()
        shown = place(summary, probe, [method])
        figures = [
            Section("Lost or moved" if name.endswith("-parts") else "Layers and lengths", figures={name: figure})
            for name, figure in shown.figures.items()
        ]
        parts = [*figures, *shown.parts, *parts]
    ui.choose_part(parts, "readout_figures")
    if parts:
        stem = ui.file_stem(context.run.name, "readout")
        ui.buttons(lambda: readout_export(summary), stem, ui.FORMS, ui.FORMS)


_DEFAULT = "the most changed"


def tokens(context: Context) -> None:
    """The text under the chosen method, and a head's attention."""
    from probe.commands.anatomy.page import attention_view, head_changes, loss_view, methods_of
    from probe.commands.anatomy.result import TOKENS

    text = ui.written(context, TOKENS.find, "anatomy --parts tokens")
    if text is None:
        return
    methods, heads = list(text.methods), range(head_changes(text).shape[1])
    places = [_DEFAULT, *(head_name(layer, head) for layer in text.layers for head in heads)]
    first = {"method": methods_of(text)[1], "head": _DEFAULT}
    method, head = ui.choose_labels({"method": methods, "head": places}, first, "tokens").values()
    losses = loss_view(text, method)
    attention = attention_view(text, method, *([] if head == _DEFAULT else parse_head(head)))
    shown = [("The loss of every token", losses), ("What a head attends to", attention)]
    for title, view in shown if head == _DEFAULT else reversed(shown):  # a chosen head comes first
        ui.heading(title)
        st.html(view, unsafe_allow_javascript=True)
    page = f"<!doctype html><meta charset=utf-8>{losses}{attention}"
    ui.download("Both (HTML)", page, f"{ui.file_stem(context.run.name, 'tokens', method, head)}.html")
