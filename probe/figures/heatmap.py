"""The paper's probe panels: hidden states by layer, dim and position region, pooled to what is drawn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from mesa.errors import Refused
from probe.figures.figure_data import Heatmap, Heatmaps, escaped, spaced_ticks, token_texts, value_name, value_title
from probe.store.reader import captured_ranges, check_labels

CELLS = 300_000
"""Values of a figure."""
SCREEN_CELLS = 90_000
"""Values of a figure on a page: about one in four pixels of a wide one."""
FIRST_METHODS = 5
"""Methods displayed at first."""
LIMIT = 0.99
"""Quantile of a layer's absolute values at which its colour scale ends."""
MAX_SIDE = 4096
"""Rows and columns of one heatmap, more than a screen has pixels: plotly draws nothing where there are 65,536."""
_SAMPLED = 100_000  # values
_BLOCK = "block"  # attribute: dims and positions that a value stands for, at most
_ROWS = "rows"  # attribute: what `dim` stands for, where that is another axis


def with_dims(hidden: xr.DataArray) -> xr.DataArray:
    """Values whose one axis in addition to position is another than `dim`, such as `head`, under that name.

    Raises Refused for values with several such axes.
    """
    rows = [str(name) for name in hidden.dims if name not in ("method", "prompt", "layer", "position")]
    if len(rows) != 1:
        raise Refused(f"{hidden.name} is by {', '.join(rows)} and position; a heatmap takes one axis besides position")
    return hidden if rows == ["dim"] else hidden.rename({rows[0]: "dim"}).assign_attrs({_ROWS: rows[0]})


def row_name(panel: xr.DataArray) -> str:
    """What `dim` of a panel stands for."""
    return panel.attrs.get(_ROWS, "dim")


def default_regions(position: np.ndarray, trained_length: int) -> list[tuple[int, int]]:
    """The positions that a heatmap shows by default.

    Args:
        position: The captured positions, rising.
        trained_length: M, tokens.

    Returns:
        Half-open (start, stop): the captured runs if there are several, else [M/2, 3 M/2) and the last M positions, of
        both what was captured.

    Examples:
        >>> probe.default_regions(np.arange(2048), 256)
        [(128, 384), (1792, 2048)]
    """
    runs = [(first, last + 1) for first, last in captured_ranges(position)]
    if len(runs) > 1:
        return runs
    start, stop = runs[0]
    around = (max(start, trained_length // 2), min(stop, trained_length + trained_length // 2))
    last = (max(start, around[1], stop - trained_length), stop)
    return [(begin, end) for begin, end in (around, last) if begin < end] or [(start, stop)]


def regions(hidden: xr.DataArray, bounds: Sequence[tuple[int, int]]) -> xr.DataArray:
    """Positions within bounds, side by side: what a heatmap shows.

    Args:
        hidden: Hidden states with dim `position`.
        bounds: Half-open (start, stop), in tokens, that do not overlap.

    Returns:
        The captured positions in the bounds, with a coordinate `region`: a number for each of the bounds, or for each
        captured run in them where positions are missing.

    Raises:
        Refused: In one of the bounds no position was captured, it ends behind the last one, or some overlap.

    Examples:
        >>> hidden = probe.hook_values(probe.open_run("runs/example"))
        >>> probe.regions(hidden, [(240, 260), (500, 512)]).sizes["position"]
        32
    """
    position = hidden["position"].values
    parts = [np.flatnonzero((position >= start) & (position < stop)) for start, stop in bounds]
    for (start, stop), part in zip(bounds, parts, strict=True):
        captured = ", ".join(f"{first}-{last}" for first, last in captured_ranges(position))
        if not part.size:
            raise Refused(f"region {start}-{stop - 1} holds no captured position; captured: {captured}")
        if stop > position[-1] + 1:
            raise Refused(f"region {start}-{stop - 1} ends behind the last captured position; captured: {captured}")
    index = np.concatenate(parts)
    if len(np.unique(index)) < len(index):
        raise Refused(f"regions {', '.join(f'{start}-{stop - 1}' for start, stop in bounds)} overlap; join them")
    parts = [run for part in parts for run in np.split(part, np.flatnonzero(np.diff(position[part]) > 1) + 1)]
    number = np.repeat(np.arange(len(parts)), [part.size for part in parts])
    at = slice(index[0], index[-1] + 1) if (np.diff(index) == 1).all() else index  # a slice is read in place
    return hidden.isel(position=at).assign_coords(region=("position", number))


def side_by_side(
    hidden: xr.DataArray, bounds: Sequence[tuple[int, int]], methods: Sequence[str], minus: str | None = None
) -> xr.DataArray:
    """The `regions` of these methods of `hidden`, and of `minus` after them, for `difference`; read when used.

    Raises Refused for a method that was not captured, and where `regions` does.
    """
    last = [] if minus is None else [minus]
    check_labels(hidden, "method", [*methods, *last])
    return regions(hidden.sel({"method": [*(method for method in methods if method != minus), *last]}), bounds)


def difference(panel: xr.DataArray, method: str | None) -> xr.DataArray:
    """`panel` (method, ...) less its values under `method`, for the other methods, in memory; name and labels say so.

    For None it is the panel itself.
    """
    return lazy_difference(panel, method).load()


def lazy_difference(panel: xr.DataArray, method: str | None) -> xr.DataArray:
    """`difference`, read when used."""
    if method is None:
        return panel
    others = panel.sel({"method": panel["method"] != method})
    if not others.size:
        raise Refused(f"{method!r} is the only method; a difference takes a second one")
    name = f"{panel.attrs.get('long_name', panel.name)} minus {method}"
    others = others.assign_coords(minus=method).assign_attrs(long_name=name)
    less = _Difference(others, panel.sel({"method": [method]}))
    return others.copy(data=indexing.LazilyIndexedArray(less))


class _Difference(BackendArray):
    """Values less those of one method."""

    def __init__(self, others: xr.DataArray, base: xr.DataArray) -> None:
        self.others, self.base, self.shape = others.variable, base.variable, others.shape
        self.dtype = np.result_type(others.dtype, np.float32)  # a difference of two halves can overflow a half

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple) -> np.ndarray:
        index = dict(zip(self.others.dims, key, strict=True))
        one = 0 if isinstance(index["method"], int | np.integer) else slice(None)
        base = self.base.isel({**index, "method": one})
        return np.subtract(self.others.isel(index).values, base.values, dtype=self.dtype)


def pool(panel: xr.DataArray, cells: int = CELLS) -> xr.DataArray:
    """`panel`, from `regions`, with blocks of dims and positions merged until at most `cells` values are left."""
    return merged(panel, *_blocks(panel, cells))


def merged(panel: xr.DataArray, dim_block: int, position_block: int) -> xr.DataArray:
    """`panel`, from `regions` or `pool`, with blocks of n dims and n positions merged.

    A block's value is the one of its values that is farthest from 0, with its sign, so that spikes survive. Blocks do
    not reach across regions. `dim` and `position` are the first of each block, `dim_last` and `position_last` the last.
    """
    starts = _starts(panel, dim_block, position_block)
    leading = [name for name in panel.dims if name not in ("dim", "position")]
    values = np.empty((*(panel.sizes[name] for name in leading), *map(len, starts)), panel.dtype)
    for index in np.ndindex(values.shape[:-2]):
        one = panel.isel(dict(zip(leading, index, strict=True))).load()  # a panel on disk is transposed once it is read
        values[index] = farthest(one.transpose("dim", "position").values, starts)
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
    blocks = [_blocks(panel.sel({"method": list(group)}), cells) for group in groups]
    layers: list[Any] = []
    for row in range(panel.sizes["layer"]):
        values = difference(panel.isel(layer=[row]).load(), minus)
        parts = (values.sel({"method": list(group)}) for group in groups)
        pooled = (merged(part, *block) for part, block in zip(parts, blocks, strict=True))
        layers.append((*pooled, layer_limits(values, quantile)))
    alike: Any = {"coords": "minimal", "compat": "override", "join": "override", "combine_attrs": "override"}
    joined: Any = (xr.concat(parts, "layer", **alike) for parts in zip(*layers, strict=True))
    return tuple(joined)


def layer_limits(panel: xr.DataArray, quantile: float = LIMIT) -> xr.DataArray:
    """The end (+-limit) of each layer's colour scale: a quantile of its absolute values, so robust to spikes.

    Layers differ in size by orders of magnitude; methods and regions share one scale, so that they compare.
    """
    layers = (panel.isel(layer=row).values for row in range(panel.sizes["layer"]))
    ends = np.array([upper_quantile(np.abs(values), quantile) for values in layers])
    return xr.DataArray(np.where(ends > 0, ends, 1.0), dims="layer", coords={"layer": panel["layer"]})


def heatmap_grid(panel: xr.DataArray, trained_length: int, limits: xr.DataArray | None = None) -> Heatmaps:
    """`panel` ([method,] layer, dim, position), from `regions` or `pool`: one row a layer, methods side by side.

    Default `limits` of the colour scales: the panel's `layer_limits`.
    """
    panel = _narrow(panel.transpose(..., "layer", "dim", "position"))
    methods = [panel.sel({"method": m}) for m in panel["method"].values] if "method" in panel.dims else [panel]
    limits = layer_limits(panel) if limits is None else limits
    prompt = f", prompt {panel['prompt'].item()}" if "prompt" in panel.coords else ""
    cells = tuple(
        tuple(
            _cell(
                one.isel(layer=row, position=one["region"].values == number), limit, trained_length, row + number == 0
            )
            for one in methods
            for number in np.unique(panel["region"].values)
        )
        for row, limit in enumerate(limits.values.tolist())
    )
    pooled = f"; a cell is {pooling(panel)}" if pooling(panel) else ""
    return Heatmaps(
        f"{value_name(panel)} by {row_name(panel)} and position{prompt} (dashed: M = {trained_length}){pooled}",
        value_title(panel),
        "RdBu_r",
        dict(zip((-cells[0][0].high, 0, cells[0][0].high), ("-limit", "0", "limit"), strict=True)),
        cells,
        width=max(0.8, 0.1 * max(map(len, region_names(panel)))) * len(cells[0]),  # names do not touch
        height=140,
        columns=(1.0,) * len(cells[0]),
        seen=_seen(panel),
    )


def _narrow(panel: xr.DataArray) -> xr.DataArray:
    """`panel`, merged further where a heatmap of it would have more than `MAX_SIDE` rows or columns."""
    widest = np.unique(panel["region"].values, return_counts=True)[1].max()
    dim_block, position_block = -(-panel.sizes["dim"] // MAX_SIDE), -(-int(widest) // MAX_SIDE)
    return panel if dim_block == position_block == 1 else merged(panel, dim_block, position_block)


def pooling(panel: xr.DataArray) -> str:
    """What a value of a pooled panel is; empty where nothing is pooled."""
    dims, positions = block_size(panel, "dim"), block_size(panel, "position")
    rows = f"{dims} {row_name(panel)}s"
    return "" if dims == positions == 1 else f"the value farthest from 0 of up to {rows} x {positions} positions"


def _seen(panel: xr.DataArray) -> str:
    """Where the value farthest from 0 stands."""
    largest = panel.isel(panel.fillna(0).pipe(abs).argmax(...))  # type: ignore[arg-type]
    where = [str(largest["method"].item())] if "method" in panel.dims or "method" in panel.coords else []
    for name in ("layer", "dim", "position"):
        first, last = (largest[label].item() if label in largest.coords else None for label in (name, f"{name}_last"))
        name = row_name(panel) if name == "dim" else name
        where.append(f"{name} {first}" if last in (None, first) else f"{name}s {first} to {last}")
    return f"Farthest from 0: {largest.item():.4g}, {', '.join(where)}."


def _cell(values: xr.DataArray, limit: float, trained_length: int, titled: bool) -> Heatmap:
    """One layer and region of one method; titled: with the method's name above."""
    dims, positions = values["dim"].values, values["position"].values
    method = str(values["method"].item()) if "method" in values.coords else ""
    layer = values["layer"].item()
    hover = [method, f"layer {layer}"]
    regular = len(np.unique(np.diff(dims))) < 2  # else one row a dim, under its own label
    for name, axis in {"dim": "y", "position": "x"}.items():
        size, at = block_size(values, name), "around" if regular or name == "position" else "from"
        name = row_name(values) if name == "dim" else name
        hover.append(f"{name if size == 1 else f'{size} {name}s {at}'} %{{{axis}}}")
    tokens = token_texts(values) if block_size(values, "position") == 1 else ()
    hover += [*(["%{customdata}"] if tokens else []), "value %{z:.4g} " + values.attrs.get("units", "activation")]
    top, bottom = (dims[0] - 0.5, _last(values, "dim")[-1] + 0.5) if regular else (-0.5, len(dims) - 0.5)
    return Heatmap(
        method if titled else "",
        values.values,
        _centres(positions, block_size(values, "position")),
        _centres(dims, block_size(values, "dim")) if regular else dims.astype(str),
        (positions[0] - 0.5, _last(values, "position")[-1] + 0.5, bottom, top),
        -limit,
        limit,
        x_title=f"positions\n{region_names(values)[0]}",
        y_title=f"layer {layer}: {row_name(values)} (limit {limit:.2g})",
        y_ticks=None if regular else {at: str(dims[at]) for at in spaced_ticks(len(dims))},
        texts=np.broadcast_to(np.array(tokens, object), values.shape) if tokens else None,
        template="<br>".join(map(escaped, hover)),
        m=trained_length,
    )


def _centres(first: np.ndarray, size: int) -> np.ndarray:
    """Where plotly is to centre blocks of a size, of their first labels."""
    return first if size == 1 else first + (size - 1) / 2


def describe(panel: xr.DataArray) -> str:
    """A panel's contents in one line: hook, method, prompt, layers, dims, position regions."""
    labels = [str(panel[name].item()) for name in ("method", "prompt") if name in panel.coords and not panel[name].ndim]
    names = {"layer": "layer", row_name(panel): "dim"}
    spans = [f"{name}s {panel[axis].values[0]}-{_last(panel, axis)[-1]}" for name, axis in names.items()]
    return ", ".join([value_name(panel), *labels, *spans, "positions " + " and ".join(region_names(panel))])


def region_names(panel: xr.DataArray) -> list[str]:
    """The first and last position of each region, as text."""
    region, last = panel["region"].values, _last(panel, "position")
    return [
        f"{panel['position'].values[region == number][0]}-{last[region == number][-1]}" for number in np.unique(region)
    ]


def block_size(panel: xr.DataArray, name: str) -> int:
    """How many dims or positions a value of a pooled panel stands for, at most."""
    return panel.attrs.get(_BLOCK, (1, 1))[("dim", "position").index(name)]


def _last(panel: xr.DataArray, name: str) -> np.ndarray:
    """The last label of each cell along `name`, pooled or not."""
    return panel[f"{name}_last" if f"{name}_last" in panel.coords else name].values


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
    blocks = (int((last - first).max()) + 1 for first, last in ((dims, dim_ends), (positions, ends)))
    block = [size * block_size(panel, name) for size, name in zip(blocks, ("dim", "position"), strict=True)]
    attrs = {**panel.attrs, _BLOCK: block}
    pooled = xr.DataArray(values, coords, (*names, "dim", "position"), name=panel.name, attrs=attrs)
    return pooled.assign_coords(
        dim_last=("dim", _last(panel, "dim")[dim_ends]), position_last=("position", _last(panel, "position")[ends])
    )


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


def farthest(values: np.ndarray, starts: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """`values` (dim, position), each block that begins at `starts` (dims, positions) as its value farthest from 0."""
    dims, positions = starts
    if len(dims) == len(values) and len(positions) == values.shape[1]:
        return values
    wide = values.T.astype(np.float32) if values.dtype == np.float16 else values.T  # halves are slow to compare
    high, low = (np.empty((len(positions), wide.shape[1]), wide.dtype) for _ in range(2))
    for row, (start, stop) in enumerate(zip(positions, [*positions[1:], len(wide)], strict=True)):
        wide[start:stop].max(axis=0, out=high[row])
        wide[start:stop].min(axis=0, out=low[row])
    high, low = np.maximum.reduceat(high, dims, axis=1), np.minimum.reduceat(low, dims, axis=1)
    return np.where(high >= -low, high, low).T.astype(values.dtype)


def upper_quantile(values: np.ndarray, quantile: float) -> np.floating:
    """np.quantile of all `values`, in their precision or float32; only those above a sample's quantile are sorted."""
    flat, kind = values.ravel(), np.result_type(values, np.float32)
    sample = flat[:: -(-len(flat) // _SAMPLED)].astype(kind)
    upper = flat[flat >= np.quantile(sample, max(0.0, quantile - 0.01))].astype(kind)
    index = (len(flat) - 1) * quantile - (len(flat) - len(upper))
    if index < 0 or len(upper) < 2:
        return np.quantile(flat.astype(kind), quantile)
    return np.quantile(upper, index / (len(upper) - 1))
