"""The search for threshold dims, the paper's rule: thresholds and crossings.

The paper reads, by eye, the value of a dim at the trained length M under Origin (the red line) and says that a method
fails where its value passes it. Here the same is done for every layer and dim, with a stated rule; `search` also says
which dims show it clearly, and `negative_control` how many would at a position where nothing happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product

import numpy as np
import pandas as pd
import xarray as xr

from mesa.errors import Refused
from probe.store.reader import captured_ranges, run_bounds


def medians(values: np.ndarray) -> np.ndarray:
    """np.median of each row of finite `values` (row, column), by half as many partitions."""
    middle = values.shape[1] // 2
    ordered = np.partition(values, middle, axis=1)
    upper = ordered[:, middle].copy()
    return upper if values.shape[1] % 2 else (ordered[:, :middle].max(axis=1) + upper) / values.dtype.type(2)


def partitioned(values: np.ndarray, *shares: float) -> np.ndarray:
    """Finite `values` (row, column), each row in an order in which `quantile` finds these shares of it."""
    last = values.shape[1] - 1
    places = {min(int(share * last) + more, last) for share in shares for more in (0, 1)}
    return np.partition(values, sorted(places), axis=1)


def quantile(ordered: np.ndarray, share: float) -> np.ndarray:
    """np.quantile, in float64, of each row of what `partitioned` returns for this share."""
    last = ordered.shape[1] - 1
    below, part = divmod(np.float64(share * last), 1)
    low, high = ordered[:, int(below)], ordered[:, min(int(below) + 1, last)]
    step = high - low
    return low + step * part if part < 0.5 else high - step * (1 - part)


def median_sizes(ordered: np.ndarray) -> np.ndarray:
    """np.median of the absolute values of each row of what `partitioned` returns for 0.5.

    That is the size of a row's median where its values have one sign; only the other rows are partitioned again.
    """
    middle, count = ordered.shape[1] // 2, ordered.shape[1]
    upper = ordered[:, middle]
    sizes = np.abs(upper if count % 2 else (ordered[:, middle - 1] + upper) / ordered.dtype.type(2))
    mixed = (ordered.min(axis=1) < 0) & (ordered.max(axis=1) > 0)
    sizes[mixed] = medians(np.abs(ordered[mixed]))
    return sizes


_APART = 64  # positions: smoothed values differ little within as many
_WORKERS = 2  # layers at a time: numpy lets other threads run
_DIMS, _ROWS = 640, 256  # averaged at a time: they stay in the cache
_FEW = 16  # dims at a time, whose values stay in the cache
_CROSSED = ("crossing", "inside")
_ONE_WAY, _ROUGH = 1.001, 10.0  # path over net motion: of a dim that never turns, and of one that does
_ROUNDING = 1e-4  # more than that of float32 sums
_ENDS = (0.05, 0.95)  # quantiles of the spread
_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True, kw_only=True)
class CrossingRule:
    """How thresholds and their crossings are read; lengths in tokens, of consecutive captured positions.

    `CrossingRule.scaled(M)` is the default rule of a model.

    Args:
        smoothing: A value at t is the mean over (t - smoothing, t], so that it never looks ahead.
        sustained: A crossing must hold for so many positions, the first of which is the crossing.
        warm_up: Positions below it (few tokens of context, the first token's huge values) are not part of the
            reference; default 0.
        margin: In-window spreads from the threshold to the limit that a crossing passes; default 3. 0 is the paper's
            rule, which counts noise about a level as a crossing.
        minimum_score: The least score of a threshold dim, see `search`; default 6.
        share: Of the positions of a threshold dim, so many are not beyond the limit inside the window, and beyond it
            after the crossing; default 0.95.
        floor: The least in-window spread, as a share of the layer's typical magnitude (median over dims of the median
            absolute in-window value); default 0.01. Smaller motions are not taken for signals.

    Raises:
        Refused: A value is out of range.

    Examples:
        >>> rule = probe.CrossingRule.scaled(256)
        >>> rule.smoothing, rule.sustained, rule.warm_up
        (4, 16, 64)
    """

    smoothing: int
    sustained: int
    warm_up: int = 0
    margin: float = 3.0
    minimum_score: float = 6.0
    share: float = 0.95
    floor: float = 0.01

    def __post_init__(self) -> None:
        """Refused for a value out of range."""
        for name, least in (("smoothing", 1), ("sustained", 1), ("warm_up", 0), ("margin", 0), ("floor", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise Refused(f"{name}={getattr(self, name)} is not at least {least}")
        if not 0 < self.share <= 1:
            raise Refused(f"share={self.share} is not in (0, 1]")

    @classmethod
    def scaled(cls, trained_length: int) -> CrossingRule:
        """The default rule: smoothing M/64, sustained M/16, warm-up M/4.

        Args:
            trained_length: M, tokens.

        Returns:
            The rule.
        """
        return cls(
            smoothing=max(1, trained_length // 64),
            sustained=max(2, trained_length // 16),
            warm_up=trained_length // 4,
        )


@dataclass(frozen=True)
class SearchWindow:
    """Positions of a search: it takes `at` for M, and sees `first` to `last` (inclusive) only."""

    at: int
    first: int
    last: int


@dataclass(frozen=True)
class _Layout:
    """Where the captured positions lie: each one's run of consecutive positions [start, stop), M and the reference."""

    position: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    trained: int  # index of position M
    inside: slice  # in-window reference, warm-up left out
    beyond: slice  # from M on, to the last position seen


def search(hidden: xr.DataArray, trained_length: int, rule: CrossingRule, reference: str = "origin") -> xr.Dataset:
    """Thresholds, scores and crossings of every layer and dim.

    Args:
        hidden: Hidden states (method, [prompt,] layer, position, dim).
        trained_length: M, tokens.
        rule: How values are read, e.g. `CrossingRule.scaled(M)`.
        reference: The method that thresholds are read from; default 'origin'.

    Returns:
        A Dataset. With x the smoothed value under `reference`, I its captured positions in [warm_up, M) and B those
        beyond M:

        - `threshold` = x(M); `side` = sign(median of x over B - threshold)
        - `spread` = (95% - 5% quantile of x over I) / 3.29, the standard deviation if x is Gaussian; at least `floor`
        - `limit` = threshold + side * margin * spread
        - `score` = (side * (median of x over B - threshold) - trend) / spread, where trend is what the in-window slope
          (median over pairs half of I apart), if it points to `side`, adds from M to the middle of B: a dim that merely
          goes on as before scores 0. A dim that is singled out has no trend, and `floor` of its size for its spread: it
          moves one way only over I and B (path <= 1.001 |net|), in a layer whose moving dims mostly do not (path over
          |net|, its median, at least 10). What it crosses, it crosses once and not by noise, however smoothly
        - `crossing` (method): first position >= M from which x is beyond `limit` for `sustained` consecutive captured
          positions; NaN if there is none
        - `inside` (method): share of I where that method is beyond `limit` already; its crossing then says little
        - `threshold_dim`: score >= minimum_score, and x is not beyond `limit` on `share` of I, crosses, and is beyond
          it on `share` of the positions from there on
        - `rank`: 1 for the threshold dim with the highest score, 0 for others; `qualified`: how many are

    Raises:
        Refused: M, enough positions before it or `sustained` consecutive ones beyond it were not captured.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> hidden = probe.hook_values(run).sel(prompt="repeated")
        >>> crossings = probe.search(hidden, 256, probe.CrossingRule.scaled(256))
        >>> crossings["crossing"].sel({"method": "origin", "layer": 2, "dim": 8}).item()  # tokens
        265.0
    """
    return searches(hidden, [full_window(hidden["position"].values, trained_length, rule)], rule, reference)[0]


def searches(
    hidden: xr.DataArray,
    windows: Sequence[SearchWindow],
    rule: CrossingRule,
    reference: str = "origin",
    *,
    likely: Sequence[SearchWindow] = (),
    counted: Sequence[SearchWindow] = (),
) -> list[xr.Dataset]:
    """`search` in each of the windows, in one reading of `hidden`; `rule.warm_up` is each window's `first`.

    likely: further windows, in which scores and crossings are read at threshold dims, and are NaN at most others:
        faster. counted: further such windows, in which only the reference is read; NaN for others.
    """
    methods = hidden["method"].values.tolist()
    if reference not in methods:
        raise Refused(f"reference {reference!r} was not captured; captured methods: {', '.join(methods)}")
    full, crossed, windows = len(windows), len(windows) + len(likely), [*windows, *likely, *counted]
    layouts = [layout_of(hidden["position"].values, window, rule) for window in windows]
    first = max(0, min(layout.inside.start for layout in layouts) - rule.smoothing + 1)
    hidden = hidden.isel(position=slice(first, max(layout.beyond.stop for layout in layouts)))
    layouts = [layout_of(hidden["position"].values, window, rule) for window in windows]
    several = ["prompt"] if "prompt" in hidden.dims else []
    order = [methods.index(reference), *(row for row, name in enumerate(methods) if name != reference)]

    def search_layer(labels: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
        """By window, what is read of a prompt's layer; in memory at a time: it under one method."""
        layer = hidden.isel(dict(zip([*several, "layer"], labels, strict=True)))
        by_window: list[dict[str, np.ndarray]] = []
        for row in order:
            stored = layer.isel({"method": row}).load().transpose("position", "dim")
            x = _smooth(stored.values, layouts[0].start, rule.smoothing)
            if not by_window:
                by_window = [_score(x, layout, rule, number >= full) for number, layout in enumerate(layouts)]
                is_row = (np.arange(len(methods)) == row)[:, None]
                for values in by_window:
                    values |= {name: np.where(is_row, values[name], np.nan) for name in _CROSSED}
                continue
            for number, (values, layout) in enumerate(zip(by_window[:crossed], layouts, strict=False)):
                dims = slice(None) if number < full else np.flatnonzero(values["threshold_dim"])
                crossings = _cross(x, dims, values["side"][dims], values["limit"][dims], layout, rule)
                for name in _CROSSED:
                    values[name][row, dims] = crossings[name]
        return by_window

    with ThreadPoolExecutor(_WORKERS) as pool:
        layers = list(pool.map(search_layer, product(*(range(hidden.sizes[name]) for name in (*several, "layer")))))
    attrs = {"reference": reference, "searched": hidden.sizes["layer"] * hidden.sizes["dim"], "hook": str(hidden.name)}
    return [
        _labelled(hidden, several, [by_window[number] for by_window in layers]).assign_attrs(
            asdict(replace(rule, warm_up=window.first))
            | {"trained_length": window.at, "length": int(layout.position[layout.beyond.stop - 1]) + 1}
            | {"inside_positions": layout.inside.stop - layout.inside.start}
            | attrs
        )
        for number, (window, layout) in enumerate(zip(windows, layouts, strict=True))
    ]


def check_positions(position: Sequence[int], trained_length: int, rule: CrossingRule) -> None:
    """Raises Refused, before anything is captured, if `search` could not work on these positions."""
    layout_of(np.asarray(position), full_window(position, trained_length, rule), rule)


def smooth(values: xr.DataArray, smoothing: int) -> xr.DataArray:
    """`values` averaged over the last `smoothing` positions, not across positions that were not captured."""
    start, _ = run_bounds(values["position"].values)
    moved = values.transpose("position", ...)
    mean = _smooth(moved.values.reshape(len(start), -1), start, smoothing)
    return moved.copy(data=mean.T.reshape(moved.shape)).transpose(*values.dims)


def full_window(position: Sequence[int] | np.ndarray, trained_length: int, rule: CrossingRule) -> SearchWindow:
    """The window of `search`: all that was captured."""
    return SearchWindow(trained_length, rule.warm_up, int(position[-1]))


def _labelled(hidden: xr.DataArray, several: list[str], layers: Sequence[dict[str, np.ndarray]]) -> xr.Dataset:
    """What was read, by prompt and layer, as a Dataset with ranks."""
    sizes = [hidden.sizes[name] for name in (*several, "layer")]
    stacked = {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
    stacked = {name: values.reshape(*sizes, *values.shape[1:]) for name, values in stacked.items()}
    units: dict[str, str] = dict.fromkeys(("threshold", "limit", "spread"), hidden.attrs.get("units", "activation"))
    units |= {"crossing": "position"}
    variables: dict[str, tuple] = {}
    for name, values in stacked.items():
        dims = [*several, "layer", *(["method"] if name in _CROSSED else []), "dim"]
        variables[name] = (dims, values, {"units": units[name]} if name in units else {})
    threshold_dim = stacked["threshold_dim"]
    scores = pd.DataFrame(np.where(threshold_dim, stacked["score"], np.nan).reshape(math.prod(sizes[:-1]), -1))
    rank = scores.rank(axis=1, method="first", ascending=False).fillna(0).to_numpy(int).reshape(threshold_dim.shape)
    variables["rank"] = ([*several, "layer", "dim"], rank)
    variables["qualified"] = (several, threshold_dim.sum((-2, -1)))
    labels = ("method", "layer", "dim", *(name for name in ("prompt",) if name in hidden.coords))
    return xr.Dataset(variables, {name: hidden[name] for name in labels})


def _score(x: np.ndarray, layout: _Layout, rule: CrossingRule, only_likely: bool) -> dict[str, np.ndarray]:
    """What `search` says of the reference's smoothed values `x` (dim, position) of one layer: by dim.

    only_likely: score and crossings are NaN of dims that move too little to be threshold dims.
    """
    trained, position, threshold = layout.trained, layout.position, x[:, layout.trained].copy()
    inside = partitioned(x[:, layout.inside], *_ENDS, 0.5)
    size = median_sizes(inside)
    alone = _singled_out(x[:, layout.inside.start : layout.beyond.stop], size)
    low, high = (quantile(inside, share) for share in _ENDS)
    motion = medians(x[:, trained + 1 : layout.beyond.stop]) - threshold
    side = np.sign(motion)
    spread = np.maximum((high - low) / 3.29, max(rule.floor * np.median(size), _TINY))
    spread = np.where(alone, np.maximum(rule.floor * size, _TINY), spread)
    limit = threshold + side * rule.margin * spread
    # A trend is never negative, so it only lowers the score.
    dims = np.flatnonzero(side * motion / spread >= rule.minimum_score) if only_likely else np.arange(len(x))
    reach = np.median(position[trained + 1 : layout.beyond.stop]) - position[trained]
    slope = _slope(x[dims, layout.inside], position[layout.inside])
    trend = np.where(alone[dims], 0.0, np.maximum(0, side[dims] * slope) * reach)
    score = (side[dims] * motion[dims] - trend) / spread[dims]
    crossings = _cross(x, dims, side[dims], limit[dims], layout, rule)
    keeps_side = (crossings["inside"] <= 1 - rule.share) & (crossings["share_beyond"] >= rule.share)

    def of_all(values: np.ndarray, missing: float = np.nan) -> np.ndarray:
        filled = np.full(len(x), missing, values.dtype)
        filled[dims] = values
        return filled

    return {
        "threshold": threshold,
        "limit": limit,
        "side": side.astype(np.int8),
        "spread": spread,
        "score": of_all(score),
        "threshold_dim": of_all((score >= rule.minimum_score) & keeps_side, False),
        **{name: of_all(crossings[name]) for name in _CROSSED},
    }


def _slope(inside: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Median slope of each dim over pairs of in-window positions half of them apart, in units a token."""
    half = len(position) // 2
    steps = position[half:] - position[: len(position) - half]
    moved, even = inside[:, half:] - inside[:, : len(position) - half], bool((steps == steps[0]).all())
    return medians(moved if even else moved / steps) / (steps[0] if even else 1)


def _singled_out(x: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Which dims of a layer move one way only, by more than rounding, where most that move do not."""
    path = np.abs(np.diff(x[:, ::_APART], axis=1)).sum(axis=1)  # no longer than that of all steps
    if not (path <= _ONE_WAY * np.abs(x[:, -1] - x[:, 0]) * (1 + _ROUNDING)).any():
        return np.zeros(len(x), bool)
    turning, one_way, moving = _one_way(x, size)
    rough = bool(moving.any()) and np.median(turning[moving]) >= _ROUGH
    return one_way & rough


def _one_way(x: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By dim: path over net motion, whether it moves one way only, and whether it moves by more than rounding."""
    path, net = np.abs(np.diff(x, axis=1)).sum(axis=1), x[:, -1] - x[:, 0]
    moving = path > 1e-3 * np.maximum(size, _TINY)
    turning = path / np.maximum(np.abs(net), 1e-6 * path + _TINY)
    return turning, moving & (turning <= _ONE_WAY), moving


def _cross(
    x: np.ndarray, dims: np.ndarray | slice, side: np.ndarray, limit: np.ndarray, layout: _Layout, rule: CrossingRule
) -> dict[str, np.ndarray]:
    """Where `dims` of one method's `x` (dim, position) of one layer cross the limits: by dim.

    `share_beyond`: of the positions from the crossing on, those where it is beyond the limit; 0 without a crossing.
    """
    out, inside = (_beyond(x[dims, part], side, limit) for part in (layout.beyond, layout.inside))
    index = np.full(len(out), -1)
    lasting = np.flatnonzero(_count(out) >= rule.sustained)
    index[lasting] = _first_sustained(out[lasting], layout.stop[layout.beyond] - layout.trained, rule.sustained)
    after = _count([row[first:] for row, first in zip(out, index, strict=True)])
    return {
        "crossing": np.where(index < 0, np.nan, layout.position[index + layout.trained]),
        "inside": _count(inside) / inside.shape[1],
        "share_beyond": np.where(index < 0, 0.0, after / (out.shape[1] - index)),
    }


def _count(rows: Iterable[np.ndarray]) -> np.ndarray:
    """How many of each row are True: many times faster than numpy's sum along an axis."""
    return np.array([np.count_nonzero(row) for row in rows], int)


def _beyond(x: np.ndarray, side: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """side * (x - limit) > 0 by (dim, position); exact, though `x` is float32 and `limit` float64."""
    line, result = side * limit, np.empty(x.shape, bool)
    with np.errstate(over="ignore"):
        least = line.astype(x.dtype)
    least = np.where(least > line, np.nextafter(least, x.dtype.type(-np.inf)), least)  # the line, rounded down
    for first in range(0, len(x), _FEW):
        dims = slice(first, first + _FEW)
        np.greater(side[dims, None] * x[dims], least[dims, None], out=result[dims])
    return result


def _smooth(values: np.ndarray, start: np.ndarray, smoothing: int) -> np.ndarray:
    """Mean over the last `smoothing` of `values` (position, dim), fewer at a run's start; (dim, position) float32."""
    index, mean = np.arange(len(values)), np.empty(values.shape[::-1], np.float32)
    begin = np.maximum(start, index - smoothing + 1)
    count = (index + 1 - begin)[:, None].astype(float)
    rows = max(_ROWS, smoothing)
    for first in range(0, values.shape[1], _DIMS):
        part = values[:, first : first + _DIMS]
        total = np.zeros((smoothing + rows, part.shape[1]))  # of all values up to those of some rows, and before these
        for row in range(0, len(index), rows):
            block = slice(row, min(row + rows, len(index)))
            total[:smoothing] = total[rows:]
            total[smoothing:][: block.stop - row] = part[block]
            for before, after in pairwise(total[smoothing - 1 : smoothing + block.stop - row]):
                np.add(before, after, out=after)  # along rows: many times faster than cumsum
            before = begin[block] - row + smoothing - 1
            is_slice = bool((np.diff(before) == 1).all())  # of which numpy makes no copy
            total_before = total[before[0] : before[-1] + 1] if is_slice else total[before]
            within = total[smoothing:][: len(before)] - total_before
            mean[first : first + _DIMS, block] = np.divide(within, count[block], out=within).T
    return mean


def _first_sustained(out: np.ndarray, stop: np.ndarray, sustained: int) -> np.ndarray:
    """First index of `out` (dim, position) that begins `sustained` True in one run; -1 if there is none."""
    lasting, width = out, 1
    while width < sustained:  # lasting[:, i]: out[:, i : i + width] is True
        step = min(width, sustained - width)
        lasting, width = lasting[:, :-step] & lasting[:, step:], width + step
    lasting = lasting & (stop[: lasting.shape[1]] - np.arange(lasting.shape[1]) >= sustained)
    return np.where(lasting.any(axis=1), lasting.argmax(axis=1), -1)


def layout_of(position: np.ndarray, window: SearchWindow, rule: CrossingRule) -> _Layout:
    """The layout of the captured positions in a window; Refused names what is missing for the search."""
    needed = max(8, rule.smoothing)
    if window.at - window.first < needed:
        raise Refused(
            f"a warm-up of {window.first} leaves {max(0, window.at - window.first)} of the trained window's "
            f"{window.at} positions, and thresholds are read from {needed}; take a shorter warm-up or "
            "smoothing, or a longer trained length"
        )
    end = int(np.searchsorted(position, window.last, "right"))
    start, stop = run_bounds(position)
    stop = np.minimum(stop, end)

    def ranges() -> str:
        return ", ".join(f"{first}-{last}" for first, last in captured_ranges(position[:end]))

    where = np.flatnonzero(position[:end] == window.at)
    if not len(where):
        raise Refused(f"position {window.at} (where thresholds are read) was not captured, only {ranges()}")
    trained = int(where[0])
    first = int(np.searchsorted(position, window.first))
    if trained - first < needed:
        raise Refused(
            f"{trained - first} positions in [{window.first}, {window.at}) were captured ({ranges()}); "
            f"capture at least {needed} there"
        )
    longest = int((stop - np.maximum(start, trained + 1))[trained:end].max())
    if longest < rule.sustained:
        raise Refused(
            f"a crossing takes {rule.sustained} consecutive positions beyond {window.at}; captured: {ranges()}; "
            "take a shorter `sustained`, or capture more there"
        )
    return _Layout(position, start, stop, trained, slice(first, trained), slice(trained, end))
