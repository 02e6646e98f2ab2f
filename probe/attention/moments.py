"""Mean and variance of hidden states over texts, streamed one text after another, and the texts that slide.

What tokens say is hundreds of times what their positions say. Texts that each begin `stride` tokens after the one
before put the same tokens at every position: far less noise for as many passes, and a pattern with period `stride` that
`levelled` removes. Moments are a plain Dataset, stored between texts:

- `half_mean` (half, layer, position, dim): the mean over every second text, for an estimate of the noise
- `half_squares_by_dim` (half, layer, band, dim): squared deviations from it, summed over texts and the positions of a
  band, which is `inside` for [1, M) and `beyond` from M on
- `count` (half): texts so far
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from probe.capture.spec import Selection

BANDS = ("inside", "beyond")
_DIMS = {
    "half_mean": ("half", "layer", "position", "dim"),
    "half_squares_by_dim": ("half", "layer", "band", "dim"),
    "count": ("half",),
}


def empty(
    indices: Selection, trained_length: int, dtype: str = "float64", attrs: Mapping[str, Any] | None = None
) -> xr.Dataset:
    """Moments of no text. dtype: of the stored means; sums are float64."""
    sizes = {
        "half": 2,
        "layer": len(indices.layers),
        "position": len(indices.positions),
        "dim": len(indices.dims),
        "band": 2,
    }
    types = {"half_mean": dtype, "half_squares_by_dim": "float64", "count": "int64"}
    values = {name: np.zeros([sizes[dim] for dim in dims], types[name]) for name, dims in _DIMS.items()}
    labels = {"layer": indices.layers, "position": indices.positions, "dim": indices.dims}
    return _labelled(values, labels, {**(attrs or {}), "trained_length": trained_length})


def moments_bytes(indices: Selection, dtype: str = "float64") -> int:
    """Memory of the moments and of the mean of their halves."""
    return 3 * indices.values * np.dtype(dtype).itemsize


def band(positions: np.ndarray, trained_length: int, name: str) -> np.ndarray:
    """Which positions are in a band; the first is in none."""
    return (positions >= trained_length) if name == "beyond" else (positions >= 1) & (positions < trained_length)


def add(moments: xr.Dataset, states: Sequence[np.ndarray]) -> None:
    """Adds a text's `states`, (position, dim) by layer, to one half in turn; in place."""
    half, positions = int(moments["count"].sum()) % 2, moments["position"].values
    for row, values in enumerate(states):
        values, mean = values.astype(np.float64), moments["half_mean"].values[half, row]
        before = values - mean.astype(np.float64)
        mean += before / (int(moments["count"][half]) + 1)
        before *= values - mean
        for at, name in enumerate(BANDS):
            inside = band(positions, moments.attrs["trained_length"], name)
            moments["half_squares_by_dim"].values[half, row, at] += before[inside].sum(0)
    moments["count"].values[half] += 1


def mean(moments: xr.Dataset) -> xr.DataArray:
    """p (layer, position, dim): the mean over all texts."""
    count, parts = moments["count"].values, moments["half_mean"]
    p = parts.isel(half=0).copy(data=np.empty(parts.shape[1:], parts.dtype))
    for layer, (first, second) in enumerate(zip(*parts.values, strict=True)):
        p.values[layer] = first + (count[1] / count.sum()) * (second - first)
    return p.rename(moments.attrs.get("hook")).assign_attrs(long_name="mean over texts", units="activation")


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
        return _labelled({name: file[name] for name in _DIMS}, labels, json.loads(str(file["attrs"])))


def texts_in(path: Path) -> int:
    """Texts that stored moments are of; 0 for a missing file."""
    if not path.exists():
        return 0
    with np.load(path) as file:
        return int(file["count"].sum())


def attrs_of(path: Path) -> dict[str, Any]:
    """The attributes of stored moments; none for a missing file."""
    if not path.exists():
        return {}
    with np.load(path) as file:
        return json.loads(str(file["attrs"]))


def _labelled(
    values: Mapping[str, np.ndarray], labels: Mapping[str, Sequence[Any]], attrs: Mapping[str, Any]
) -> xr.Dataset:
    variables = {name: (_DIMS[name], array) for name, array in values.items()}
    return xr.Dataset(variables, {**{name: list(label) for name, label in labels.items()}, "band": list(BANDS)}, attrs)


def sliding_windows(documents: Sequence[np.ndarray], tokens: int, count: int, stride: int) -> list[np.ndarray]:
    """`count` runs of `tokens` tokens, each half of the text slid over in turn.

    The documents are concatenated. The halves share no token, so neither do the halves of the moments. Raises
    ValueError where the text is too short for them.
    """
    text = np.concatenate(documents)
    half = len(text) // 2
    needed = (-(-count // 2) - 1) * stride + tokens
    if needed > half:
        raise ValueError(
            f"the text has {len(text)} tokens; {count} runs of {tokens} that slide by {stride} over each of its "
            f"halves take {2 * needed}; give a longer text, fewer texts or a smaller stride"
        )
    starts = [(number % 2) * half + number // 2 * stride for number in range(count)]
    return [text[start : start + tokens] for start in starts]


def levelled(moments: xr.Dataset, stride: int) -> xr.Dataset:
    """`moments` of texts that slid by `stride`, without the pattern that repeats: every phase has the same mean.

    Motion within `stride` positions goes too. Takes the mean of each phase over the whole strides after the first.
    Raises ValueError where there are fewer than two, or gaps between positions.
    """
    position = moments["position"].values
    cycle, phase = np.divmod(position, stride)
    cycles, sizes = np.unique(cycle, return_counts=True)
    whole = np.isin(cycle, cycles[(sizes == stride) & (cycles > 0)])
    if whole.sum() < 2 * stride or (np.diff(position) != 1).any():
        raise ValueError(
            f"positions {position[0]}-{position[-1]} do not hold two whole strides of {stride} without a gap after "
            "the first; collect all positions, or slide by less"
        )
    halves = moments["half_mean"].copy()
    for half in halves.values:
        for layer in half:
            by_phase = layer[whole].reshape(-1, stride, layer.shape[-1]).mean(0, dtype=np.float64)
            layer -= (by_phase - by_phase.mean(0))[phase]
    return moments.assign(half_mean=halves)
