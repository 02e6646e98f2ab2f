"""Charts of the rule `drift`: a layer's distance from its in-window range, and the dims that carry it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from probe.figures.marks import Chart, Line, Panel, Point, Rule, token_texts, trained_rule, value_name, value_title
from probe.figures.styles import RED, style
from probe.thresholds.calls import Call, drift_calls


def shown_layers(found: xr.Dataset) -> list[int]:
    """The layer in which the reference's drift begins, or is strongest; before it the first captured one."""
    at = found.sel({"method": found.attrs["reference"]})
    layers = found["layer"].values.tolist()
    call = next(each for each in drift_calls(found) if each.method == found.attrs["reference"])
    beyond = at["level"].where((at["run"] >= at.attrs["trained_length"]) & ~at["settling"], 0)
    strongest = int(beyond.max("run").fillna(0).values.argmax())
    return sorted({layers[0], layers[strongest] if call.layer is None else call.layer})


def drift_chart(
    found: xr.Dataset, layers: list[int] | None = None, prompt: str = "", methods: Sequence[str] | None = None
) -> Chart:
    """How far a layer's states are from their in-window range, by position and method, for `layers` of `find_drift`.

    Drawn is the root mean square over dims, in ranges: 1 is every dim at the edge of its in-window range. What is not
    judged, since states are settling, is left out. Default layers: `shown_layers`; methods: all.
    """
    layers = shown_layers(found) if layers is None else layers
    reference, trained = found.attrs["reference"], found.attrs["trained_length"]
    shown = found if methods is None else found.sel({"method": list(methods)})
    calls = drift_calls(shown)
    panels = []
    top = np.sqrt(shown["level"].sel(layer=layers).where(~shown["settling"]).max().fillna(0).item())
    for layer in layers:
        at = found.sel(layer=layer)
        limit = float(np.sqrt(at["limit"].sel({"method": reference})))
        lines = tuple(_line(at, call) for call in calls)
        panels.append(
            Panel(
                title=f"layer {layer}",
                x_title=f"position (tokens), runs of {found.attrs['run']}",
                y_title="rms distance from in-window range (ranges)",
                lines=lines,
                points=tuple(_point(at, call, layer) for call in calls if layer in call.layers),
                rules=(trained_rule(trained), Rule(limit, "", RED)),
                y_range=(0.0, 1.08 * max(top, limit)),
            )
        )
    where = f", prompt {prompt}" if prompt else ""
    return Chart(
        f"Drift of {found.attrs['hook']} from its in-window range{where}; red: {reference}'s limit; judged from M on",
        tuple(panels),
    )


def carrier_chart(hidden: xr.DataArray, found: xr.Dataset, layer: int, dim: int) -> Chart:
    """One dim's value over position under every method, at the first captured layer and at `layer`, where it drifts.

    hidden (method, layer, position, dim) is of the prompt that `found` (`find_drift`) is of. Red: the threshold, the
    reference's value at M; dotted: the range it kept to inside the window. Both panels span as many units.
    """
    reference, trained = found.attrs["reference"], found.attrs["trained_length"]
    layers = sorted({int(hidden["layer"].values[0]), layer})
    values = hidden.sel(layer=layers, dim=dim).load()
    late = values.sel(position=slice(max(found.attrs["burn_in"], int(values["position"][0])), None))
    ranges = [tuple(np.quantile(late.sel(layer=each), [0.002, 0.998]).tolist()) for each in layers]
    span = 1.15 * max(high - low for low, high in ranges) or 1.0
    share = float(found["share"].sel({"method": reference, "layer": layer, "dim": dim}))
    panels = []
    for each, (low, high) in zip(layers, ranges, strict=True):
        at = found.sel({"method": reference, "layer": each, "dim": dim})
        centre, width = float(at["centre"]), float(at["range"])
        threshold = values.sel({"method": reference, "layer": each}).sel(position=trained, method="nearest")
        panels.append(
            Panel(
                title=f"layer {each}, dim {dim}",
                x_title="position (tokens)",
                y_title=value_title(hidden),
                lines=tuple(_values(values.sel(layer=each), name) for name in values["method"].values.tolist()),
                points=(),
                rules=(
                    trained_rule(trained),
                    Rule(float(threshold), "", RED),
                    *(Rule(edge, "", RED, dash="dot") for edge in (centre - width, centre + width)),
                ),
                y_range=((low + high - span) / 2, (low + high + span) / 2),
            )
        )
    title = f"{value_name(hidden)}, dim {dim}: {share:.1%} of layer {layer}'s drift under {reference}"
    return Chart(title, tuple(panels))


def _line(at: xr.Dataset, call: Call) -> Line:
    """A method's distance; one that is not judged says why, and is faint."""
    own = at.sel({"method": call.method})
    label = f"{call.method}: excluded, {call.reason}" if call.reason else call.method
    level = np.where(own["settling"].values, np.nan, own["level"].values)
    look = style(call.method, at["method"].values)
    return Line(label, at["run"].values.astype(float), np.sqrt(level), *look, faint=bool(call.reason))


def _point(at: xr.Dataset, call: Call, layer: int) -> Point:
    first = call.layers[layer]
    y = float(np.sqrt(at["level"].sel({"method": call.method}).sel(run=first, method="pad")))
    return Point(
        f"layer {layer}, {call.method}: first at {first}", first, y, style(call.method, at["method"].values)[0]
    )


def _values(values: xr.DataArray, method: str) -> Line:
    """A method's values, parted where positions were not captured."""
    position, own = values["position"].values, values.sel({"method": method}).values
    gaps = np.flatnonzero(np.diff(position) != 1) + 1
    x, y = (np.insert(each.astype(float), gaps, np.nan) for each in (position, own))
    return Line(method, x, y, *style(method, values["method"].values), tokens=token_texts(values, gaps))
