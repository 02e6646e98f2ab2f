"""Hidden states over position: distance from the in-window range by layer and as a map; one dim with its threshold."""

import base64
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from probe.figures import figure_data as fig
from probe.figures.export import safe_name
from probe.thresholds.onset import DriftOnset, drift_onsets, excluded
from probe.thresholds.search import smooth

TICKS = {-2.0: "1/4", -1.0: "1/2", 0.0: "limit", 1.0: "2 x", 2.0: "4 x", 3.0: "8 x"}
"""Colours of a drift map are doublings of a layer's limit."""
COLOURS = ((0.0, "#F4F8FB"), (0.4, "#C6DBEF"), (0.4, "#FDCDB5"), (0.6, "#EF6548"), (0.8, "#B2182B"), (1.0, "#4A0012"))
"""By share of the scale: pale blue up to the limit, red beyond it."""
NOTE = ("evaluated from M on", "circle: drift begins", "grey: warm-up, layer not evaluated, or not captured")
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
    counted = (at["run"] >= at.attrs["trained_length"]) & ~at["warm_up"] & (at["doubt"] == "")
    strongest = int(at["level"].where(counted, 0).max("run").fillna(0).values.argmax())
    return sorted({layers[0], layers[strongest] if onset.layer is None else onset.layer})


def drift_chart(
    drift: xr.Dataset, layers: list[int] | None = None, prompt: str = "", methods: Sequence[str] | None = None
) -> fig.Chart:
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
            fig.Panel(
                title=f"layer {layer}",
                x_title=f"position (tokens), runs of {drift.attrs['run']}",
                y_title="distance (1: the edge of the range)",
                lines=tuple(_line(at, onset) for onset in onsets),
                y_range=(0.0, 1.08 * max(top, limit)),
                points=tuple(_point(at, onset, layer) for onset in onsets if layer in onset.layers),
                rules=(fig.trained_rule(trained), fig.Rule(limit, "", fig.RED)),
                seen="" if panels else _seen(onsets),
            )
        )
    where = f", prompt {prompt}" if prompt else ""
    title = f"How far hidden states ({drift.attrs['hook']}) are from their range inside the trained window{where}"
    return fig.Chart(f"{title}; red: {reference}'s limit; evaluated from M on", tuple(panels))


def distance_layers(distance: xr.Dataset) -> list[int]:
    """The first captured layer, and the one whose states the reference moves most beyond M, in or out."""
    at, axis = distance["ratio"].sel({"method": distance.attrs["reference"]}), _axis_of(distance)
    beyond = at.sel({axis: at[axis] >= distance.attrs["trained_length"]})
    moved = xr.apply_ufunc(np.abs, xr.apply_ufunc(np.log, beyond)).mean(axis).values
    layers = distance["layer"].values.tolist()
    return sorted({layers[0], layers[int(moved.argmax())]})


def _axis_of(distance: xr.Dataset) -> str:
    """'window' of `find_state_distance`, 'length' of `find_distance_by_length`."""
    return "length" if "length" in distance.dims else "window"


def distance_chart(
    distance: xr.Dataset, layers: list[int] | None = None, methods: Sequence[str] | None = None
) -> fig.Chart:
    """`ratio` of `find_state_distance` by position, of `find_distance_by_length` by length, a line a method.

    Default layers: `distance_layers`.
    """
    trained, panels, axis = distance.attrs["trained_length"], [], _axis_of(distance)
    by_length = axis == "length"
    displayed = distance if methods is None else distance.sel({"method": list(methods)})
    displayed = displayed.sel(layer=distance_layers(distance) if layers is None else layers)
    top = max(1.2, 1.08 * float(displayed[["ratio", "high"]].to_array().max()))
    if by_length and displayed["limit"].notnull().any():
        top = max(top, 1.08 / float(displayed["limit"].min()))
    for layer in displayed["layer"].values.tolist():
        at, lines, limits = displayed.sel(layer=layer), list[fig.Line](), [fig.Rule(1.0, "", fig.RED)]
        if by_length and np.isfinite(at["limit"]):
            limits += [fig.Rule(float(at["limit"]), "limit", fig.RED, dash="dot", right=True)]
            limits += [fig.Rule(1 / float(at["limit"]), "", fig.RED, dash="dot")]
        for name in at["method"].values.tolist():
            line = at.sel({"method": name})
            line = line.sel({axis: line["ratio"].notnull()})
            if not line.sizes[axis]:
                continue
            ends = (line["low"].values, line["high"].values) if np.isfinite(line["low"]).any() else None
            middle = line[axis].values + (0 if by_length else distance.attrs["run"] / 2)
            lines.append(fig.Line(name, middle, line["ratio"].values, *fig.style(name), interval=ends, band=True))
        panels.append(
            fig.Panel(
                title=f"layer {layer}",
                x_title="prompt length (tokens)"
                if by_length
                else f"position (tokens), windows of {distance.attrs['run']}",
                y_title=f"squared distance over that {'at' if by_length else 'within'} M",
                lines=tuple(lines),
                y_range=(0.0, top),
                rules=(fig.trained_rule(trained), *limits),
            )
        )
    title = "How far states at the end of texts lie" if by_length else "How far states on text lie"
    where = distance.attrs["hook"] if by_length else f"{distance.attrs['texts']} texts, {distance.attrs['hook']}"
    return fig.Chart(f"{title} from the in-window distribution ({where})", tuple(panels))


def drift_map(drift: xr.Dataset, prompt: str = "") -> fig.Heatmaps:
    """How far every layer is from its in-window range over position, in doublings of its limit; a map a method.

    drift: of one prompt, from `find_drift`.
    """
    run, begin, layers = drift.attrs["run"], drift["run"].values, drift["layer"].values.tolist()
    columns = (begin - begin[0]) // run
    block = -(-(int(columns[-1]) + 1) // COLUMNS)
    edges = begin[0] + run * block * np.arange(int(columns[-1]) // block + 2)
    where = f", prompt {prompt}" if prompt else ""
    maps = (_map(drift.sel({"method": onset.method}), onset, columns // block, edges) for onset in drift_onsets(drift))
    return fig.Heatmaps(
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
    return f"States leave it, in tokens: {fig.grouped((onset.method, _text(onset)) for onset in onsets)}"


def _text(onset: DriftOnset) -> str:
    if onset.length is None or onset.layer is None:
        return str(onset)
    return f"first at {onset.length}, in layer {onset.layer}"


def _line(at: xr.Dataset, onset: DriftOnset) -> fig.Line:
    """A method's distance; faint, with the reason, where it is not evaluated."""
    drift = at.sel({"method": onset.method})
    label = f"{onset.method}: excluded, {onset.reason}" if onset.reason else onset.method
    doubt = "" if onset.reason else str(drift["doubt"].item())
    note = f", layer {int(at['layer'])}: not evaluated, {doubt}" if doubt else ""
    level = np.where(drift["warm_up"].values, np.nan, drift["level"].values)
    x, look = at["run"].values.astype(float), fig.style(onset.method)
    return fig.Line(label, x, np.sqrt(level), *look, faint=bool(onset.reason or doubt), note=note)


def _point(at: xr.Dataset, onset: DriftOnset, layer: int) -> fig.Point:
    first = onset.layers[layer]
    y = float(np.sqrt(at["level"].sel({"method": onset.method}).sel(run=first, method="pad")))
    return fig.Point(f"layer {layer}, {onset.method}: first at {first}", first, y, fig.style(onset.method)[0])


def _map(at: xr.Dataset, onset: DriftOnset, columns: np.ndarray, edges: np.ndarray) -> fig.Heatmap:
    evaluated = (at["doubt"].values == "")[:, None] & ~at["warm_up"].values
    distance = np.full((len(evaluated), len(edges) - 1), np.nan)
    for number, level in zip(columns, np.where(evaluated, np.sqrt(at["level"].values), np.nan).T, strict=True):
        distance[:, number] = np.fmax(distance[:, number], level)
    limits, layers = np.sqrt(at["limit"].values), at["layer"].values.tolist()
    texts = np.full(distance.shape, "", dtype=object)
    for row, column in np.argwhere(np.isfinite(distance)):
        where = f"{onset.method}, layer {layers[row]}, positions {edges[column]} to {edges[column + 1] - 1}"
        texts[row, column] = f"{where}: {distance[row, column]:.2g} ranges, limit {limits[row]:.2g}"
    mark = None
    if onset.length is not None and onset.layer is not None:
        words = f"{onset.method} drifts first at position {onset.length}, in layer {onset.layer}"
        mark = fig.Point(words, onset.length, layers.index(onset.layer), "#111111")
    ticks = range(0, len(layers), -(-len(layers) // 6))
    return fig.Heatmap(
        f"{onset.method}: {_text(onset).replace(' of positions', '')}",  # which a phone would cut
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


_MIDDLE = "#808080"  # seen on white and on black
_WIDTH, _HEIGHT, _STEPS = 200, 90, 150  # pixels of a small picture, and points of a line in it


def threshold_chart(
    hidden: xr.DataArray, search: xr.Dataset, layer: int, dim: int, failures: Mapping[str, int] | None = None
) -> fig.Chart:
    """One dim's value over position at the first captured layer and at `layer`, where its threshold is observed.

    hidden (method, layer, position, dim) and search (from `probe.search`) are of one prompt. Values are smoothed as in
    the search. Both panels span the same range of values, so that their motions compare. Crossings, the threshold and
    its limit are of `layer`, and are drawn in its panel only. failures: by method the length at which it was measured
    to fail, in tokens; a vertical line each, where positions reach it.
    """
    smoothing, trained = search.attrs["smoothing"], search.attrs["trained_length"]
    layers = sorted({int(hidden["layer"].values[0]), layer})
    values = smooth(hidden.sel(layer=layers, dim=dim).load(), smoothing)
    at = search.sel(layer=layer, dim=dim)
    threshold, limit = float(at["threshold"]), float(at["limit"])
    ranges = central_ranges(values, search.attrs["warm_up"], 0.005)
    ranges[-1] = min(ranges[-1][0], threshold, limit), max(ranges[-1][1], threshold, limit)
    names = {threshold: f"threshold {threshold:.3g}"}
    names[limit] = f"limit {limit:.3g}" if limit != threshold else f"threshold and limit {limit:.3g}"
    looks = zip(names.items(), ("dash", "dot"), strict=False)
    levels = [fig.Rule(level, text, fig.RED, dash, right=True) for (level, text), dash in looks]
    methods = values["method"].values.tolist()
    levels += [
        fig.Rule(length, f"{name} fails", fig.style(name)[0], "dot", vertical=True)
        for name, length in (failures or {}).items()
        if name in methods and length <= int(values["position"].values[-1])
    ]
    texts = {method: _crossing_text(at.sel({"method": method})) for method in methods}
    left_out = {method for method in methods if bool(excluded(at.sel({"method": method})))}
    panels = []
    for shown_layer, y_range in zip(layers, same_span(ranges), strict=True):
        here, observing, lines, points = values.sel(layer=shown_layer), shown_layer == layer, [], []
        for method in methods:
            line, crossing = here.sel({"method": method}), float(at["crossing"].sel({"method": method}))
            if not observing:
                lines.append(fig.line_of_positions(line, method, fig.style(method)))
                continue
            note = f", layer {layer}: {texts[method]}"
            lines.append(fig.line_of_positions(line, method, fig.style(method), method in left_out, note))
            if np.isfinite(crossing) and method not in left_out:
                y = float(line.sel(position=int(crossing)))
                points.append(fig.Point(method + note, crossing, y, fig.style(method)[0]))
        panels.append(
            fig.Panel(
                title=f"layer {shown_layer}, dim {dim}",
                x_title="position (tokens)" + ("" if smoothing == 1 else f", mean of the last {smoothing}"),
                y_title=fig.value_title(hidden),
                lines=tuple(lines),
                y_range=y_range,
                points=tuple(points),
                rules=(fig.trained_rule(trained), *(levels if observing else ())),
                seen=f"In layer {layer}, in tokens: {fig.grouped(texts.items())}" if observing else "",
            )
        )
    prompt = f", prompt {search['prompt'].item()}" if "prompt" in search.coords else ""
    no_threshold = "" if bool(at["threshold_dim"]) else ", no threshold dim"
    where = f"{fig.value_name(hidden)}, dim {dim}, layer {layer}{prompt}"
    return fig.Chart(f"{where}: {', '.join(names.values())}{no_threshold}", tuple(panels), crosshair=True)


def dim_chart(hidden: xr.DataArray, layer: int, dim: int, trained: int) -> fig.Chart:
    """One dim's value over position in one layer, under each method of hidden (method, layer, position, dim)."""
    values = hidden.sel(layer=layer, dim=dim).load()
    methods = values["method"].values.tolist()
    lines = tuple(fig.line_of_positions(values.sel({"method": name}), name, fig.style(name)) for name in methods)
    (y_range,) = same_span(central_ranges(values.expand_dims("layer"), 0, 0.005))
    panel = fig.Panel(
        "", "position (tokens)", fig.value_title(hidden), lines, y_range, rules=(fig.trained_rule(trained),)
    )
    return fig.Chart(f"{fig.value_name(hidden)}, dim {dim}, layer {layer}", (panel,))


def small_thresholds(hidden: xr.DataArray, search: xr.Dataset, pairs: Sequence[tuple[int, int]]) -> list[str]:
    """Each (layer, dim) as a small picture in HTML: every method's value over position.

    Dashed: M, the threshold; dotted: its limit. What lies outside the central 99% is drawn at the edge.
    """
    trained, smoothing = search.attrs["trained_length"], search.attrs["smoothing"]
    pictures = []
    for layer, dim in pairs:
        values, at = smooth(hidden.sel(layer=layer, dim=dim).load(), smoothing), search.sel(layer=layer, dim=dim)
        shown = values.isel(position=slice(None, None, max(1, values.sizes["position"] // _STEPS)))
        position, threshold, limit = shown["position"].values, float(at["threshold"]), float(at["limit"])
        late = shown.sel(position=slice(search.attrs["warm_up"], None)).values
        low, high = np.nanquantile(late, [0.005, 0.995])
        low, high = min(low, threshold, limit), max(high, threshold, limit)
        x = _WIDTH * (position - position[0]) / (position[-1] - position[0])
        m = _WIDTH * (trained - position[0]) / (position[-1] - position[0])
        lines = [f'<path d="M{m:z.1f} 0V{_HEIGHT}" stroke="{_MIDDLE}" stroke-dasharray="4 3"/>']
        for y, dash in zip(_height(np.array([threshold, limit]), low, high), ("4 3", "1 3"), strict=True):
            lines.append(f'<path d="M0 {y:z.1f}H{_WIDTH}" stroke="{fig.RED}" stroke-dasharray="{dash}"/>')
        for method in shown["method"].values.tolist():
            y = _height(shown.sel({"method": method}).values, low, high)
            points = " ".join(f"{a:z.1f},{b:z.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(b))
            width = 1.3 * (fig.FAINT if bool(excluded(at.sel({"method": method}))) else 1)
            colour = _MIDDLE if method == "origin" else fig.style(method)[0]
            lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>')
        levels = f"dashed: M, the threshold {threshold:.3g}; dotted: the limit {limit:.3g}"
        label = f"layer {layer}, dim {dim} over position; {levels}"
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(lines)}</svg>'
        data = base64.b64encode(svg.encode()).decode()
        pictures.append(f'<img src="data:image/svg+xml;base64,{data}" alt="{label}" style="width: 100%">')
    return pictures


def _height(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Pixels from the top, inside the picture."""
    return np.clip(_HEIGHT * (1 - (values - low) / ((high - low) or 1.0)), 1, _HEIGHT - 1)


def central_ranges(values: xr.DataArray, warm_up: int, tail: float) -> list[tuple[float, float]]:
    """For every layer of `values`, the quantiles `tail` and `1 - tail` of all values after the warm-up."""
    late = values.sel(position=slice(max(warm_up, int(values["position"][0])), None))
    quantiles = (np.quantile(late.sel(layer=layer), [tail, 1 - tail]) for layer in values["layer"].values)
    return [(float(low), float(high)) for low, high in quantiles]


def same_span(ranges: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Ranges as wide as the widest and some 15% more, each about its own middle."""
    span = 1.15 * max(high - low for low, high in ranges) or 1.0
    return [((low + high - span) / 2, (low + high + span) / 2) for low, high in ranges]


def _crossing_text(at: xr.Dataset) -> str:
    """Where a method crosses the limit, or why that is not counted."""
    if bool(excluded(at)):
        inside = f"{at.attrs['warm_up']} to {at.attrs['trained_length'] - 1}"
        return f"excluded, beyond the limit on {float(at['inside']):.0%} of positions {inside}"
    crossing = float(at["crossing"])
    return f"no crossing up to {at.attrs['length']}" if np.isnan(crossing) else f"crosses the limit at {crossing:.0f}"
