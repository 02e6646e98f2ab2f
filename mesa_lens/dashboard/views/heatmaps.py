"""Heatmaps: hidden states over layers, dims and positions, by method or as differences to one method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st
import xarray as xr

from mesa.errors import Refused
from mesa_lens.dashboard import address, elements as ui
from mesa_lens.dashboard.runs import BY_STORE, Context, Entry, choose_states, drifted, reference_of, states
from probe.figures import heatmap
from probe.figures.export import (
    NUMBERS,
    SIDE_BY_SIDE,
    Export,
    check_size,
    chosen_name,
    heatmap_export,
    labelled_numbers,
)
from probe.figures.states import dim_chart, drift_layers
from probe.glossary import DIM
from probe.run import Run
from probe.store.reader import captured_ranges, listed

_AROUND, _ALL, _CHOSEN = "around M, and the end", "all", "choose"

_NOTHING = "nothing"


@dataclass(frozen=True)
class _Choice:
    """What is displayed. minus: a method or None. layers, dims: first and last. bounds: half-open position ranges."""

    hook: str
    prompt: str
    methods: list[str]
    minus: str | None
    layers: tuple[int, int]
    dims: tuple[int, int]
    bounds: tuple[tuple[int, int], ...]
    quantile: float

    @property
    def chosen(self) -> dict[str, Sequence[Any]]:
        """Methods, and half-open ranges of layers, dims and positions, as they are in files' names."""
        layers, dims = ([(first, last + 1)] for first, last in (self.layers, self.dims))
        return {"methods": self.methods, "layers": layers, "dims": dims, "positions": self.bounds}


def page(context: Context) -> None:
    """Widgets and one figure, with one colour scale a layer; narrower spans are read and pooled again."""
    entry = context.run
    run = entry.run
    hook, prompt = choose_states(run)
    hidden = states(run, hook, prompt)
    methods, minus = _methods(entry, run)
    st.caption(ui.plain(DIM))
    left, right = st.columns(2)
    layers = _span(left, "Layers", "layers", hidden["layer"].values, entry, _first_layers(entry, run, hook, prompt))
    dims = _span(right, "Dims", "dims", hidden["dim"].values, entry)
    bounds = _bounds(entry, run)
    quantile = address.slider(
        st, "Colour scale: share of values within it", 0.9, 1.0, heatmap.LIMIT, "scale", step=0.005,
        help="The scale of each layer ends at this quantile of its absolute values, and is shared by all methods",
    )  # fmt: skip
    if not methods:
        address.keep()
        st.info("Choose a method.")
        return
    choice = _Choice(hook, prompt, methods, minus, layers, dims, bounds, quantile)
    place, files = st.container(), st.empty()  # no file is offered while the figure is computed
    panel, limits = _panel(entry, choice)
    with place:
        key = f"heatmap-{abs(hash((choice.layers, choice.dims, choice.bounds)))}"
        figure = heatmap.heatmap_grid(heatmap.pool(panel), run.trained_length, limits)
        is_even = figure.cells[0][0].y.dtype.kind != "U"  # else dims have gaps, and a box names rows in place of dims
        ui.show(figure, key, on_box=(lambda: _narrow(hidden, key)) if is_even else None, file=_stem(entry, choice))
        _scale(panel, limits)
        dims = hidden["dim"].values
        if is_even:
            st.caption("Drag over a region to see it alone; a dim of it is drawn below.")
        if choice.dims != (int(dims[0]), int(dims[-1])):
            st.button("Back to all dims", on_click=_widen, args=(int(dims[0]), int(dims[-1])))
    with files.container():
        _downloads(entry, run, choice)
    _dim(entry, run, choice)


def _narrow(hidden: xr.DataArray, key: str) -> None:
    """Sets the sliders to the region that was chosen by dragging."""
    if (box := ui.chosen_box(key)) is None:
        return
    st.session_state["positions"] = _CHOSEN
    for name, widget, ends in (("position", "zoom", box[0]), ("dim", "dims", box[1])):
        values = hidden[name].values
        first, last = (int(values[np.abs(values - end).argmin()]) for end in ends)
        if first == last:  # a slider has two ends
            first, last = max(first - 1, int(values[0])), min(last + 1, int(values[-1]))
        st.session_state[widget] = (first, last)


def _widen(first: int, last: int) -> None:
    st.session_state.update(dims=(first, last), positions=_AROUND)


def _dim(entry: Entry, run: Run, choice: _Choice) -> None:
    """One dim of the spans as lines over position."""
    ui.heading("One dim over position")
    hidden = states(run, choice.hook, choice.prompt)
    left, right = st.columns(2)
    layers, dims = (
        [label for label in hidden[name].values.tolist() if first <= label <= last]
        for name, (first, last) in (("layer", choice.layers), ("dim", choice.dims))
    )
    layer = address.select(left, "Layer", layers, "line_layer")
    dim = address.select(right, "Dim", dims, "line_dim")
    methods = [*choice.methods, *([choice.minus] if choice.minus else [])]
    chart = dim_chart(hidden.sel({"method": methods}), layer, dim, run.trained_length)
    where = {"methods": methods, "layers": [layer], "dims": [dim]}
    ui.show(chart, "line", file=ui.file_stem(entry.name, choice.prompt, choice.hook) + chosen_name(where))


def _first_layers(entry: Entry, run: Run, hook: str, prompt: str) -> tuple[int, int]:
    """The layers that are displayed first: that where the prompt's drift begins, or all."""
    layers, drifts = run.hidden["layer"].values.tolist(), drifted(entry, hook)
    if isinstance(drifts, str):
        return layers[0], layers[-1]
    layer = drift_layers(drifts.get(prompt, next(iter(drifts.values()))))[-1]
    return layer, layer


def _methods(entry: Entry, run: Run) -> tuple[list[str], str | None]:
    """The methods, and the one that is subtracted: first the reference, where there are others."""
    left, right = st.columns(2)
    names = run.hidden["method"].values.tolist()
    first, meaning = reference_of(run) if len(names) > 1 else _NOTHING, "Shows values minus this method's"
    minus = address.select(right, "Minus", [_NOTHING, *names], "minus", first, entry.name, help=meaning)
    some = names[: heatmap.FIRST_METHODS]
    chosen = address.select_several(left, "Methods", names, "methods", some, entry.name)
    return [name for name in chosen if name != minus], None if minus == _NOTHING else minus


def _span(
    place: Any, label: str, key: str, values: np.ndarray, entry: Entry, first: tuple[int, int] | None = None
) -> tuple[int, int]:
    """First and last value, both included, from a slider; text where there is one value. first: default, all."""
    low, high = int(values[0]), int(values[-1])
    if low == high:
        place.markdown(f"{label}: {low}")
        return low, high
    return address.slider(place, label, low, high, first or (low, high), key, entry.name)


def _bounds(entry: Entry, run: Run) -> tuple[tuple[int, int], ...]:
    """Half-open ranges of positions, none across a gap in what was captured."""
    position = run.hidden["position"].values
    which = address.select_button("Positions", [_AROUND, _ALL, _CHOSEN], "positions")
    if which == _AROUND:
        return tuple(heatmap.default_regions(position, run.trained_length))
    first, last = int(position[0]), int(position[-1])
    if which == _CHOSEN:
        first, last = _span(st, "First and last position", "zoom", position, entry)
    ranges = [(max(begin, first), min(end, last) + 1) for begin, end in captured_ranges(position)]
    return tuple((begin, end) for begin, end in ranges if begin < end) or ((first, last + 1),)


def _select(run: Run, choice: _Choice) -> xr.DataArray:
    """The chosen states and those subtracted (method, layer, dim, position), not pooled, read when used."""
    spans = {"layer": choice.layers, "dim": choice.dims}
    hidden = states(run, choice.hook, choice.prompt).sel({name: slice(*span) for name, span in spans.items()})
    for name, (first, last) in spans.items():
        if not hidden.sizes[name]:
            captured = listed(states(run, choice.hook, choice.prompt)[name].values)
            raise Refused(f"{name}s {first} to {last} were not captured; captured: {captured}")
    return heatmap.side_by_side(hidden, choice.bounds, choice.methods, choice.minus)


@st.cache_data(max_entries=8, show_spinner="Reading hidden states …", hash_funcs=BY_STORE)
def _panel(entry: Entry, choice: _Choice) -> tuple[xr.DataArray, xr.DataArray]:
    """The pooled panel (method, layer, dim, position) and its limits by layer."""
    panel = _select(entry.run, choice)
    pooled, limits = heatmap.survey(panel, [choice.methods], heatmap.SCREEN_CELLS, choice.quantile, choice.minus)
    return pooled, limits


def _stem(entry: Entry, choice: _Choice) -> str:
    """The name of the figure's files: all that is chosen."""
    minus = [] if choice.minus is None else ["minus", choice.minus]
    scale = "" if choice.quantile == heatmap.LIMIT else f"-scale{choice.quantile:g}"
    return ui.file_stem(entry.name, choice.prompt, "heatmap", choice.hook, *minus) + chosen_name(choice.chosen) + scale


def _downloads(entry: Entry, run: Run, choice: _Choice) -> None:
    """The figure and its numbers."""

    def export() -> Export:
        values = heatmap.difference(_select(run, choice).load(), choice.minus)
        limits = heatmap.layer_limits(values, choice.quantile)
        return heatmap_export(values, run.trained_length, limits, chosen=choice.chosen)

    numbers = labelled_numbers(heatmap.lazy_difference(_select(run, choice), choice.minus), run.trained_length)
    forms = [*ui.FORMS, "html", "npz"]
    for form in NUMBERS:
        try:
            check_size(form, numbers)
        except Refused as error:
            forms.remove(form)
            st.caption(ui.plain(f"Not offered as {error}."))
    several = ("png", "svg", "pdf", "html") if len(choice.methods) > SIDE_BY_SIDE else ()
    ui.buttons(export, _stem(entry, choice), forms, several)


def _scale(panel: xr.DataArray, limits: xr.DataArray) -> None:
    dims, positions = (heatmap.block_size(panel, name) for name in ("dim", "position"))
    pooled = "Every value is drawn." if dims == positions == 1 else (
        f"Blocks of {dims} dims x {positions} positions are drawn as their value farthest from 0; narrow the "
        "spans to see more."
    )  # fmt: skip
    ends = ", ".join(
        f"layer {layer}: {limit:.3g}" for layer, limit in zip(limits["layer"].values, limits.values, strict=True)
    )
    st.caption(ui.plain(f"{pooled} Colour scale ends at, in activation: {ends}."))
