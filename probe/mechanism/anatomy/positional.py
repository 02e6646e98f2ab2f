"""Positional vectors (Dong et al. 2024): what is left of hidden states when texts are averaged out.

p(layer, t) is the mean over texts of the state at position t (`moments.mean`); u(layer) its mean over t; m = p - u says
where a token is. `evidence.reliability` tells whether enough texts were read for any of it to be more than noise.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from probe.mechanism.anatomy.moments import mean

_CHUNK_BYTES = 2**26  # cosines at a time


def mean_vector(p: xr.DataArray, skip: int = 1, upto: int | None = None) -> xr.DataArray:
    """u (layer, dim): p's mean over positions in [skip, upto), all but the first by default, as in the paper.

    The first token gathers attention and has a state unlike any other. Methods are compared in one frame: take the u
    of the reference from all of them, with upto=M where the reference itself breaks beyond M.
    """
    position = p["position"].values
    return p.isel(position=(position >= skip) & (position < (np.inf if upto is None else upto))).mean("position")


def nearest(
    m: xr.DataArray,
    trained_length: int,
    *,
    among: xr.DataArray | None = None,
    begin: int | None = None,
    skip: int = 1,
    step: int = 1,
) -> xr.Dataset:
    """For each position from `begin` (M) on, the most alike in-window one: `cosine`, `nearest` (layer, position).

    m (layer, position, dim). among: whose in-window vectors are compared with: another half's, so that noise which
    neighbours share does not count, or the reference method's in the same frame (`mean_vector`), which a method that
    slows all positions takes; m's own by default. In-window positions are those in [skip, M), every `step`-th.
    """
    begin, other = trained_length if begin is None else begin, m if among is None else among
    own = m.sel(position=m["position"] >= begin).transpose("layer", "position", "dim")
    place = other["position"].values
    candidates = place[(place >= skip) & (place < trained_length)][::step]
    if not (own.sizes["position"] and len(candidates)):
        raise ValueError(f"no positions from {begin} on, or none in [{skip}, {trained_length}), were collected")
    inner = other.sel(position=candidates, layer=own["layer"].values).transpose("layer", "position", "dim")
    rows = [
        _nearest(_unit(own.isel(layer=row).values), _unit(inner.isel(layer=row).values))
        for row in range(own.sizes["layer"])
    ]
    cosine, index = (np.stack(each) for each in zip(*rows, strict=True))
    return xr.Dataset(
        {
            "cosine": (
                ("layer", "position"),
                cosine,
                {"long_name": "largest cosine to an in-window one", "units": "1"},
            ),
            "nearest": (("layer", "position"), candidates[index], {"long_name": "most alike", "units": "position"}),
        },
        {"layer": own["layer"].values, "position": own["position"].values},
        {"trained_length": trained_length},
    )


def components(m: xr.DataArray, trained_length: int, k: int = 2, skip: int = 1) -> xr.Dataset:
    """First `k` principal components over t, fitted in [skip, M): `score` (layer, component, position) at every t.

    `share` (layer, component) of the in-window variance; `axis` (layer, component, dim). Each axis points to where
    the score rises with t inside the window.
    """
    position = m["position"].values
    inside = (position >= skip) & (position < trained_length)
    if inside.sum() <= k:
        raise ValueError(
            f"{inside.sum()} positions in [{skip}, {trained_length}) were collected; {k} components take more"
        )
    scores, shares, axes = [], [], []
    for row in range(m.sizes["layer"]):
        values = m.isel(layer=row).transpose("position", "dim").values.astype(np.float64)
        centred = values - values[inside].mean(0)
        powers, directions = np.linalg.eigh(centred[inside].T @ centred[inside])
        axis = directions[:, ::-1][:, :k]
        rises = (position[inside] - position[inside].mean()) @ (centred[inside] @ axis)
        axis = axis * np.where(rises < 0, -1, 1)
        scores.append((centred @ axis).T)
        shares.append(powers[::-1][:k] / max(powers.sum(), np.finfo(float).tiny))
        axes.append(axis.T)
    return xr.Dataset(
        {
            "score": (("layer", "component", "position"), np.stack(scores), {"units": "activation"}),
            "share": (("layer", "component"), np.stack(shares), {"units": "1"}),
            "axis": (("layer", "component", "dim"), np.stack(axes)),
        },
        {"layer": m["layer"].values, "position": position, "dim": m["dim"].values, "component": range(1, k + 1)},
        {"trained_length": trained_length},
    )


def packed(by_method: Mapping[str, xr.Dataset], *, chance: bool = False) -> xr.DataArray:
    """p as `search`, `negative_control` and `find_drift` take it: (method, layer, position, dim), float32.

    chance: their negative control, where nothing depends on position but the noise of p is as it is: u, and half the
    halves' difference (with halves of unequal size, scaled so that its variance is that of p). What is found there as
    often is found by chance.
    """
    each = [(_noise(moments) if chance else mean(moments)).astype(np.float32) for moments in by_method.values()]
    found = xr.concat(each, "method").assign_coords(method=list(by_method))
    return found.assign_attrs(long_name=f"{found.name}, mean over texts", units="activation")


def _noise(moments: xr.Dataset) -> xr.DataArray:
    first, second = moments["count"].values.astype(float)
    if not first * second:
        raise ValueError(f"{int(first + second)} texts were read; noise takes one in each half")
    p, halves = mean(moments), moments["half_mean"]
    scale = np.sqrt(first * second) / (first + second)
    return (mean_vector(p) + scale * (halves.isel(half=0) - halves.isel(half=1))).rename(p.name).transpose(*p.dims)


def _unit(values: np.ndarray) -> np.ndarray:
    """Vectors (position, dim) of length 1, or 0; float32."""
    norm = np.sqrt((values.astype(np.float64) ** 2).sum(-1, keepdims=True))
    return (values / np.maximum(norm, np.finfo(np.float32).tiny)).astype(np.float32)


def _nearest(own: np.ndarray, inner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest cosine of each of `own` to any of `inner`, and to which; in pieces."""
    size = max(1, _CHUNK_BYTES // (4 * len(inner)))
    best, index = np.empty(len(own), np.float32), np.empty(len(own), int)
    for start in range(0, len(own), size):
        cosines = own[start : start + size] @ inner.T
        index[start : start + size] = cosines.argmax(1)
        best[start : start + size] = cosines.max(1)
    return best, index
