"""How much of the hidden states is positional, and whether enough texts were read to say so."""

from __future__ import annotations

import numpy as np
import xarray as xr

from probe.mechanism.anatomy.moments import BANDS, band

_RELIABLE = 0.9


def share(moments: xr.Dataset) -> xr.Dataset:
    """How much of the states' variance, over texts and the positions of a band, is positional.

    between: variance of p over the positions, from the product of the two halves' deviations, so that noise, which
    they do not share, adds nothing on average; it may come out below 0. within: variance over texts.
    `share` (layer, band) = between / (between + within), summed over dims: massive activations decide it;
    `share_by_dim` (layer, band, dim) is the same of each dim. Raises ValueError for fewer than 2 texts a half.
    """
    count = moments["count"].values
    if count.min() < 2:
        raise ValueError(f"{count.sum()} texts were read; the share of variance takes at least 4")
    found = []
    for name in _bands(moments):
        inside = band(moments["position"].values, moments.attrs["trained_length"], name)
        halves = moments["half_mean"].isel(position=inside)
        rows = [_between_within(halves.isel(layer=row).values, count) for row in range(halves.sizes["layer"])]
        between, apart = (xr.DataArray(np.stack(each), dims=("layer", "dim")) for each in zip(*rows, strict=True))
        squares = moments["half_squares_by_dim"].sel(band=name).sum("half") + apart
        found.append(xr.Dataset({"between": between, "within": squares / (count.sum() - 1) / inside.sum()}))
    both = xr.concat(found, "band").assign_coords(band=_bands(moments)).transpose("layer", "band", "dim")
    by_dim = both["between"] / (both["between"] + both["within"])
    total = both.sum("dim")
    whole = total["between"] / (total["between"] + total["within"])
    label = {"long_name": "share of variance that is positional", "units": "1"}
    return xr.Dataset({"share": whole.assign_attrs(label), "share_by_dim": by_dim.assign_attrs(label)})


def reliability(moments: xr.Dataset) -> xr.Dataset:
    """Whether enough texts were read: how much the two halves' positional vectors agree.

    `halves` (layer, position): cosine of their m. `whole` (layer, band): what the agreement over a band says of both
    halves together, 2r / (1 + r), 1 without noise, 0 for noise alone. `texts` (layer, band): how many it would take
    for 0.9 if noise falls with their root; infinite where the halves do not agree. Noise of prompts that slide
    (sliding.py) falls faster. u is each half's own inside M, so that a break at M does not pass for agreement inside.
    """
    trained_length, position = moments.attrs["trained_length"], moments["position"].values
    halves = moments["half_mean"]
    bands, within = _bands(moments), band(position, trained_length, "inside")
    cosines, wholes = np.empty(halves.shape[1:3]), np.empty((halves.sizes["layer"], len(bands)))
    for row in range(halves.sizes["layer"]):
        both = halves.isel(layer=row).values.astype(np.float64)
        first, second = both - both[:, within if within.any() else position >= 1].mean(1, keepdims=True)
        product, norms = (first * second).sum(-1), np.stack([(each**2).sum(-1) for each in (first, second)])
        cosines[row] = product / np.maximum(np.sqrt(norms.prod(0)), np.finfo(float).tiny)
        for at, name in enumerate(bands):
            inside = band(position, trained_length, name)
            r = max(0.0, product[inside].sum() / max(np.sqrt(norms[:, inside].sum(1).prod()), np.finfo(float).tiny))
            wholes[row, at] = 2 * r / (1 + r)
    with np.errstate(divide="ignore"):
        texts = int(moments["count"].sum()) * _RELIABLE / (1 - _RELIABLE) * (1 - wholes) / wholes
    return xr.Dataset(
        {
            "halves": (("layer", "position"), cosines, {"long_name": "cosine of the halves' vectors", "units": "1"}),
            "whole": (("layer", "band"), wholes, {"long_name": "reliability", "units": "1"}),
            "texts": (("layer", "band"), texts, {"long_name": f"texts for {_RELIABLE}", "units": "texts"}),
        },
        {"layer": moments["layer"], "position": position, "band": bands},
    )


def _between_within(halves: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By dim: covariance over positions of the two `halves`, and what their distance adds to the squares over texts."""
    first, second = halves.astype(np.float64)
    between = ((first - first.mean(0)) * (second - second.mean(0))).mean(0)
    return between, ((first - second) ** 2).sum(0) * count.prod() / count.sum()


def _bands(moments: xr.Dataset) -> list[str]:
    """The bands with two positions or more."""
    position, trained_length = moments["position"].values, moments.attrs["trained_length"]
    return [name for name in BANDS if band(position, trained_length, name).sum() > 1]
