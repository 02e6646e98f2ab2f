"""Positional vectors (Dong et al. 2024): what is left of hidden states when texts are averaged out.

p(layer, t) is the mean over texts of the state at position t (`moments.mean`); u(layer) its mean over t; m = p - u says
where a token is. `reliability` tells whether enough texts were read for any of it to be more than noise.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from probe.attention.moments import BANDS, band, mean

_CHUNK_BYTES = 2**26  # cosines at a time
_LEAST_BLOCKS = 4
_TINY = np.finfo(float).tiny


def mean_vector(p: xr.DataArray, upto: int | None = None) -> xr.DataArray:
    """u (layer, dim): p's mean over positions in [1, upto), all but the first by default, as in the paper.

    The first token gathers attention and has a state unlike any other. To compare methods, subtract the u of the
    reference from all of them, with upto=M where the reference itself breaks beyond M.
    """
    position = p["position"].values
    return p.isel(position=(position >= 1) & (position < (np.inf if upto is None else upto))).mean("position")


def share(moments: xr.Dataset) -> xr.DataArray:
    """(layer, band): the share of the states' variance, over texts and the positions of a band, that is positional.

    Between positions, the variance of p is taken from the product of the two halves' deviations, so that noise, which
    they do not share, adds nothing on average; it may come out below 0. Sums over dims: massive activations dominate.
    Raises ValueError for fewer than 2 texts a half.
    """
    count = moments["count"].values
    if count.min() < 2:
        raise ValueError(f"{count.sum()} texts were read; the share of variance takes at least 4")
    shares, bands = [], _bands(moments)
    for name in bands:
        inside = band(moments["position"].values, moments.attrs["trained_length"], name)
        squares = moments["half_squares_by_dim"].sel(band=name).sum("half")
        by_layer = []
        for row in range(moments.sizes["layer"]):
            first, second = moments["half_mean"].isel(layer=row, position=inside).values.astype(np.float64)
            between = ((first - first.mean(0)) * (second - second.mean(0))).mean(0).sum()
            apart = ((first - second) ** 2).sum(0) * count.prod() / count.sum()
            within = ((squares[row].values + apart) / (count.sum() - 1) / inside.sum()).sum()
            by_layer.append(between / (between + within))
        shares.append(by_layer)
    labels = {"layer": moments["layer"].values, "band": bands}
    attrs = {"long_name": "share of variance that is positional", "units": "1"}
    return xr.DataArray(np.array(shares).T, labels, ("layer", "band"), "share", attrs)


def reliability(moments: xr.Dataset) -> xr.DataArray:
    """(layer, band): whether enough texts were read, by how much the two halves' positional vectors agree.

    2r / (1 + r), 1 without noise, 0 for noise alone. u is each half's own inside M, so that a break at M does not pass
    for agreement inside.
    """
    trained_length, position = moments.attrs["trained_length"], moments["position"].values
    bands, inside = _bands(moments), band(position, trained_length, "inside")
    values = np.empty((moments.sizes["layer"], len(bands)))
    for row in range(moments.sizes["layer"]):
        both = moments["half_mean"].isel(layer=row).values.astype(np.float64)
        first, second = both - both[:, inside if inside.any() else position >= 1].mean(1, keepdims=True)
        product, norms = (first * second).sum(-1), np.stack([(half**2).sum(-1) for half in (first, second)])
        for at, name in enumerate(bands):
            chosen = band(position, trained_length, name)
            r = max(0.0, product[chosen].sum() / max(np.sqrt(norms[:, chosen].sum(1).prod()), _TINY))
            values[row, at] = 2 * r / (1 + r)
    labels = {"layer": moments["layer"].values, "band": bands}
    return xr.DataArray(values, labels, ("layer", "band"), "reliability", {"long_name": "reliability", "units": "1"})


def _bands(moments: xr.Dataset) -> list[str]:
    """The bands with two positions or more."""
    position, trained_length = moments["position"].values, moments.attrs["trained_length"]
    return [name for name in BANDS if band(position, trained_length, name).sum() > 1]


def nearest(
    m: xr.DataArray,
    trained_length: int,
    *,
    among: xr.DataArray | None = None,
    begin: int | None = None,
    step: int = 1,
) -> xr.Dataset:
    """For each position from `begin` (M) on, the most similar in-window one: `cosine`, `nearest` (layer, position).

    m (layer, position, dim). among: whose in-window vectors to compare with: the other half's, so that noise shared by
    neighbours does not count, or the reference method's about the same `mean_vector`; m's own by default. In-window
    positions are every `step`-th in [1, M).
    """
    begin, other = trained_length if begin is None else begin, m if among is None else among
    queries = m.sel(position=m["position"] >= begin).transpose("layer", "position", "dim")
    position = other["position"].values
    candidates = position[(position >= 1) & (position < trained_length)][::step]
    if not (queries.sizes["position"] and len(candidates)):
        raise ValueError(f"no positions from {begin} on, or none in [1, {trained_length}), were collected")
    keys = other.sel(position=candidates, layer=queries["layer"].values).transpose("layer", "position", "dim")
    rows = [_nearest(_unit(a), _unit(b)) for a, b in zip(queries.values, keys.values, strict=True)]
    cosine, index = (np.stack(column) for column in zip(*rows, strict=True))
    dims = ("layer", "position")
    return xr.Dataset(
        {
            "cosine": (dims, cosine, {"long_name": "largest cosine to an in-window one", "units": "1"}),
            "nearest": (dims, candidates[index], {"long_name": "most similar", "units": "position"}),
        },
        {dim: queries[dim].values for dim in dims},
        {"trained_length": trained_length},
    )


def _unit(values: np.ndarray) -> np.ndarray:
    """Vectors (position, dim) of length 1, or 0; float32."""
    norm = np.sqrt((values.astype(np.float64) ** 2).sum(-1, keepdims=True))
    return (values / np.maximum(norm, np.finfo(np.float32).tiny)).astype(np.float32)


def _nearest(queries: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest cosine of each query to any of `keys`, and to which; in chunks."""
    size = max(1, _CHUNK_BYTES // (4 * len(keys)))
    best, index = np.empty(len(queries), np.float32), np.empty(len(queries), int)
    for start in range(0, len(queries), size):
        cosines = queries[start : start + size] @ keys.T
        index[start : start + size] = cosines.argmax(1)
        best[start : start + size] = cosines.max(1)
    return best, index


def interpolation(near: xr.Dataset, *, blocks: int = 32, draws: int = 500, seed: int = 0) -> xr.Dataset:
    """Slope of t' on t, by layer, where `near` (of `nearest`) says that position t is most similar to t'.

    1: positions go on as inside; 1/s: a method slows them s times; 0: they stand still, or `cosine` (the median of the
    largest ones) is low and t' means nothing. Robust: medians of `blocks` runs of positions, then the median slope
    over pairs of them (Theil-Sen); `low`, `high`: 95% interval over resampled blocks. Raises ValueError for fewer
    positions than four.
    """
    position = near["position"].values.astype(float)
    count = min(blocks, len(position))
    if count < _LEAST_BLOCKS:
        raise ValueError(f"{len(position)} positions are too few for a slope; give at least {_LEAST_BLOCKS}")
    parts = np.array_split(np.arange(len(position)), count)
    time = np.array([position[part].mean() for part in parts])
    rng = np.random.default_rng(seed)
    resampled = [np.sort(rng.integers(count, size=count)) for _ in range(draws)]
    rows = []
    for values in near["nearest"].transpose("layer", "position").values:
        place = np.array([np.median(values[part]) for part in parts])
        slopes = [_slope(time[draw], place[draw]) for draw in resampled]
        rows.append((_slope(time, place), *np.nanquantile(slopes, [0.025, 0.975])))
    columns = zip(("slope", "low", "high"), np.array(rows).T, strict=True)
    slopes = xr.Dataset({name: ("layer", column) for name, column in columns}, {"layer": near["layer"].values})
    slopes["cosine"] = near["cosine"].median("position")
    slopes["slope"].attrs.update(long_name="in-window tokens for one token beyond", units="1")
    return slopes


def _slope(time: np.ndarray, place: np.ndarray) -> float:
    """The median slope over pairs; NaN where all are at one time."""
    first, second = np.triu_indices(len(time), 1)
    apart = time[second] - time[first]
    used = apart > 0
    return float(np.median((place[second] - place[first])[used] / apart[used])) if used.any() else np.nan


def components(m: xr.DataArray, trained_length: int, k: int = 2) -> xr.Dataset:
    """First `k` principal components over t, fitted in [1, M): `score` (layer, component, position) at every t.

    `share` (layer, component) of the in-window variance. Each score rises with t inside the window.
    """
    position = m["position"].values
    inside = (position >= 1) & (position < trained_length)
    if inside.sum() <= k:
        raise ValueError(f"{inside.sum()} positions in [1, {trained_length}) were collected; {k} components take more")
    scores, shares = [], []
    for row in range(m.sizes["layer"]):
        values = m.isel(layer=row).transpose("position", "dim").values.astype(np.float64)
        centred = values - values[inside].mean(0)
        powers, directions = np.linalg.eigh(centred[inside].T @ centred[inside])
        axes = directions[:, ::-1][:, :k]
        rises = (position[inside] - position[inside].mean()) @ (centred[inside] @ axes)
        scores.append((centred @ (axes * np.where(rises < 0, -1, 1))).T)
        shares.append(powers[::-1][:k] / max(powers.sum(), _TINY))
    return xr.Dataset(
        {
            "score": (("layer", "component", "position"), np.stack(scores), {"units": "activation"}),
            "share": (("layer", "component"), np.stack(shares), {"units": "1"}),
        },
        {"layer": m["layer"].values, "position": position, "component": range(1, k + 1)},
    )


def packed(by_method: Mapping[str, xr.Dataset], *, chance: bool = False) -> xr.DataArray:
    """p as `search`, `negative_control` and `find_drift` take it: (method, layer, position, dim), float32.

    chance: their negative control, with the noise of p but nothing that depends on position: u, and half the halves'
    difference (with halves of unequal size, scaled so that its variance is that of p).
    """
    arrays = [(_noise(moments) if chance else mean(moments)).astype(np.float32) for moments in by_method.values()]
    both = xr.concat(arrays, "method").assign_coords(method=list(by_method))
    return both.assign_attrs(long_name=f"{both.name}, mean over texts", units="activation")


def _noise(moments: xr.Dataset) -> xr.DataArray:
    first, second = moments["count"].values.astype(float)
    if not first * second:
        raise ValueError(f"{int(first + second)} texts were read; noise takes one in each half")
    p, halves = mean(moments), moments["half_mean"]
    scale = np.sqrt(first * second) / (first + second)
    return (mean_vector(p) + scale * (halves.isel(half=0) - halves.isel(half=1))).rename(p.name).transpose(*p.dims)
