"""Drift: a layer's distance from its in-window range by position, the dims with most of it, and all layers as a map."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from probe.figures.figure_data import (
    Chart,
    DriftMap,
    Line,
    MethodDrift,
    Panel,
    Point,
    Rule,
    line_of_positions,
    trained_rule,
    value_name,
    value_title,
)
from probe.figures.styles import RED, style
from probe.figures.thresholds import central_ranges, same_span
from probe.thresholds.calls import Call, drift_calls

COLUMNS = 256
"""Columns of a drift map; of the runs in one column the largest distance is drawn."""


def drift_layers(drift: xr.Dataset) -> list[int]:
    """The first captured layer, and the one in which the reference's drift begins, or is strongest."""
    at = drift.sel({"method": drift.attrs["reference"]})
    layers = drift["layer"].values.tolist()
    call = next(call for call in drift_calls(drift) if call.method == drift.attrs["reference"])
    beyond = at["level"].where((at["run"] >= at.attrs["trained_length"]) & ~at["warm_up"], 0)
    strongest = int(beyond.max("run").fillna(0).values.argmax())
    return sorted({layers[0], layers[strongest] if call.layer is None else call.layer})


def drift_chart(
    drift: xr.Dataset, layers: list[int] | None = None, prompt: str = "", methods: Sequence[str] | None = None
) -> Chart:
    """How far a layer's states are from their in-window range, by position and method, for `layers` of `find_drift`.

    Drawn is the root mean square over dims, in ranges: 1 is every dim at the edge of its in-window range. Positions of
    the warm-up are left out. Default layers: `drift_layers`; methods: all.
    """
    layers = drift_layers(drift) if layers is None else layers
    reference, trained = drift.attrs["reference"], drift.attrs["trained_length"]
    displayed = drift if methods is None else drift.sel({"method": list(methods)})
    calls = drift_calls(displayed)
    top = np.sqrt(displayed["level"].sel(layer=layers).where(~displayed["warm_up"]).max().fillna(0).item())
    panels = []
    for layer in layers:
        at = drift.sel(layer=layer)
        limit = float(np.sqrt(at["limit"].sel({"method": reference})))
        panels.append(
            Panel(
                title=f"layer {layer}",
                x_title=f"position (tokens), runs of {drift.attrs['run']}",
                y_title="rms distance from in-window range (ranges)",
                lines=tuple(_line(at, call) for call in calls),
                y_range=(0.0, 1.08 * max(top, limit)),
                points=tuple(_point(at, call, layer) for call in calls if layer in call.layers),
                rules=(trained_rule(trained), Rule(limit, "", RED)),
            )
        )
    where = f", prompt {prompt}" if prompt else ""
    title = f"Drift of {drift.attrs['hook']} from its in-window range{where}"
    return Chart(f"{title}; red: {reference}'s limit; judged from M on", tuple(panels))


def drift_dim_chart(hidden: xr.DataArray, drift: xr.Dataset, layer: int, dim: int) -> Chart:
    """One dim's value over position under every method, at the first captured layer and at `layer`, where it drifts.

    hidden (method, layer, position, dim) is of the prompt that `drift` (`find_drift`) is of. Red: the threshold, the
    reference's value at M; dotted: its in-window range. Both panels span as many units.
    """
    reference, trained = drift.attrs["reference"], drift.attrs["trained_length"]
    layers = sorted({int(hidden["layer"].values[0]), layer})
    values = hidden.sel(layer=layers, dim=dim).load()
    methods = values["method"].values.tolist()
    share = float(drift["share"].sel({"method": reference, "layer": layer, "dim": dim}))
    y_ranges = same_span(central_ranges(values, drift.attrs["warm_up"], 0.002))
    panels = []
    for shown_layer, y_range in zip(layers, y_ranges, strict=True):
        here = values.sel(layer=shown_layer)
        at = drift.sel({"method": reference, "layer": shown_layer, "dim": dim})
        centre, width = float(at["centre"]), float(at["range"])
        threshold = float(here.sel({"method": reference}).sel(position=trained, method="nearest"))
        edges = (Rule(edge, "", RED, dash="dot") for edge in (centre - width, centre + width))
        lines = (line_of_positions(here.sel({"method": name}), name, style(name, methods)) for name in methods)
        panels.append(
            Panel(
                title=f"layer {shown_layer}, dim {dim}",
                x_title="position (tokens)",
                y_title=value_title(hidden),
                lines=tuple(lines),
                y_range=y_range,
                rules=(trained_rule(trained), Rule(threshold, "", RED), *edges),
            )
        )
    title = f"{value_name(hidden)}, dim {dim}: {share:.1%} of layer {layer}'s drift under {reference}"
    return Chart(title, tuple(panels))


def drift_map(drift: xr.Dataset, prompt: str = "") -> DriftMap:
    """The maps of one prompt's `drift` (from `find_drift`): how far each layer is from its in-window range."""
    run, begin = drift.attrs["run"], drift["run"].values
    columns = (begin - begin[0]) // run
    block = -(-(int(columns[-1]) + 1) // COLUMNS)
    edges = begin[0] + run * block * np.arange(int(columns[-1]) // block + 2)
    maps = tuple(_map(drift.sel({"method": call.method}), call, columns // block) for call in drift_calls(drift))
    where = f", prompt {prompt}" if prompt else ""
    title = f"Drift of {drift.attrs['hook']} by layer and position{where}; red: beyond the layer's limit"
    return DriftMap(title, tuple(drift["layer"].values.tolist()), edges, maps, drift.attrs["trained_length"])


def _line(at: xr.Dataset, call: Call) -> Line:
    """A method's distance; faint, with the reason, where it is not judged."""
    drift = at.sel({"method": call.method})
    label = f"{call.method}: excluded, {call.reason}" if call.reason else call.method
    level = np.where(drift["warm_up"].values, np.nan, drift["level"].values)
    look = style(call.method, at["method"].values)
    return Line(label, at["run"].values.astype(float), np.sqrt(level), *look, faint=bool(call.reason))


def _point(at: xr.Dataset, call: Call, layer: int) -> Point:
    first = call.layers[layer]
    y = float(np.sqrt(at["level"].sel({"method": call.method}).sel(run=first, method="pad")))
    return Point(
        f"layer {layer}, {call.method}: first at {first}", first, y, style(call.method, at["method"].values)[0]
    )


def _map(at: xr.Dataset, call: Call, columns: np.ndarray) -> MethodDrift:
    judged = at["trusted"].values[:, None] & ~at["warm_up"].values
    distance = np.full((len(judged), int(columns[-1]) + 1), np.nan)
    for number, level in zip(columns, np.where(judged, np.sqrt(at["level"].values), np.nan).T, strict=True):
        distance[:, number] = np.fmax(distance[:, number], level)
    limits = np.sqrt(at["limit"].values)
    doublings = np.log2(np.maximum(distance, np.finfo(float).tiny) / limits[:, None])
    layers = at["layer"].values.tolist()
    first = None if call.length is None or call.layer is None else (call.length, layers.index(call.layer))
    text = f"first at {call.length}, in layer {call.layer}" if first else str(call)
    return MethodDrift(call.method, f"{call.method}: {text}", doublings, distance, limits, first)
