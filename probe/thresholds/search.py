"""Observed thresholds: at which position a hidden value leaves the range it keeps inside the trained window.

The paper reads, by eye, the value of a dim at the trained length M under Origin (the red line) and says that a method
fails where its value passes it. Here the same is done for every layer and dim, with a stated rule; `search` also says
which dims show it clearly, and `negative_control` how many would at a place where nothing happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from probe.store.positions import captured_ranges, run_bounds
from probe.thresholds.columns import Columns
from probe.thresholds.medians import medians, quantiles

_WORKERS = 2  # layers at a time: numpy lets other threads run
_SMALL = 2**20  # values: of fewer, threads take longer than what they do
_BLOCK = 8  # dims smoothed at a time: their sums stay in the cache
_TILE = 256  # positions turned at a time, likewise
_PAIR = ("layer", "dim")
_JUDGED = ("crossing", "earliest", "inside")
_ONE_WAY, _ROUGH = 1.001, 10.0  # path over net motion: of a dim that never turns, and of one that does
READINGS = ("threshold", "middle", "low", "high", "size", "path", "net", "slope")
"""What `search` reads of each dim before it judges: it depends on M, smoothing, burn-in and nothing else of a rule."""


@dataclass(frozen=True, kw_only=True)
class CrossingRule:
    """How values are read and judged; lengths in tokens, of consecutive captured positions.

    smoothing: a value at t is the mean over (t - smoothing, t], so that it never looks ahead.
    sustained: a crossing must hold for so many positions, the first of which is the crossing.
    burn_in: positions below it (few tokens of context, the first token's huge values) are not part of the reference.
    margin: a value is beyond the threshold when it passes it by `margin` in-window spreads; 0 is the paper's rule,
        which calls the noise about a level a crossing.
    minimum_score: the least score of an observable dim; see `search`.
    share: of the positions of an observable dim, inside (safe side) and after the crossing (beyond).
    floor: the least in-window spread, as a share of the layer's typical magnitude (median over dims of the median
        absolute in-window value): smaller motions are not taken for signals.
    """

    smoothing: int
    sustained: int
    burn_in: int = 0
    margin: float = 3.0
    minimum_score: float = 6.0
    share: float = 0.95
    floor: float = 0.01

    def __post_init__(self) -> None:
        """ValueError for a value out of range."""
        for name, least in (("smoothing", 1), ("sustained", 1), ("burn_in", 0), ("margin", 0), ("floor", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} is not at least {least}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} is not in (0, 1]")

    @classmethod
    def scaled(cls, trained_length: int) -> CrossingRule:
        """The default rule of a model with trained length M: smoothing M/64, sustained M/16, burn-in M/4."""
        return cls(
            smoothing=max(1, trained_length // 64),
            sustained=max(2, trained_length // 16),
            burn_in=trained_length // 4,
        )


@dataclass(frozen=True)
class Place:
    """Where a search is put, as positions: it takes `at` for M, and sees `first` to `last` (inclusive) only."""

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
    inside: slice  # in-window reference, burn-in left out
    beyond: slice  # from M on, as far as is looked


def search(
    hidden: xr.DataArray,
    trained_length: int,
    rule: CrossingRule,
    reference: str = "origin",
    *,
    every: bool = True,
    others: bool = True,
    known: xr.Dataset | None = None,
) -> xr.Dataset:
    """Thresholds, scores and crossings for every layer and dim of `hidden` (method, [prompt,] layer, position, dim).

    With x the smoothed value under `reference`, I its captured positions in [burn_in, M) and B those beyond M:

    - `threshold` = x(M); `side` = sign(median of x over B - threshold)
    - `spread` = (95% - 5% quantile of x over I) / 3.29, the standard deviation if x is Gaussian; at least `floor`
    - `limit` = threshold + side * margin * spread, the line that counts as passed
    - `score` = (side * (median of x over B - threshold) - trend) / spread, where trend is what the in-window slope
      (median over pairs half of I apart), if it points to `side`, adds from M to the middle of B: a dim that merely
      goes on as before scores 0. A dim that is singled out has no trend, and `floor` of its own size for its spread:
      it moves one way only over I and B (path <= 1.001 |net|), in a layer whose moving dims mostly do not (path over
      |net|, its median, at least 10). What it crosses, it crosses once and not by noise, however smoothly
    - `crossing` (method): first position >= M from which x is beyond `limit` for `sustained` consecutive captured
      positions; NaN if there is none. `earliest`: the first position it may really be at, smaller than `crossing`
      where positions just before were not captured
    - `inside` (method): share of I where that method is beyond `limit` already; its crossing then says little
    - `observable`: score >= minimum_score, and x is not beyond `limit` on `share` of I, crosses, and is beyond it on
      `share` of the positions from there on
    - `rank`: 1 for the observable pair with the highest score, 0 if not observable; `qualified`: how many are

    - `middle` (median of x over B), `low` and `high` (5% and 95% quantile over I), `size` (median of |x| over I),
      `path` and `net` (sum of the steps over I and B, without and with their signs), `slope`: what the rest is made of

    every, others: as for `searches`; `crossings_at` reads what they leave out. known: a search of the same prompt under
    the same M, smoothing, burn-in and reference; then few values are read.

    Raises ValueError when M, enough positions before it or `sustained` consecutive ones beyond it were not captured.
    """
    place = Place(trained_length, rule.burn_in, int(hidden["position"][-1]))
    return searches(hidden, [place], rule, reference, every=every, others=others, known=known)[0]


def searches(
    hidden: xr.DataArray,
    places: Sequence[Place],
    rule: CrossingRule,
    reference: str = "origin",
    *,
    every: bool = True,
    others: bool = True,
    known: xr.Dataset | None = None,
) -> list[xr.Dataset]:
    """`search` put at each of the `places`, in one reading of `hidden`; `rule.burn_in` is each place's `first`.

    every: without it, crossings and `inside` are read at observable pairs alone, and are NaN elsewhere. others: without
    it, under `reference` alone.
    """
    methods = hidden["method"].values.tolist()
    if reference not in methods:
        raise ValueError(f"reference {reference!r} was not captured; captured methods: {', '.join(methods)}")
    rules = [replace(rule, burn_in=place.first) for place in places]
    hidden, layouts = _used(hidden, places, rules)
    prompts = [hidden.isel(prompt=i) for i in range(hidden.sizes["prompt"])] if "prompt" in hidden.dims else [hidden]
    each = [_search_prompt(values, layouts, rule, reference, (every, others), known) for values in prompts]
    found: list[Any] = list(each[0])
    if "prompt" in hidden.dims:
        found = [_side_by_side(at, hidden["prompt"]) for at in zip(*each, strict=True)]
    for one, layout, own, place in zip(found, layouts, rules, places, strict=True):
        one.attrs = {
            **asdict(own),
            "trained_length": place.at,
            "reference": reference,
            "length": int(layout.position[layout.beyond.stop - 1]) + 1,
            "inside_positions": layout.inside.stop - layout.inside.start,
            "searched": hidden.sizes["layer"] * hidden.sizes["dim"],
            "hook": str(hidden.name),
        }
    return found


def _side_by_side(found: Sequence[xr.Dataset], prompts: xr.DataArray) -> xr.Dataset:
    """What was found on each prompt as one Dataset: what `xr.concat` gives, sooner."""
    values = {
        name: (("prompt", *first.dims), np.stack([one[name].values for one in found]), first.attrs)
        for name, first in found[0].data_vars.items()
    }
    labels = {name: each for name, each in found[0].coords.items() if name != "prompt"}
    return xr.Dataset(values, {**labels, "prompt": prompts.variable})


def crossings_at(
    hidden: xr.DataArray, found: xr.Dataset, pairs: Sequence[tuple[int, int]], columns: Columns | None = None
) -> xr.Dataset:
    """`found`, from `search` without `every`, with crossings and `inside` at `pairs` of (layer, dim) too.

    What `found` has of them stands, and is not read again. columns: what was read for it before, of the same states.
    """
    columns = columns or Columns(hidden)
    rule = CrossingRule(**{name: found.attrs[name] for name in CrossingRule.__dataclass_fields__})
    place = Place(found.attrs["trained_length"], rule.burn_in, found.attrs["length"] - 1)
    seen, (layout,) = _used(hidden, [place], [rule])
    used = hidden.get_index("position").slice_indexer(*seen["position"].values[[0, -1]])
    found = found.transpose("layer", "method", "dim").copy(deep=True)
    rows, places = (found.get_index(name).get_indexer([pair[n] for pair in pairs]) for n, name in enumerate(_PAIR))

    def judge(part: tuple[int, int]) -> None:
        row, number = part
        dims = places[rows == row]
        dims = dims[np.isnan(found["inside"].values[row, number, dims])]
        if not len(dims):
            return
        read = {name: found[name].values[row, dims] for name in ("side", "limit")}
        values = columns.read(number, found["layer"].values[row], dims)[:, used]
        judged = _judge(_smooth(values, layout.start, rule.smoothing), read, layout, rule)
        for name in _JUDGED:
            found[name].values[row, number, dims] = judged[name]

    at_once(judge, [(row, number) for row in np.unique(rows).tolist() for number in range(found.sizes["method"])])
    return found


def check_positions(position: Sequence[int], trained_length: int, rule: CrossingRule) -> None:
    """Raises ValueError, before anything is captured, if `search` could not work on these positions."""
    check_place(np.asarray(position), Place(trained_length, rule.burn_in, int(position[-1])), rule)


def check_place(position: np.ndarray, place: Place, rule: CrossingRule) -> None:
    """Raises ValueError if the search could not be put there."""
    _layout(position, place.at, replace(rule, burn_in=place.first), place.last)


def smooth(values: xr.DataArray, smoothing: int) -> xr.DataArray:
    """`values` averaged over the last `smoothing` positions, not across positions that were not captured."""
    start, _ = run_bounds(values["position"].values)
    moved = values.transpose(..., "position")
    rows = moved.values.reshape(-1, len(start))
    return moved.copy(data=_smooth(rows, start, smoothing).reshape(moved.shape)).transpose(*values.dims)


def _used(
    hidden: xr.DataArray, places: Sequence[Place], rules: Sequence[CrossingRule]
) -> tuple[xr.DataArray, list[_Layout]]:
    """The positions that reach into any mean that is looked at, and the layouts among them."""
    layouts = _layouts(hidden, places, rules)
    first = min(each.inside.start for each in layouts) - rules[0].smoothing + 1
    hidden = hidden.isel(position=slice(max(0, first), max(each.beyond.stop for each in layouts)))
    return hidden, _layouts(hidden, places, rules)


def _layouts(hidden: xr.DataArray, places: Sequence[Place], rules: Sequence[CrossingRule]) -> list[_Layout]:
    position = hidden["position"].values
    return [_layout(position, place.at, own, place.last) for place, own in zip(places, rules, strict=True)]


class _Smoothed:
    """Smoothed values (dim, position) of one method and layer; read, and smoothed dim by dim, when asked for."""

    def __init__(self, stored: xr.DataArray, layout: _Layout, rule: CrossingRule) -> None:
        self.stored, self.start, self.smoothing = stored, layout.start, rule.smoothing
        self.values, self.smoothed = None, np.empty((stored.sizes["dim"], stored.sizes["position"]), np.float32)
        self.done = np.zeros(len(self.smoothed), bool)

    def __getitem__(self, dims: slice | np.ndarray) -> np.ndarray:
        """Those of the dims at these places."""
        lacking = np.arange(len(self.done))[dims]
        lacking = lacking[~self.done[lacking]]
        if len(lacking):
            if self.values is None:
                self.values = self.stored.transpose("position", "dim").values
            turned = _turned(self.values, lacking)
            for first in range(0, len(lacking), _BLOCK):
                block = slice(first, first + _BLOCK)
                self.smoothed[lacking[block]] = _smooth(turned[block], self.start, self.smoothing)
            self.done[lacking] = True
        return self.smoothed[dims]


def _search_prompt(
    hidden: xr.DataArray,
    layouts: Sequence[_Layout],
    rule: CrossingRule,
    reference: str,
    wide: tuple[bool, bool],
    known: xr.Dataset | None,
) -> list[xr.Dataset]:
    """`searches` for one prompt; in memory at a time, for each worker: a layer under one method and `reference`.

    wide: `every` and `others`.
    """
    methods = hidden["method"].values.tolist()
    row = methods.index(reference)
    every, others = wide

    def search_layer(layer: int) -> list[dict[str, np.ndarray]]:
        own = _Smoothed(hidden.isel({"method": row, "layer": layer}), layouts[0], rule)
        stored = None if known is None else {name: known[name].values[layer] for name in READINGS}
        reads = [_observe(own, stored or _statistics(own[slice(None)], layout), layout, rule) for layout in layouts]
        judged: list[list[dict[str, np.ndarray]]] = [[] for _ in layouts]
        for method in range(len(methods)):
            x = own if method == row else _Smoothed(hidden.isel({"method": method, "layer": layer}), layouts[0], rule)
            for at, read, layout in zip(judged, reads, layouts, strict=True):
                pairs = slice(None) if every else np.flatnonzero(read["observable"])
                pairs = pairs if others or method == row else slice(0)
                at.append(_judge_pairs(x, read, layout, rule, pairs))
        return [
            {**read, **{name: np.stack([one[name] for one in at]) for name in at[0]}}
            for read, at in zip(reads, judged, strict=True)
        ]

    layers = _by_layer(search_layer, hidden)
    return [_labelled(hidden, [layer[number] for layer in layers]) for number in range(len(layouts))]


def _by_layer(work: Callable[[int], Any], hidden: xr.DataArray) -> list[Any]:
    layers = range(hidden.sizes["layer"])
    return [work(layer) for layer in layers] if hidden.size < _SMALL else at_once(work, layers)


def at_once(work: Callable[[Any], Any], parts: Iterable[Any]) -> list[Any]:
    """What `work` makes of each part, several at a time."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        return list(pool.map(work, parts))


def _turned(values: np.ndarray, dims: np.ndarray) -> np.ndarray:
    """`values` (position, dim) at `dims` as (dim, position), float32 or wider."""
    turned = np.empty((len(dims), len(values)), np.promote_types(values.dtype, np.float32))
    chosen = slice(None) if len(dims) == values.shape[1] else dims
    for first in range(0, len(values), _TILE):
        turned[:, first : first + _TILE] = values[first : first + _TILE, chosen].T
    return turned


def _labelled(hidden: xr.DataArray, layers: Sequence[dict[str, np.ndarray]]) -> xr.Dataset:
    """What was found, by layer, as a Dataset with ranks."""
    dims = {2: ("layer", "dim"), 3: ("layer", "method", "dim")}
    stacked = {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
    units = dict.fromkeys((*READINGS[:-1], "limit", "spread"), hidden.attrs.get("units", "activation"))
    units |= dict.fromkeys(("crossing", "earliest"), "position")
    values: dict[str, Any] = {
        name: (dims[each.ndim], each, {"units": units[name]} if name in units else {}) for name, each in stacked.items()
    }
    observable = stacked["observable"]
    values["rank"] = (("layer", "dim"), _rank(np.where(observable, stacked["score"], np.nan)))
    values["qualified"] = ((), observable.sum())
    labels = ("method", "layer", "dim", *(name for name in ("prompt",) if name in hidden.coords))
    return xr.Dataset(values, {name: hidden[name] for name in labels})


def _observe(
    own: _Smoothed, statistics: dict[str, np.ndarray], layout: _Layout, rule: CrossingRule
) -> dict[str, np.ndarray]:
    """The statistics and `_scored`, and which dims are observable."""
    read = _scored(statistics, layout, rule)
    likely = np.flatnonzero(read["score"] >= rule.minimum_score)
    judged = _judge(own[likely], {name: values[likely] for name, values in read.items()}, layout, rule)
    observable = np.zeros(len(read["score"]), bool)
    observable[likely] = (judged["inside"] <= 1 - rule.share) & (judged["share_beyond"] >= rule.share)
    return {**statistics, **read, "observable": observable}


def _judge_pairs(
    x: _Smoothed, read: dict[str, np.ndarray], layout: _Layout, rule: CrossingRule, pairs: slice | np.ndarray
) -> dict[str, np.ndarray]:
    """Crossings of the dims `pairs` of a layer; NaN for the others."""
    judged = _judge(x[pairs], {name: values[pairs] for name, values in read.items()}, layout, rule)
    found = {name: np.full(len(read["score"]), np.nan) for name in _JUDGED}
    for name, values in found.items():
        values[pairs] = judged[name]
    return found


def _statistics(x: np.ndarray, layout: _Layout) -> dict[str, np.ndarray]:
    """What is read from the reference's smoothed values `x` (dim, position) of one layer: by dim."""
    trained, position = layout.trained, layout.position
    inside = x[:, layout.inside]
    low, high = quantiles(inside, (0.05, 0.95))
    half = inside.shape[1] // 2
    steps = position[layout.inside][half:] - position[layout.inside][: inside.shape[1] - half]
    steps_taken = np.diff(x[:, layout.inside.start : layout.beyond.stop], axis=1)
    moved, even = inside[:, half:] - inside[:, : inside.shape[1] - half], bool((steps == steps[0]).all())
    return {
        "threshold": x[:, trained].copy(),
        "middle": medians(x[:, trained + 1 : layout.beyond.stop]),
        "low": low,
        "high": high,
        "size": medians(np.abs(inside)),
        "path": np.abs(steps_taken).sum(axis=1),
        "net": x[:, layout.beyond.stop - 1] - x[:, layout.inside.start],
        "slope": medians(moved if even else moved / steps) / (steps[0] if even else 1),
    }


def _scored(read: dict[str, np.ndarray], layout: _Layout, rule: CrossingRule) -> dict[str, np.ndarray]:
    """What `search` says of the reference's `_statistics` of one layer: by dim."""
    trained, position, threshold = layout.trained, layout.position, read["threshold"]
    motion = read["middle"] - threshold
    side = np.sign(motion)
    least = rule.floor * np.median(read["size"])
    alone = _singled_out(read)
    spread = np.maximum((read["high"] - read["low"]) / 3.29, max(least, np.finfo(np.float32).tiny))
    spread = np.where(alone, np.maximum(rule.floor * read["size"], np.finfo(np.float32).tiny), spread)
    reach = np.median(position[trained + 1 : layout.beyond.stop]) - position[trained]
    trend = np.where(alone, 0.0, np.maximum(0, side * read["slope"]) * reach)
    return {
        "threshold": threshold,
        "limit": threshold + side * rule.margin * spread,
        "side": side.astype(np.int8),
        "spread": spread,
        "score": (side * motion - trend) / spread,
    }


def _singled_out(read: dict[str, np.ndarray]) -> np.ndarray:
    """Which dims of a layer move one way only, by more than rounding, where most that move do not."""
    moving = read["path"] > 1e-3 * np.maximum(read["size"], np.finfo(np.float32).tiny)
    turning = read["path"] / np.maximum(np.abs(read["net"]), 1e-6 * read["path"] + np.finfo(np.float32).tiny)
    rough = bool(moving.any()) and np.median(turning[moving]) >= _ROUGH
    return moving & (turning <= _ONE_WAY) & rough


def _judge(x: np.ndarray, read: dict[str, np.ndarray], layout: _Layout, rule: CrossingRule) -> dict[str, np.ndarray]:
    """Where one method's `x` (dim, position) of one layer crosses the limits: by dim.

    `share_beyond`: of the positions from the crossing on, those where it is beyond the limit; 0 without a crossing.
    """
    out, inside = (_beyond(x[:, part], read["side"], read["limit"]) for part in (layout.beyond, layout.inside))
    index = _first_sustained(out, layout.stop[layout.beyond] - layout.trained, rule.sustained)
    crossing, earliest = _positions(index, layout.position, layout.trained)
    return {
        "crossing": crossing,
        "earliest": earliest,
        "inside": inside.mean(axis=1),
        "share_beyond": _stays_out(out, index),
    }


def _beyond(x: np.ndarray, side: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """side * (x - limit) > 0 by (dim, position), exactly, without widening `x` to the limits' float64."""
    near = limit.astype(np.float32)
    below = np.where((near > limit) | ((near == limit) & (side < 0)), np.nextafter(near, np.float32(-np.inf)), near)
    below[side == 0] = np.inf
    return (x > below[:, None]) != (side < 0)[:, None]


def _smooth(values: np.ndarray, start: np.ndarray, smoothing: int) -> np.ndarray:
    """Mean over the last `smoothing` of `values` (dim, position), fewer at a run's start; float32."""
    index = np.arange(values.shape[1])
    total = np.zeros((len(values), len(index) + 1))
    total[:, 1:] = values
    for row in total:  # one by one: many times faster than along an axis
        np.add.accumulate(row[1:], out=row[1:])
    mean = np.empty(values.shape)
    begins = np.flatnonzero(start == index)
    for first, stop in zip(begins, [*begins[1:], len(index)], strict=True):
        full = min(stop, first + smoothing)
        np.subtract(total[:, first + 1 : full + 1], total[:, [first]], out=mean[:, first:full])
        moved = slice(full + 1 - smoothing, stop + 1 - smoothing)
        np.subtract(total[:, full + 1 : stop + 1], total[:, moved], out=mean[:, full:stop])
    mean /= index + 1 - np.maximum(start, index - smoothing + 1)
    return mean.astype(np.float32)


def _first_sustained(out: np.ndarray, stop: np.ndarray, sustained: int) -> np.ndarray:
    """First index of `out` (dim, position) that begins `sustained` True in one run; -1 if there is none."""
    held, width = out, 1
    while width < sustained:  # held[:, i]: out[:, i : i + width] is True
        step = min(width, sustained - width)
        held, width = held[:, :-step] & held[:, step:], width + step
    held = held & (stop[: held.shape[1]] - np.arange(held.shape[1]) >= sustained)
    return np.where(held.any(axis=1), held.argmax(axis=1), -1)


def _positions(index: np.ndarray, position: np.ndarray, trained: int) -> tuple[np.ndarray, np.ndarray]:
    """Crossing positions, and the first ones they may be at, of indices counted from `trained`; NaN for -1."""
    before = np.concatenate([position[:1], position[:-1] + 1])
    before[trained] = position[trained]
    at = index + trained
    return np.where(index < 0, np.nan, position[at]), np.where(index < 0, np.nan, before[at])


def _stays_out(out: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Share of positions from `index` on where `out` (dim, position) holds; 0 for index -1."""
    return np.array([each[at:].mean() if at >= 0 else 0.0 for each, at in zip(out, index.tolist(), strict=True)])


def _rank(score: np.ndarray) -> np.ndarray:
    """1 for the highest score, 0 for NaN."""
    order = np.argsort(-score, axis=None, kind="stable")
    rank = np.empty(score.size, dtype=int)
    rank[order] = np.arange(1, score.size + 1)
    return np.where(np.isnan(score), 0, rank.reshape(score.shape))


def _layout(position: np.ndarray, trained_length: int, rule: CrossingRule, last: int) -> _Layout:
    """The layout of the captured positions, seen up to `last`; ValueError names what is missing for the search."""
    needed = max(8, rule.smoothing)
    if trained_length - rule.burn_in < needed:
        raise ValueError(
            f"a burn-in of {rule.burn_in} leaves {max(0, trained_length - rule.burn_in)} of the trained window's "
            f"{trained_length} positions, and thresholds are read from {needed}; take a shorter burn-in or "
            "smoothing, or a longer trained length"
        )
    end = int(np.searchsorted(position, last, "right"))
    start, stop = run_bounds(position)
    stop = np.minimum(stop, end)
    ranges = ", ".join(f"{first}-{last}" for first, last in captured_ranges(position[:end]))
    where = np.flatnonzero(position[:end] == trained_length)
    if not len(where):
        raise ValueError(f"position {trained_length} (where thresholds are read) was not captured, only {ranges}")
    trained = int(where[0])
    first = int(np.searchsorted(position, rule.burn_in))
    if trained - first < needed:
        raise ValueError(
            f"{trained - first} positions in [{rule.burn_in}, {trained_length}) were captured ({ranges}); "
            f"capture at least {needed} there"
        )
    longest = int((stop - np.maximum(start, trained + 1))[trained:end].max())
    if longest < rule.sustained:
        raise ValueError(
            f"a crossing takes {rule.sustained} consecutive positions beyond {trained_length}; captured: {ranges}; "
            "take a shorter `sustained`, or capture more there"
        )
    return _Layout(position, start, stop, trained, slice(first, trained), slice(trained, end))
