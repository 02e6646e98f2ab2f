"""One dim's value over position, with its threshold and crossings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from probe.figures.figure_data import (
    Chart,
    Line,
    Panel,
    Point,
    Rule,
    grouped,
    line_of_positions,
    trained_rule,
    value_name,
    value_title,
)
from probe.figures.styles import RED, style
from probe.thresholds.predict import excluded
from probe.thresholds.search import smooth


def threshold_chart(hidden: xr.DataArray, search: xr.Dataset, layer: int, dim: int) -> Chart:
    """One dim's value over position at the first captured layer and at `layer`, where its threshold is observed.

    hidden (method, layer, position, dim) and search (from `probe.search`) are of one prompt. Values are smoothed as in
    the search. Both panels span the same range of values, so that their motions compare.
    """
    smoothing, trained = search.attrs["smoothing"], search.attrs["trained_length"]
    layers = sorted({int(hidden["layer"].values[0]), layer})
    values = smooth(hidden.sel(layer=layers, dim=dim).load(), smoothing)
    at = search.sel(layer=layer, dim=dim)
    threshold, limit = float(at["threshold"]), float(at["limit"])
    ranges = central_ranges(values, search.attrs["warm_up"], 0.005)
    ranges[-1] = min(ranges[-1][0], limit), max(ranges[-1][1], limit)
    levels = (Rule(threshold, "", RED), *([Rule(limit, "", RED, dash="dot")] if limit != threshold else []))
    panels = []
    for shown_layer, y_range in zip(layers, same_span(ranges), strict=True):
        here = values.sel(layer=shown_layer)
        lines = [_line(here.sel({"method": method}), at) for method in values["method"].values.tolist()]
        observing = shown_layer == layer
        panels.append(
            Panel(
                title=f"layer {shown_layer}, dim {dim}",
                x_title="position (tokens)" + ("" if smoothing == 1 else f", mean of the last {smoothing}"),
                y_title=value_title(hidden),
                lines=tuple(lines),
                y_range=y_range,
                points=_crossings(here, at) if observing else (),
                rules=(trained_rule(trained), *(levels if observing else ())),
                seen=_seen(layer, lines) if observing else "",
            )
        )
    prompt = f", prompt {search['prompt'].item()}" if "prompt" in search.coords else ""
    passed = "" if limit == threshold else f", passed beyond {limit:.3g}"
    no_threshold = "" if bool(at["threshold_dim"]) else ", no threshold dim"
    where = f"{value_name(hidden)}, dim {dim}, layer {layer}{prompt}"
    return Chart(f"{where}: threshold {threshold:.3g}{passed}{no_threshold}", tuple(panels))


def _seen(layer: int, lines: Sequence[Line]) -> str:
    names, texts = zip(*(line.label.split(": ", 1) for line in lines), strict=True)
    return f"In layer {layer}, in tokens: {grouped(zip(names, texts, strict=True))}"


def central_ranges(values: xr.DataArray, warm_up: int, tail: float) -> list[tuple[float, float]]:
    """For every layer of `values`, the quantiles `tail` and `1 - tail` of all values after the warm-up."""
    late = values.sel(position=slice(max(warm_up, int(values["position"][0])), None))
    quantiles = (np.quantile(late.sel(layer=layer), [tail, 1 - tail]) for layer in values["layer"].values)
    return [(float(low), float(high)) for low, high in quantiles]


def same_span(ranges: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Ranges as wide as the widest and some 15% more, each about its own middle."""
    span = 1.15 * max(high - low for low, high in ranges) or 1.0
    return [((low + high - span) / 2, (low + high + span) / 2) for low, high in ranges]


def _line(values: xr.DataArray, at: xr.Dataset) -> Line:
    method = str(values["method"].item())
    return line_of_positions(values, _label(at, method), style(method), _is_excluded(at, method))


def _crossings(values: xr.DataArray, at: xr.Dataset) -> tuple[Point, ...]:
    points = []
    for method in values["method"].values.tolist():
        crossing = float(at["crossing"].sel({"method": method}))
        if np.isfinite(crossing) and not _is_excluded(at, method):
            y = float(values.sel({"method": method, "position": int(crossing)}))
            points.append(Point(_label(at, method), crossing, y, style(method)[0]))
    return tuple(points)


def _is_excluded(at: xr.Dataset, method: str) -> bool:
    return bool(excluded(at).sel({"method": method}))


def _label(at: xr.Dataset, method: str) -> str:
    """Where the method crosses the threshold, or why that is not judged."""
    if _is_excluded(at, method):
        share = float(at["inside"].sel({"method": method}))
        return f"{method}: excluded, beyond the threshold on {share:.0%} of positions inside M"
    crossing = float(at["crossing"].sel({"method": method}))
    if np.isnan(crossing):
        return f"{method}: no crossing up to {at.attrs['length']}"
    return f"{method}: crosses at {crossing:.0f}"
