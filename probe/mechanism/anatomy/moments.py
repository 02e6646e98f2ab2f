"""Mean and variance of hidden states over texts, streamed: one text after another, no states kept.

What is kept is a plain Dataset, so that it can be stored between texts and continued:

- `half_mean` (half, layer, position, dim): the mean over every second text, so that noise can be judged
- `half_squares` (half, layer, position): squared deviations from it, summed over texts and dims
- `half_squares_by_dim` (half, layer, band, dim): the same, summed over texts and the positions of a band, which is
  `inside` for [1, M) and `beyond` from M on
- `count` (half): texts so far
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from probe.capture.spec import Kept

DTYPES = ("float64", "float32")
BANDS = ("inside", "beyond")
_DIMS = {
    "half_mean": ("half", "layer", "position", "dim"),
    "half_squares": ("half", "layer", "position"),
    "half_squares_by_dim": ("half", "layer", "band", "dim"),
    "count": ("half",),
}


def empty(
    kept: Kept, trained_length: int, dtype: str = "float64", attrs: Mapping[str, Any] | None = None
) -> xr.Dataset:
    """Moments of no text. dtype: of the stored means; sums are made in float64. ValueError for another dtype."""
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r} for means; known: {', '.join(DTYPES)}")
    labels = {"layer": kept.layers, "position": kept.positions, "dim": kept.dims, "band": BANDS}
    sizes = {"half": 2, **{name: len(each) for name, each in labels.items()}}
    kinds = {"half_mean": dtype, "count": "int64"}
    values = {
        name: np.zeros([sizes[each] for each in dims], kinds.get(name, "float64")) for name, dims in _DIMS.items()
    }
    return _labelled(values, labels, {**(attrs or {}), "trained_length": trained_length})


def moments_bytes(kept: Kept, dtype: str = "float64") -> int:
    """Memory of the moments and of the mean that is made of their halves."""
    return 3 * kept.values * np.dtype(dtype).itemsize


def band(positions: np.ndarray, trained_length: int, name: str, skip: int = 1) -> np.ndarray:
    """Which positions are in a band; the first `skip` are in none."""
    return (positions >= trained_length) if name == "beyond" else (positions >= skip) & (positions < trained_length)


def next_half(moments: xr.Dataset) -> int:
    """The half that the next text is part of."""
    return int(moments["count"].sum()) % 2


def add(moments: xr.Dataset, row: int, states: np.ndarray) -> None:
    """Adds one text's `states` (position, dim) in the layer at `row`, in place, to `next_half`; see `added`."""
    half = next_half(moments)
    mean = moments["half_mean"].values[half, row]
    before = states - mean.astype(np.float64)
    mean += before / (int(moments["count"][half]) + 1)
    before *= states - mean
    moments["half_squares"].values[half, row] += before.sum(-1)
    positions = moments["position"].values
    for at, name in enumerate(BANDS):
        inside = band(positions, moments.attrs["trained_length"], name)
        moments["half_squares_by_dim"].values[half, row, at] += before[inside].sum(0)


def added(moments: xr.Dataset) -> None:
    """Counts a text of which every layer has been added."""
    moments["count"].values[next_half(moments)] += 1


def mean(moments: xr.Dataset) -> xr.DataArray:
    """p (layer, position, dim): the mean over all texts."""
    count, parts = _count(moments, 1), moments["half_mean"]
    found = parts.isel(half=0).copy(data=np.empty(parts.shape[1:], parts.dtype))
    for layer, (first, second) in enumerate(zip(*parts.values, strict=True)):
        found.values[layer] = first + (count[1] / count.sum()) * (second - first)
    return found.rename(moments.attrs.get("hook")).assign_attrs(long_name="mean over texts", units="activation")


def variance(moments: xr.Dataset) -> xr.DataArray:
    """(layer, position): the variance over texts (unbiased), mean over dims; ValueError for fewer than 2 texts."""
    count = _count(moments, 2)
    first, second = moments["half_mean"].values
    apart = np.stack([((a - b).astype(np.float64) ** 2).sum(-1) for a, b in zip(first, second, strict=True)])
    squares = moments["half_squares"].sum("half") + apart * (count.prod() / count.sum())
    found = squares / (count.sum() - 1) / moments.sizes["dim"]
    return found.rename("variance").assign_attrs(long_name="variance over texts", units="activation^2")


def save(moments: xr.Dataset, path: Path) -> None:
    """Writes the moments to an .npz file, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    values: dict[str, Any] = {name: moments[name].values for name in (*_DIMS, "layer", "position", "dim")}
    with part.open("wb") as file:
        np.savez(file, attrs=np.array(json.dumps(moments.attrs)), **values)
    part.replace(path)


def load(path: Path) -> xr.Dataset:
    """The moments that `save` wrote, ready to be continued."""
    with np.load(path) as file:
        labels = {name: file[name].tolist() for name in ("layer", "position", "dim")}
        return _labelled(
            {name: file[name] for name in _DIMS}, {**labels, "band": BANDS}, json.loads(str(file["attrs"]))
        )


def _labelled(
    values: Mapping[str, np.ndarray], labels: Mapping[str, Sequence[Any]], attrs: Mapping[str, Any]
) -> xr.Dataset:
    variables = {name: (_DIMS[name], each) for name, each in values.items()}
    return xr.Dataset(variables, {name: list(each) for name, each in labels.items()}, attrs)


def _count(moments: xr.Dataset, least: int) -> np.ndarray:
    count = moments["count"].values
    if count.sum() < least:
        raise ValueError(f"{count.sum()} texts were read; read at least {least}")
    return count
