"""What stored moments say: plain numbers by method and layer, and small arrays for figures. No torch.

The texts slide (sliding.py), so moments are levelled first. What is compared is one half's vectors with the other's,
whose texts share no token: noise that neighbours or methods have in common makes nothing look alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mesa.plan import Plan
from probe.mechanism.anatomy import moments
from probe.mechanism.anatomy.evidence import reliability, share
from probe.mechanism.anatomy.interpolation import interpolation
from probe.mechanism.anatomy.positional import components, mean_vector, nearest, packed
from probe.mechanism.anatomy.sliding import levelled
from probe.thresholds.calls import drift_calls
from probe.thresholds.control import negative_control
from probe.thresholds.drift import find_drift, of_plans
from probe.thresholds.predict import predict
from probe.thresholds.search import CrossingRule, search

RELIABLE = 0.8
"""Of both halves together, inside and beyond M: below it no slope is given."""
_ALIKE = 0.5
"""Median of the largest cosines below which they point to no position."""
_COMPONENTS = 3
_CONTROL = ("qualified", "matched")
_POSITIONS = 1024
"""Positions, at most, that figures are given, and in-window ones that others are compared with."""

Frame = tuple[xr.DataArray, xr.DataArray]
"""Of a method: u of the first half, and the second half's in-window vectors about theirs."""


def read(
    paths: Mapping[str, Path], stride: int, trained: int, plans: Mapping[str, Plan]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The summary of the moments in `paths`, by method with the reference first, and the arrays for figures.

    plans: the methods', of the passes. Raises ValueError for moments of fewer than 4 texts.
    """
    layers, drawn, texts = [], [], {}
    vectors: list[xr.DataArray] = []
    noise: list[xr.DataArray] = []
    frame: Frame | None = None
    for name, path in paths.items():
        made = levelled(moments.load(path), stride)
        frame = frame or _frame(made)
        rows, arrays = _method(made, frame)
        layers += [{"method": name, **row} for row in rows]
        drawn.append(arrays)
        texts[name] = int(made["count"].sum())
        vectors.append(packed({name: made}))
        noise.append(packed({name: made}, chance=True))
    p, chance = xr.concat(vectors, "method"), xr.concat(noise, "method")
    del vectors, noise
    drift, by_chance = (
        find_drift(each, trained, reference=next(iter(paths)), **of_plans(plans)) for each in (p, chance)
    )
    calls = zip(drift_calls(drift), drift_calls(by_chance), strict=True)
    summary = {
        "texts": texts,
        "stride": stride,
        "reliable": RELIABLE,
        "layers": layers,
        "drift": [{**asdict(call), "by_chance": other.length, "said": str(call)} for call, other in calls],
        "thresholds": _thresholds(p, chance, trained),
    }
    return summary, {**_stacked(drawn, list(paths)), **_levels(drift)}


def _method(made: xr.Dataset, frame: Frame) -> tuple[list[dict[str, Any]], xr.Dataset]:
    """One method's entry a layer, and what is drawn of it."""
    trained, (own_mean, own) = made.attrs["trained_length"], _frame(made)
    agreed, positional, step = reliability(made), share(made)["share"], max(1, trained // _POSITIONS)
    scores = components(moments.mean(made), trained, k=_COMPONENTS)
    half = made["half_mean"].isel(half=0)
    thin = half.isel(position=slice(None, None, -(-half.sizes["position"] // _POSITIONS)))
    near = nearest(thin - own_mean, trained, among=own, begin=0, step=step)
    slopes = interpolation(nearest(half - frame[0], trained, among=frame[1], step=step))
    rows = []
    for layer in made["layer"].values.tolist():
        whole = _bands(agreed["whole"].sel(layer=layer))
        rows.append(
            {
                "layer": layer,
                "share": _bands(positional.sel(layer=layer)),
                "reliability": whole,
                "cosine": _cosines(near["cosine"].sel(layer=layer), trained),
                "components": [round(float(each), 4) for each in scores["share"].sel(layer=layer)],
                **_slope(slopes.sel(layer=layer), whole),
            }
        )
    score = scores["score"].sel(position=thin["position"])
    return rows, xr.Dataset({"score": score, **near, "share": positional, "reliability": agreed["whole"]})


def _frame(made: xr.Dataset) -> Frame:
    trained = made.attrs["trained_length"]
    first, second = (made["half_mean"].isel(half=half) for half in range(2))
    inside = second.sel(position=second["position"] < trained)
    return mean_vector(first, upto=trained), inside - mean_vector(inside)


def _cosines(cosine: xr.DataArray, trained: int) -> dict[str, float]:
    """Median of the largest cosine to an in-window vector: inside M, beyond, and over the last M/4 positions."""
    position = cosine["position"]
    spans = {
        "inside": (position >= 1) & (position < trained),
        "beyond": position >= trained,
        "last": position > position.max() - trained // 4,
    }
    return {name: round(float(cosine[span.values].median()), 4) for name, span in spans.items()}


def _slope(found: xr.Dataset, whole: Mapping[str, float | None]) -> dict[str, Any]:
    """In-window tokens for one token beyond, with its interval; None and the reason where that means nothing."""
    least, cosine = min(each or 0 for each in whole.values()), float(found["cosine"])
    reason = None
    if least < RELIABLE:
        reason = f"reliability {least:z.2f} is below {RELIABLE}; read more --texts"
    elif cosine < _ALIKE:
        reason = f"positions beyond M are like none inside, their largest cosine is {cosine:z.2f}"
    names = {"slope": "slope", "slope_low": "low", "slope_high": "high"}
    return {**{key: None if reason else _number(found[name]) for key, name in names.items()}, "slope_reason": reason}


def _thresholds(p: xr.DataArray, chance: xr.DataArray, trained: int) -> dict[str, Any]:
    """How many dims of p are observable and what they predict, beside how many are so by chance and inside M."""
    reference, rule = str(p["method"].values[0]), CrossingRule.scaled(trained)
    found, by_chance = (search(each, trained, rule, reference) for each in (p, chance))
    try:
        control = negative_control(p, trained, rule, reference)
        inside: dict[str, list[int]] | str = {name: control[name].values.tolist() for name in _CONTROL}
    except ValueError as error:
        inside = str(error)
    return {
        "searched": found.attrs["searched"],
        "observable": int(found["qualified"]),
        "by_chance": int(by_chance["qualified"]),
        "inside": inside,
        "observable_by_layer": found["observable"].sum("dim").values.tolist(),
        "predictions": [{**asdict(each), "said": str(each)} for each in predict(found)],
    }


def _stacked(drawn: list[xr.Dataset], methods: list[str]) -> dict[str, np.ndarray]:
    """Arrays (method, layer, ...) and their labels."""
    both = xr.concat(drawn, "method").transpose("method", "layer", "component", "band", "position")
    labels = {"method": np.array(methods), **{name: both[name].values for name in ("layer", "component", "position")}}
    values = {name: each.values.astype(np.float32) for name, each in both.data_vars.items()}
    return {**labels, "band": np.array(moments.BANDS), **{str(name): each for name, each in values.items()}}


def _levels(drift: xr.Dataset) -> dict[str, np.ndarray]:
    """How far p is from its in-window range, (method, layer, run), the limit of each layer, and where runs begin."""
    values = {f"drift_{name}": drift[name].values.astype(np.float32) for name in ("level", "limit")}
    return {**values, "drift_run": drift["run"].values}


def _bands(values: xr.DataArray) -> dict[str, float | None]:
    return {str(name): _number(values.sel(band=name)) for name in values["band"].values}


def _number(value: xr.DataArray) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None
