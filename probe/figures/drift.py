"""Drift: a layer's distance from its in-window range by position, and that of all layers as a map."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from probe.figures.export import safe_name
from probe.figures.figure_data import (
    RED,
    Chart,
    Heatmap,
    Heatmaps,
    Line,
    Panel,
    Point,
    Rule,
    grouped,
    style,
    trained_rule,
)
from probe.thresholds.drift_onset import DriftOnset, drift_onsets

TICKS = {-2.0: "1/4", -1.0: "1/2", 0.0: "limit", 1.0: "2 x", 2.0: "4 x", 3.0: "8 x"}
"""Colours of a drift map are doublings of a layer's limit."""
COLOURS = ((0.0, "#F4F8FB"), (0.4, "#C6DBEF"), (0.4, "#FDCDB5"), (0.6, "#EF6548"), (0.8, "#B2182B"), (1.0, "#4A0012"))
"""By share of the scale: pale blue up to the limit, red beyond it."""
NOTE = ("judged from M on", "circle: drift begins", "grey: warm-up, layer not judged, or not captured")
COLUMNS = 256
"""Columns of a drift map; of the runs in one column the largest distance is drawn."""


def drift_name(drift: xr.Dataset, prompt: str) -> str:
    """What files of one prompt's drift begin with."""
    return f"drift-{drift.attrs['hook']}-{safe_name(prompt)}"


def drift_layers(drift: xr.Dataset) -> list[int]:
    """The first captured layer, and the one in which the reference's drift begins, or is strongest."""
    at = drift.sel({"method": drift.attrs["reference"]})
    layers = drift["layer"].values.tolist()
    onset = next(onset for onset in drift_onsets(drift) if onset.method == drift.attrs["reference"])
    beyond = at["level"].where((at["run"] >= at.attrs["trained_length"]) & ~at["warm_up"], 0)
    strongest = int(beyond.max("run").fillna(0).values.argmax())
    return sorted({layers[0], layers[strongest] if onset.layer is None else onset.layer})


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
    onsets = drift_onsets(displayed)
    top = np.sqrt(displayed["level"].sel(layer=layers).where(~displayed["warm_up"]).max().fillna(0).item())
    panels = []
    for layer in layers:
        at = drift.sel(layer=layer)
        limit = float(np.sqrt(at["limit"].sel({"method": reference})))
        panels.append(
            Panel(
                title=f"layer {layer}",
                x_title=f"position (tokens), runs of {drift.attrs['run']}",
                y_title="distance (1: the edge of the range)",
                lines=tuple(_line(at, onset) for onset in onsets),
                y_range=(0.0, 1.08 * max(top, limit)),
                points=tuple(_point(at, onset, layer) for onset in onsets if layer in onset.layers),
                rules=(trained_rule(trained), Rule(limit, "", RED)),
                seen="" if panels else _seen(onsets),
            )
        )
    where = f", prompt {prompt}" if prompt else ""
    title = f"How far hidden states ({drift.attrs['hook']}) are from their range inside the trained window{where}"
    return Chart(f"{title}; red: {reference}'s limit; judged from M on", tuple(panels))


def drift_map(drift: xr.Dataset, prompt: str = "") -> Heatmaps:
    """How far every layer is from its in-window range over position, in doublings of its limit; a map a method.

    drift: of one prompt, from `find_drift`.
    """
    run, begin, layers = drift.attrs["run"], drift["run"].values, drift["layer"].values.tolist()
    columns = (begin - begin[0]) // run
    block = -(-(int(columns[-1]) + 1) // COLUMNS)
    edges = begin[0] + run * block * np.arange(int(columns[-1]) // block + 2)
    where = f", prompt {prompt}" if prompt else ""
    maps = (_map(drift.sel({"method": onset.method}), onset, columns // block, edges) for onset in drift_onsets(drift))
    return Heatmaps(
        f"Where hidden states ({drift.attrs['hook']}) leave their in-window range{where}; red: beyond the limit",
        "rms distance from in-window range",
        COLOURS,
        TICKS,
        tuple((one,) for one in maps),
        width=6.4,
        height=int(np.clip(16 * len(layers), 70, 260)),
        columns=(1.0,),
        note=NOTE,
        seen=_seen(drift_onsets(drift)),
    )


def _seen(onsets: Sequence[DriftOnset]) -> str:
    return f"States leave it, in tokens: {grouped((onset.method, _text(onset)) for onset in onsets)}"


def _text(onset: DriftOnset) -> str:
    if onset.length is None or onset.layer is None:
        return str(onset)
    return f"first at {onset.length}, in layer {onset.layer}"


def _line(at: xr.Dataset, onset: DriftOnset) -> Line:
    """A method's distance; faint, with the reason, where it is not judged."""
    drift = at.sel({"method": onset.method})
    label = f"{onset.method}: excluded, {onset.reason}" if onset.reason else onset.method
    level = np.where(drift["warm_up"].values, np.nan, drift["level"].values)
    look = style(onset.method)
    return Line(label, at["run"].values.astype(float), np.sqrt(level), *look, faint=bool(onset.reason))


def _point(at: xr.Dataset, onset: DriftOnset, layer: int) -> Point:
    first = onset.layers[layer]
    y = float(np.sqrt(at["level"].sel({"method": onset.method}).sel(run=first, method="pad")))
    return Point(f"layer {layer}, {onset.method}: first at {first}", first, y, style(onset.method)[0])


def _map(at: xr.Dataset, onset: DriftOnset, columns: np.ndarray, edges: np.ndarray) -> Heatmap:
    judged = (at["doubt"].values == "")[:, None] & ~at["warm_up"].values
    distance = np.full((len(judged), len(edges) - 1), np.nan)
    for number, level in zip(columns, np.where(judged, np.sqrt(at["level"].values), np.nan).T, strict=True):
        distance[:, number] = np.fmax(distance[:, number], level)
    limits, layers = np.sqrt(at["limit"].values), at["layer"].values.tolist()
    texts = np.full(distance.shape, "", dtype=object)
    for row, column in np.argwhere(np.isfinite(distance)):
        where = f"{onset.method}, layer {layers[row]}, positions {edges[column]} to {edges[column + 1] - 1}"
        texts[row, column] = f"{where}: {distance[row, column]:.2g} ranges, limit {limits[row]:.2g}"
    mark = None
    if onset.length is not None and onset.layer is not None:
        words = f"{onset.method} drifts first at position {onset.length}, in layer {onset.layer}"
        mark = Point(words, onset.length, layers.index(onset.layer), "#111111")
    ticks = range(0, len(layers), -(-len(layers) // 6))
    return Heatmap(
        f"{onset.method}: {_text(onset)}",
        np.log2(np.maximum(distance, np.finfo(float).tiny) / limits[:, None]),
        (edges[:-1] + edges[1:]) / 2,
        np.arange(len(layers)),
        (float(edges[0]), float(edges[-1]), len(layers) - 0.5, -0.5),
        min(TICKS),
        max(TICKS),
        x_title=f"position (tokens); dashed: M = {at.attrs['trained_length']}",
        y_title="layer",
        y_ticks={row: str(layers[row]) for row in ticks},
        texts=texts,
        mark=mark,
        m=at.attrs["trained_length"],
    )
