"""Heatmaps: the paper's panels, layers x dims x positions, method against method or their difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st
import xarray as xr

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.downloads import FORMS, buttons, named
from mesa_lens.dashboard.look import plain, show
from mesa_lens.dashboard.runs import Entry
from mesa_lens.dashboard.state import choose_states, drifted, follow, opened, states, while_unchanged
from probe.figures.drift import drift_layers
from probe.figures.export import SIDE_BY_SIDE, Export, heatmap_export
from probe.figures.heatmap import (
    FIRST_METHODS,
    LIMIT,
    OPENING,
    SCREEN_CELLS,
    block_size,
    default_regions,
    difference,
    heatmap_grid,
    layer_limits,
    opening,
    opening_panel,
    pool,
    regions,
    survey,
)
from probe.glossary import DIM
from probe.store.cache import cached
from probe.store.reader import Run
from probe.store.select import captured_ranges, listed, reference_method

_AROUND, _ALL, _CHOSEN = "around M, and the end", "all", "choose"


def page(context: Context) -> None:
    """Widgets and one figure on one colour scale a layer; zooming reads and pools anew."""
    entry = context.run
    run = opened(entry)
    hook, prompt = choose_states(run)
    names = run.hidden["method"].values.tolist()
    opening, raw = _opening(entry, run, hook, prompt)
    place = st.container()
    methods, minus = _methods(names, opening["minus"])
    _way_to(place, minus, opening, raw)
    st.caption(plain(DIM))
    layers, dims = _spans(run, opening.get("layers"))
    bounds = _bounds(run)
    quantile = st.slider(
        "Colour scale: share of values within it", 0.9, 1.0, LIMIT, 0.005, key="scale", bind="query-params",
        help="The scale of each layer ends at this quantile of its absolute values, and is shared by all methods",
    )  # fmt: skip
    if not methods:
        st.info("Choose a method.")
        return
    choice = (methods, minus, layers, dims, bounds, quantile)
    shown, limits = _panel(str(entry.path), entry.stamp, run, hook, prompt, choice)
    figure = heatmap_grid(pool(shown), run.trained_length, limits)
    against = f" minus {minus}" if minus else ""
    show(
        figure,
        f"{hook} of prompt {prompt} under {', '.join(methods)}{against}: layers {layers[0]} to {layers[1]}, dims "
        f"{dims[0]} to {dims[1]}; red above 0, blue below",
        "heatmap",
    )
    _scale(shown, limits)
    _downloads(entry, run, hook, prompt, choice)


def _opening(entry: Entry, run: Run, hook: str, prompt: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is shown at first, the difference from the reference where its drift begins, and the raw view."""
    names, layers = (run.hidden[name].values.tolist() for name in ("method", "layer"))
    reference, whole = reference_method(names), (layers[0], layers[-1])
    at = opening_layer(drifted(entry, hook), prompt)
    several = len(layers) > 1  # else there is no slider
    opening: dict[str, Any] = {"minus": reference if len(names) > 1 else "nothing"}
    raw: dict[str, Any] = {"minus": "nothing"}
    if several:
        opening["layers"], raw["layers"] = whole if at is None else (at, at), whole
    follow("heatmaps", entry.name, opening)
    return opening, raw


def _way_to(place: Any, minus: str | None, opening: dict[str, Any], raw: dict[str, Any]) -> None:
    """The button to the other view; none where there is a single method."""
    if opening["minus"] == raw["minus"]:
        return
    to, says = (opening, f"Show the difference from {opening['minus']}") if minus is None else (raw, "Show raw values")
    place.button(says, on_click=lambda: st.session_state.update(to))


def opening_layer(found: dict[str, xr.Dataset] | str, prompt: str) -> int | None:
    """The layer where the reference's drift begins on the prompt, or the first judged one; None: not judged."""
    if isinstance(found, str):
        return None
    return drift_layers(found.get(prompt, next(iter(found.values()))))[-1]


def _methods(names: list[str], reference: str) -> tuple[list[str], str | None]:
    left, right = st.columns(2)
    options = ["nothing", *names]
    first = options.index(reference)
    meaning = "Shows the difference to this method"
    minus = right.selectbox("Minus", options, first, key="minus", bind="query-params", help=meaning)
    chosen = left.multiselect("Methods", names, names[:FIRST_METHODS], key="methods", bind="query-params")
    base = None if minus == "nothing" else str(minus)
    return [name for name in chosen if name != base], base


def _spans(run: Run, layers: tuple[int, int] | None) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last layer and dim, from sliders; both ends included. layers: those shown at first."""
    left, right = st.columns(2)
    return _span(left, "Layers", "layers", run.hidden["layer"].values, layers), _span(
        right, "Dims", "dims", run.hidden["dim"].values
    )


def _span(
    place: Any, label: str, key: str, values: np.ndarray, opening: tuple[int, int] | None = None
) -> tuple[int, int]:
    first, last = int(values[0]), int(values[-1])
    if first == last:
        place.markdown(f"{label}: {first}")
        return first, last
    low, high = place.slider(label, first, last, opening or (first, last), key=key, bind="query-params")
    return int(low), int(high)


def _bounds(run: Run) -> tuple[tuple[int, int], ...]:
    """Half-open regions of positions, none across a gap in what was captured."""
    position = run.hidden["position"].values
    which = st.segmented_control(
        "Positions", [_AROUND, _ALL, _CHOSEN], default=_AROUND, required=True, key="positions", bind="query-params"
    )
    if which == _AROUND:
        return tuple(default_regions(position, run.trained_length))
    first, last = int(position[0]), int(position[-1])
    if which == _CHOSEN:
        first, last = _span(st, "First and last position", "zoom", position)
    runs = [(max(begin, first), min(end, last) + 1) for begin, end in captured_ranges(position)]
    return tuple((begin, end) for begin, end in runs if begin < end) or ((first, last + 1),)


def _chosen(run: Run, hook: str, prompt: str, choice: tuple[Any, ...]) -> xr.DataArray:
    """The chosen values and those they are less, (method, layer, dim, position), none pooled, on disk."""
    methods, minus, layers, dims, bounds, _ = choice
    wanted = methods if minus is None else [*methods, minus]
    hidden = states(run, hook, prompt).sel(layer=slice(*layers), dim=slice(*dims))
    for name, span in (("layer", layers), ("dim", dims)):
        if not hidden.sizes[name]:
            captured = listed(run.hidden[name].values)
            raise ValueError(f"{name}s {span[0]} to {span[1]} were not captured; captured: {captured}")
    return regions(hidden.sel({"method": wanted}), bounds)


def _values(run: Run, hook: str, prompt: str, choice: tuple[Any, ...]) -> xr.DataArray:
    """The chosen values, in memory."""
    shown = _chosen(run, hook, prompt, choice).load()
    return shown if choice[1] is None else difference(shown, choice[1])


@st.cache_data(max_entries=8, show_spinner="Reading hidden states …")
def _panel(
    path: str, stamp: tuple[float, float], _run: Run, hook: str, prompt: str, choice: tuple[Any, ...]
) -> tuple[xr.DataArray, xr.DataArray]:
    """The pooled panel (method, layer, dim, position) and its limits by layer."""
    panel, hidden = _chosen(_run, hook, prompt, choice), states(_run, hook, prompt)
    first = opening_panel(hidden, _run.trained_length)
    if choice[1] is None and choice[-1] == LIMIT and panel.coords.equals(first.coords):
        name = f"{hook}-{prompt}-{OPENING}"
        found = cached(_run, name, lambda: {OPENING: opening(hidden, _run.trained_length)})[OPENING]
        return found["pooled"].rename(hook), found["limits"].reset_coords(drop=True)
    pooled, limits = survey(panel, [choice[0]], SCREEN_CELLS, choice[-1], choice[1])
    return pooled, limits


def _downloads(entry: Entry, run: Run, hook: str, prompt: str, choice: tuple[Any, ...]) -> None:
    """The figure and its numbers, and pictures of one pixel a value."""

    def export(native: bool) -> Export:
        values = _values(run, hook, prompt, choice)
        return heatmap_export(values, run.trained_length, layer_limits(values, choice[-1]), native=native)

    several = ("png", "svg", "pdf", "html") if len(choice[0]) > SIDE_BY_SIDE else ()
    less = [] if choice[1] is None else ["minus", choice[1]]
    stem = named(entry.name, prompt, "heatmap", hook, *less)
    buttons(while_unchanged(entry, lambda: export(False)), stem, (*FORMS, "html", "npz"), several)
    st.caption("As captured, one pixel a value and a picture a method:")
    buttons(while_unchanged(entry, lambda: export(True)), f"{stem}-native", ("png", "npz"), ("png",))


def _scale(shown: xr.DataArray, limits: xr.DataArray) -> None:
    blocks = [block_size(shown, name) for name in ("dim", "position")]
    pooled = "Every value is drawn." if blocks == [1, 1] else (
        f"Blocks of {blocks[0]} dims x {blocks[1]} positions are drawn as their value farthest from 0; narrow the "
        "spans to see more."
    )  # fmt: skip
    ends = ", ".join(
        f"layer {layer}: {limit:.3g}" for layer, limit in zip(limits["layer"].values, limits.values, strict=True)
    )
    st.caption(plain(f"{pooled} Colour scale ends at, in activation: {ends}."))
