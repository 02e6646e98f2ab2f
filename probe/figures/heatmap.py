"""The paper's probe panels: layers x dims x position regions of a method's hidden states; red > 0, blue < 0."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from typing import BinaryIO

import numpy as np
import xarray as xr

from probe.figures.framed import Axis, framed
from probe.figures.raster import GREY_INDEX, colour_index, save_png
from probe.figures.reduce import farthest, upper_quantile
from probe.store.select import captured_ranges, check_labels

CELLS = 300_000
SCREEN_CELLS = 90_000
"""Drawn at once on a page: about one in four pixels of a wide one."""
SHOWN = 5
"""Methods that are shown at first."""
LIMIT = 0.99
"""Quantile of a layer's absolute values at which its colour scale ends."""
OPENING = "opening"
"""What `opening` is kept by."""
_SEPARATOR = 2  # pixels between layers and between regions


def default_regions(position: np.ndarray, trained_length: int) -> list[tuple[int, int]]:
    """Half-open regions: the captured runs if there are several, else [M/2, 3 M/2) and the last M positions."""
    runs = [(first, last + 1) for first, last in captured_ranges(position)]
    if len(runs) > 1:
        return runs
    start, stop = runs[0]
    around = (max(start, trained_length // 2), min(stop, trained_length + trained_length // 2))
    return [around, (max(around[1], stop - trained_length), stop)] if stop > around[1] else [around]


def regions(hidden: xr.DataArray, bounds: Sequence[tuple[int, int]]) -> xr.DataArray:
    """The captured positions in the half-open `bounds`, side by side, with their number as coordinate `region`.

    Raises ValueError for bounds in which no position was captured.
    """
    position, parts = hidden["position"].values, []
    for start, stop in bounds:
        chosen = (position >= start) & (position < stop)
        if not chosen.any():
            captured = ", ".join(f"{first}-{last}" for first, last in captured_ranges(position))
            raise ValueError(f"region {start}-{stop - 1} holds no captured position; captured: {captured}")
        parts.append(chosen)
    index = np.concatenate([np.flatnonzero(chosen) for chosen in parts])
    number = np.repeat(np.arange(len(parts)), [int(chosen.sum()) for chosen in parts])
    whole = slice(index[0], index[-1] + 1) if (np.diff(index) == 1).all() else index  # a slice is read in place
    return hidden.isel(position=whole).assign_coords(region=("position", number))


def side_by_side(
    hidden: xr.DataArray, bounds: Sequence[tuple[int, int]], methods: Sequence[str], minus: str | None = None
) -> xr.DataArray:
    """The `regions` of these methods of `hidden`, and of `minus` after them, for `less`; read when used.

    Raises ValueError for a method that was not captured, and where `regions` does.
    """
    check_labels(hidden, "method", [*methods, *([] if minus is None else [minus])])
    ordered = [*(method for method in methods if method != minus), *([] if minus is None else [minus])]
    return regions(hidden.sel({"method": ordered}), bounds)


def less(panel: xr.DataArray, minus: str | None) -> xr.DataArray:
    """The panel of `side_by_side` in memory; its `difference` to `minus`, unless that is None."""
    return panel.load() if minus is None else difference(panel.load(), minus)


def difference(panel: xr.DataArray, method: str) -> xr.DataArray:
    """`panel` (method, ...) less its values under `method`, for the other methods; name and labels say so."""
    others = _less(panel, method)
    return others.copy(data=np.subtract(others.values, panel.sel({"method": [method]}).values, dtype=_wide(panel)))


def _wide(panel: xr.DataArray) -> np.dtype:
    """What holds a difference: one of two halves can be beyond them."""
    return np.result_type(panel.dtype, np.float32)


def _less(panel: xr.DataArray, method: str) -> xr.DataArray:
    """The other methods of `panel`, labelled as their difference from `method`."""
    others = panel.sel({"method": panel["method"] != method})
    if not others.size:
        raise ValueError(f"{method!r} is the only method; a difference takes a second one")
    name = f"{panel.attrs.get('long_name', panel.name)} minus {method}"
    return others.assign_coords(minus=method).assign_attrs(long_name=name)


def pool(panel: xr.DataArray, cells: int = CELLS) -> xr.DataArray:
    """`panel`, from `regions`, with blocks of dims and positions merged until at most `cells` values are left."""
    return merged(panel, *_blocks(panel, cells))


def merged(panel: xr.DataArray, dim_block: int, position_block: int) -> xr.DataArray:
    """`panel`, from `regions` or `pool`, with blocks of so many dims and positions merged.

    A block's value is the one of its values that is farthest from 0, with its sign, so that spikes survive. Blocks do
    not reach across regions. `dim` and `position` are the first of each block, `dim_last` and `position_last` the last.
    """
    starts = _starts(panel, dim_block, position_block)
    leading = [name for name in panel.dims if name not in ("dim", "position")]
    values = np.empty((*(panel.sizes[name] for name in leading), *map(len, starts)), panel.dtype)
    for index in np.ndindex(values.shape[:-2]):
        values[index] = farthest(_read(panel, dict(zip(leading, index, strict=True))), starts)
    return _labelled(panel, values, starts)


def survey(
    panel: xr.DataArray,
    groups: Sequence[Sequence[str]],
    cells: int = CELLS,
    quantile: float = LIMIT,
    minus: str | None = None,
) -> tuple[xr.DataArray, ...]:
    """`pool` of each of `groups`, methods of `panel` (method, layer, dim, position); last the `layer_limits` of all.

    minus: a method of `panel`, and of no group, of which the others' `difference` is taken; it is in no limits.
    Every layer of every method is read once, and no more than one layer is in memory.
    """
    base = None if minus is None else panel.sel({"method": minus})
    panel = panel if minus is None else _less(panel, minus)
    methods = panel["method"].values.tolist()
    shown = [panel.sel({"method": list(group)}) for group in groups]
    starts = [_starts(each, *_blocks(each, cells)) for each in shown]
    layers, dims, positions = (panel.sizes[name] for name in ("layer", "dim", "position"))
    dtype = panel.dtype if base is None else _wide(panel)
    pooled = [np.empty((len(group), layers, *map(len, at)), dtype) for group, at in zip(groups, starts, strict=True)]
    magnitudes, limits = np.empty((len(methods), positions, dims), dtype), []
    for layer in range(layers):
        taken = None if base is None else _read(base, {"layer": layer})
        for row, method in enumerate(methods):
            values = _read(panel, {"method": row, "layer": layer})
            values = values if taken is None else np.subtract(values, taken, dtype=dtype)
            np.abs(values.T, out=magnitudes[row])
            for group, into, at in zip(groups, pooled, starts, strict=True):
                if method in group:
                    into[list(group).index(method), layer] = farthest(values, at)
        limits.append(upper_quantile(magnitudes, quantile))
    each = [_labelled(*parts) for parts in zip(shown, pooled, starts, strict=True)]
    return *each, _limits(panel, limits)


def opening_panel(hidden: xr.DataArray, trained_length: int) -> xr.DataArray:
    """What a reader sees first: the first methods of `hidden`, of one prompt, at the default regions; not in memory."""
    bounds = default_regions(hidden["position"].values, trained_length)
    return regions(hidden.isel({"method": slice(SHOWN)}), bounds)


def opening(hidden: xr.DataArray, trained_length: int) -> xr.Dataset:
    """`opening_panel`, `pooled`, and its `limits`."""
    panel = opening_panel(hidden, trained_length)
    pooled, limits = survey(panel, [panel["method"].values.tolist()], SCREEN_CELLS)
    return xr.Dataset({"pooled": pooled, "limits": limits})


def layer_limits(panel: xr.DataArray, quantile: float = LIMIT) -> xr.DataArray:
    """The end (+-limit) of each layer's colour scale: a quantile of its absolute values, so robust to spikes.

    Layers differ in size by orders of magnitude; methods and regions share one scale, so that they compare.
    """
    layers = (panel.isel(layer=row).values for row in range(panel.sizes["layer"]))
    return _limits(panel, [upper_quantile(np.abs(values), quantile) for values in layers])


def write_png(panel: xr.DataArray, file: str | os.PathLike[str] | BinaryIO, limits: xr.DataArray) -> None:
    """Writes `panel` (layer, dim, position), from `regions`, one pixel a cell, coloured from -limit to limit by layer.

    Layers are stacked from the top, each with its first dim at the top; regions stand side by side; thin grey lines
    part them. Axes stand about the cells (see `probe.figures.framed`).
    """
    breaks = np.flatnonzero(np.diff(panel["region"].values)) + 1
    dims, width = panel.sizes["dim"], panel.sizes["position"] + _SEPARATOR * len(breaks)
    pixels = np.full((len(limits) * (dims + _SEPARATOR) - _SEPARATOR, width), GREY_INDEX, np.uint8)
    for row, limit in enumerate(limits.values):
        place, left = pixels[row * (dims + _SEPARATOR) :][:dims], 0
        for piece in np.split(colour_index(_read(panel, {"layer": row}), limit), breaks, axis=1):
            place[:, left : left + piece.shape[1]] = piece
            left += piece.shape[1] + _SEPARATOR
    rows = [
        Axis(row * (dims + _SEPARATOR), panel["dim"].values, f"layer {layer} (±{limit:.2g})")
        for row, (layer, limit) in enumerate(zip(panel["layer"].values, limits.values, strict=True))
    ]
    starts = [0, *breaks]
    columns = [
        Axis(start + number * _SEPARATOR, labels, "position")
        for number, (start, labels) in enumerate(zip(starts, np.split(panel["position"].values, breaks), strict=True))
    ]
    about = describe(panel)
    save_png(framed(pixels, rows, columns, f"{about}; red > 0, blue < 0"), file, about)


def describe(panel: xr.DataArray) -> str:
    """What a panel shows, in one line: hook, method, prompt, layers, dims, position regions."""
    labels = [str(panel[name].item()) for name in ("method", "prompt") if name in panel.coords and not panel[name].ndim]
    name = str(panel.attrs.get("long_name", panel.name))
    spans = [f"{name}s {panel[name].values[0]}-{_last(panel, name)[-1]}" for name in ("layer", "dim")]
    return ", ".join([name, *labels, *spans, "positions " + " and ".join(region_names(panel))])


def region_names(panel: xr.DataArray) -> list[str]:
    """The first and last position of each region, as text."""
    region, last = panel["region"].values, _last(panel, "position")
    return [
        f"{panel['position'].values[region == number][0]}-{last[region == number][-1]}" for number in np.unique(region)
    ]


def block_size(panel: xr.DataArray, name: str) -> int:
    """How many dims or positions a value of a pooled panel stands for; the last of a region may stand for fewer."""
    return int(np.median(_last(panel, name) - panel[name].values)) + 1  # a block across a gap looks larger


def is_regular(panel: xr.DataArray) -> bool:
    """Whether the dims are evenly spaced, so that rows of one height stand where their labels do."""
    return len(np.unique(np.diff(panel["dim"].values))) < 2


def _last(panel: xr.DataArray, name: str) -> np.ndarray:
    """The last label of each cell along `name`, pooled or not."""
    return panel[f"{name}_last" if f"{name}_last" in panel.coords else name].values


def _limits(panel: xr.DataArray, limits: Sequence[np.floating]) -> xr.DataArray:
    return xr.DataArray(np.where(np.array(limits) > 0, limits, 1.0), dims="layer", coords={"layer": panel["layer"]})


def _starts(panel: xr.DataArray, dim_block: int, position_block: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the blocks of dims and of positions begin; those of positions do not reach across regions."""
    counts = np.unique(panel["region"].values, return_counts=True)[1]
    offsets = np.cumsum(counts) - counts
    positions = [start + np.arange(0, count, position_block) for start, count in zip(offsets, counts, strict=True)]
    return np.arange(0, panel.sizes["dim"], dim_block), np.concatenate(positions)


def _labelled(panel: xr.DataArray, values: np.ndarray, starts: tuple[np.ndarray, np.ndarray]) -> xr.DataArray:
    """`values`, merged from `panel` (..., dim, position), with the labels of the blocks that begin at `starts`."""
    dims, positions = starts
    dim_ends = np.append(dims[1:], panel.sizes["dim"]) - 1
    ends = np.append(positions[1:], panel.sizes["position"]) - 1
    coords = panel.coords.to_dataset().isel(dim=dims, position=positions).coords
    names = [name for name in panel.dims if name not in ("dim", "position")]
    pooled = xr.DataArray(values, coords, (*names, "dim", "position"), name=panel.name, attrs=panel.attrs)
    return pooled.assign_coords(
        dim_last=("dim", _last(panel, "dim")[dim_ends]), position_last=("position", _last(panel, "position")[ends])
    )


def _read(panel: xr.DataArray, index: Mapping[Hashable, int]) -> np.ndarray:
    """One (dim, position) of a panel that is read from disk when used, and therefore transposed afterwards only."""
    return panel.isel(index).load().transpose("dim", "position").values


def _blocks(panel: xr.DataArray, cells: int) -> tuple[int, int]:
    """Block sizes (dims, positions): the axis with more cells left is merged further until `cells` hold all."""
    counts = np.unique(panel["region"].values, return_counts=True)[1]
    dims, others = panel.sizes["dim"], panel.size // (panel.sizes["dim"] * panel.sizes["position"])
    dim_block = position_block = 1
    while True:
        rows, columns = -(-dims // dim_block), int((-(-counts // position_block)).sum())
        if others * rows * columns <= cells or rows * columns == len(counts):
            return dim_block, position_block
        if rows > columns or columns == len(counts):
            dim_block += 1
        else:
            position_block += 1
