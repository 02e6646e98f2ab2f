"""The results on positional vectors: numbers by method and layer, and small arrays for figures. No torch.

The texts slide, so moments are levelled first. One half's vectors are compared with the other's, whose texts share no
token: noise that neighbours or methods have in common creates no similarity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mesa.plan import Plan
from probe.attention import moments
from probe.attention.positional import components, interpolation, mean_vector, nearest, packed, reliability, share
from probe.thresholds.calls import drift_calls
from probe.thresholds.drift import find_drift
from probe.thresholds.predict import negative_control, predict
from probe.thresholds.search import CrossingRule, search

RELIABLE = 0.8
"""Least reliability, inside and beyond M, at which a slope is given."""
_SIMILAR = 0.5
"""Median of the largest cosines below which they point to no position."""
_COMPONENTS = 3
_POSITIONS = 1024
"""Positions, at most, in figures, and in-window ones that others are compared with."""

Frame = tuple[xr.DataArray, xr.DataArray]
"""Of a method: u of the first half, and the second half's in-window vectors about theirs."""


def vector_results(
    paths: Mapping[str, Path], stride: int, trained: int, plans: Mapping[str, Plan]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The summary of the moments in `paths`, by method with the reference first, and the arrays for figures.

    plans: the methods', of the passes. Raises ValueError for moments of fewer than 4 texts.
    """
    layers, figures, texts = [], [], {}
    vectors, noises = list[xr.DataArray](), list[xr.DataArray]()
    frame: Frame | None = None
    for name, path in paths.items():
        stored = moments.levelled(moments.load(path), stride)
        frame = frame or _frame(stored)
        rows, arrays = _of_method(stored, frame)
        layers += [{"method": name, **row} for row in rows]
        figures.append(arrays)
        texts[name] = int(stored["count"].sum())
        vectors.append(packed({name: stored}))
        noises.append(packed({name: stored}, chance=True))
    p, noise = xr.concat(vectors, "method"), xr.concat(noises, "method")
    del vectors, noises
    drift, by_chance = (find_drift(x, trained, plans=plans, reference=next(iter(paths))) for x in (p, noise))
    calls = zip(drift_calls(drift), drift_calls(by_chance), strict=True)
    summary = {
        "texts": texts,
        "stride": stride,
        "reliable": RELIABLE,
        "layers": layers,
        "drift": [{**asdict(call), "by_chance": other.length, "said": str(call)} for call, other in calls],
        "thresholds": _thresholds(p, noise, trained),
    }
    both = xr.concat(figures, "method").transpose("method", "layer", "component", "band", "position")
    return summary, {
        "method": np.array(list(paths)),
        "band": np.array(moments.BANDS),
        **{name: both[name].values for name in ("layer", "component", "position")},
        **{str(name): values.values.astype(np.float32) for name, values in both.data_vars.items()},
        **{f"drift_{name}": drift[name].values.astype(np.float32) for name in ("level", "limit")},
        "drift_run": drift["run"].values,
    }


def _of_method(stored: xr.Dataset, frame: Frame) -> tuple[list[dict[str, Any]], xr.Dataset]:
    """One method's entry a layer, and the arrays of its figures."""
    trained, (mean, inside) = stored.attrs["trained_length"], _frame(stored)
    agreed, positional, step = reliability(stored), share(stored), max(1, trained // _POSITIONS)
    scores = components(moments.mean(stored), trained, k=_COMPONENTS)
    half = stored["half_mean"].isel(half=0)
    thin = half.isel(position=slice(None, None, -(-half.sizes["position"] // _POSITIONS)))
    near = nearest(thin - mean, trained, among=inside, begin=0, step=step)
    slopes = interpolation(nearest(half - frame[0], trained, among=frame[1], step=step))
    rows = [
        {
            "layer": layer,
            "share": _bands(positional.sel(layer=layer)),
            "reliability": _bands(agreed.sel(layer=layer)),
            "cosine": _cosines(near["cosine"].sel(layer=layer), trained),
            "components": [round(float(value), 4) for value in scores["share"].sel(layer=layer)],
            **_slope(slopes.sel(layer=layer), _bands(agreed.sel(layer=layer))),
        }
        for layer in stored["layer"].values.tolist()
    ]
    score = scores["score"].sel(position=thin["position"])
    return rows, xr.Dataset({"score": score, **near, "share": positional, "reliability": agreed})


def _frame(stored: xr.Dataset) -> Frame:
    trained = stored.attrs["trained_length"]
    first, second = (stored["half_mean"].isel(half=half) for half in range(2))
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


def _slope(slopes: xr.Dataset, whole: Mapping[str, float | None]) -> dict[str, Any]:
    """In-window tokens for one token beyond, with its interval; None and the reason where that means nothing."""
    least, cosine = min(value or 0 for value in whole.values()), float(slopes["cosine"])
    reason = None
    if least < RELIABLE:
        reason = f"reliability {least:z.2f} is below {RELIABLE}; read more --texts"
    elif cosine < _SIMILAR:
        reason = f"positions beyond M resemble none inside, their largest cosine is {cosine:z.2f}"
    names = {"slope": "slope", "slope_low": "low", "slope_high": "high"}
    values = {key: None if reason else _number(slopes[name]) for key, name in names.items()}
    return {**values, "slope_reason": reason}


def _thresholds(p: xr.DataArray, noise: xr.DataArray, trained: int) -> dict[str, Any]:
    """How many dims of p are observable and what they predict, beside how many are so by chance and inside M."""
    reference, rule = str(p["method"].values[0]), CrossingRule.scaled(trained)
    crossings, by_chance = (search(x, trained, rule, reference) for x in (p, noise))
    try:
        control = negative_control(p, trained, rule, reference)
        inside: Any = {name: control[name].values.tolist() for name in ("qualified", "matched")}
    except ValueError as error:
        inside = str(error)
    return {
        "searched": crossings.attrs["searched"],
        "observable": int(crossings["qualified"]),
        "by_chance": int(by_chance["qualified"]),
        "inside": inside,
        "observable_by_layer": crossings["observable"].sum("dim").values.tolist(),
        "predictions": [{**asdict(prediction), "said": str(prediction)} for prediction in predict(crossings)],
    }


def _bands(values: xr.DataArray) -> dict[str, float | None]:
    return {str(name): _number(values.sel(band=name)) for name in values["band"].values}


def _number(value: xr.DataArray) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None
