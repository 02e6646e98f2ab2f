"""What figures show, worked out once for any renderer: line charts, heatmaps, maps of tiles and of drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from probe.figures.styles import BLACK, Look, rank
from probe.store.results import percent, ranged

WRITTEN = 64
"""Tiles of a block in which numbers are written; with more of them numbers appear on hovering only."""
MUTED = "#333333"  # numbers on hatched tiles, at least 3:1 on the darkest colour that is not `dark`
NOTE = "hatched: 95% interval includes 0 or is missing; empty: not run"
DRIFT_TICKS = {-2.0: "1/4", -1.0: "1/2", 0.0: "limit", 1.0: "2 x", 2.0: "4 x", 3.0: "8 x"}
"""Colours of a drift map are doublings of a layer's limit."""
DRIFT_COLOURS = (
    (0.0, "#F4F8FB"),
    (0.4, "#C6DBEF"),
    (0.4, "#FDCDB5"),
    (0.6, "#EF6548"),
    (0.8, "#B2182B"),
    (1.0, "#4A0012"),
)
"""By share of the scale: pale blue up to the limit, red beyond it."""
DRIFT_COLOUR_TITLE = "rms distance from in-window range"
DRIFT_NOTE = "judged from M on; circle: drift begins; grey: warm-up, too many false alarms, or not captured"
_CROWDED = 64  # values of a line
_MOST_TICKS = 12


@dataclass(frozen=True)
class Line:
    """A line; NaN breaks it. dash: solid, dash, dot, dashdot, or none for markers alone. symbol: its markers.

    interval: (low, high) of y, drawn at each value, or as a band. texts: hover text of each value, in place of the
    default; tokens: hover text beside the default. faint: a method excluded for the reason in `label`.
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    colour: str
    dash: str
    symbol: str
    interval: tuple[np.ndarray, np.ndarray] | None = None
    band: bool = False
    texts: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    faint: bool = False

    @property
    def crowded(self) -> bool:
        """Whether a marker at every value would hide the line."""
        return len(self.x) > _CROWDED


@dataclass(frozen=True)
class Point:
    """One marked place; `text` is its legend entry, unless a line has the same, and its hover text."""

    text: str
    x: float
    y: float
    colour: str


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel, at `at` on the y axis, or on the x axis if `vertical`."""

    at: float
    text: str
    colour: str
    dash: str = "dash"
    vertical: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes. x_ticks: places of ticks, labelled by `x_labels` if set. log_x: x in powers of two.

    x_range: the ends of the x axis; None: those of the data.
    """

    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    y_range: tuple[float, float]
    points: tuple[Point, ...] = ()
    rules: tuple[Rule, ...] = ()
    x_ticks: tuple[int, ...] = ()
    log_x: bool = False
    x_labels: tuple[str, ...] = ()
    x_range: tuple[float, float] | None = None

    @property
    def in_order(self) -> list[Line]:
        """The lines in the order of every legend: by method."""
        return sorted(self.lines, key=lambda line: rank(line.colour))


@dataclass(frozen=True)
class Chart:
    """Panels side by side over one legend, which lists each text once."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Grid:
    """Heatmaps in rows (layers) and columns (method and region), coloured from -limit to limit of their row."""

    title: str
    colour_title: str
    limits: tuple[float, ...]
    cells: tuple[tuple[xr.DataArray, ...], ...]
    row_titles: tuple[str, ...]
    group_titles: tuple[str, ...]
    region_titles: tuple[str, ...]
    trained_length: int


@dataclass(frozen=True)
class Raster:
    """`values` (layer, dim, position) of one method, from `regions`, for a picture of one pixel a value."""

    values: xr.DataArray
    limits: xr.DataArray


@dataclass(frozen=True)
class Scale:
    """Colours from `low` to `high`, centred on 0 where `low` is negative; digits after the point, None: percent."""

    low: float = -1.0
    high: float = 1.0
    digits: int | None = None

    @property
    def ticks(self) -> dict[float, str]:
        """Five values and their texts."""
        sign = "%" if self.digits is None else ""
        return {float(value): f"{self.written(value)}{sign}" for value in np.linspace(self.low, self.high, 5)}

    def written(self, value: float) -> str:
        """A value as a tile shows it."""
        return str(round(100 * value)) if self.digits is None else f"{value:z.{self.digits}f}"

    def with_interval(self, value: float, low: float, high: float) -> str:
        """A value with its interval."""
        return percent(value, low, high) if self.digits is None else ranged(value, low, high, self.digits)


SHARES = Scale()
"""0: nothing, 1: all of the loss."""


@dataclass(frozen=True)
class Block:
    """Tiles (row, column) under one title: values and the ends of their 95% intervals, NaN for missing ones."""

    title: str
    columns: tuple[str, ...]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    scale: Scale = SHARES

    @property
    def muted(self) -> np.ndarray:
        """Where a value is not clearly different from 0."""
        exactly_zero = (self.low == 0) & (self.high == 0)
        return np.isfinite(self.values) & ~((self.low > 0) | (self.high < 0) | exactly_zero)

    @property
    def dark(self) -> np.ndarray:
        """Where the colour is dark."""
        return np.abs(self.values) > 0.6 * self.scale.high

    @property
    def texts(self) -> np.ndarray:
        """The numbers written on the tiles; none where there are too many."""
        present = np.isfinite(self.values)
        texts = np.full(self.values.shape, "", dtype=object)
        if present.sum() <= WRITTEN:
            texts[present] = [self.scale.written(value) for value in self.values[present]]
        return texts

    def text(self, row: int, column: int) -> str:
        """A tile's value with its interval."""
        return self.scale.with_interval(self.values[row, column], self.low[row, column], self.high[row, column])


@dataclass(frozen=True)
class TileMap:
    """Blocks of one scale side by side over the same rows."""

    title: str
    colour_title: str
    row_title: str
    rows: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def scale(self) -> Scale:
        """The colour scale of all blocks."""
        return self.blocks[0].scale


@dataclass(frozen=True)
class MethodDrift:
    """One method's drift: doublings of the limit and rms distance in ranges (layer, column), NaN where not judged.

    first: position and row of the layer where drift begins; None: nowhere. limits: by layer, in ranges.
    """

    method: str
    title: str
    doublings: np.ndarray
    distance: np.ndarray
    limits: np.ndarray
    first: tuple[int, int] | None


@dataclass(frozen=True)
class DriftMap:
    """Maps over the same layers and columns; `edges` are the positions between the columns."""

    title: str
    layers: tuple[int, ...]
    edges: np.ndarray
    maps: tuple[MethodDrift, ...]
    trained_length: int

    def text(self, drift: MethodDrift, row: int, column: int) -> str:
        """A cell in words: method, layer, positions, distance and limit."""
        first, last = int(self.edges[column]), int(self.edges[column + 1]) - 1
        where = f"{drift.method}, layer {self.layers[row]}, positions {first} to {last}"
        return f"{where}: {drift.distance[row, column]:.2g} ranges, limit {drift.limits[row]:.2g}"


Drawable = Chart | Grid | TileMap | DriftMap
Figure = Drawable | Raster


def value_name(values: xr.DataArray) -> str:
    """Name of an array's values."""
    return str(values.attrs.get("long_name", values.name))


def value_title(values: xr.DataArray) -> str:
    """Name and unit of an array's values."""
    return f"{value_name(values)} ({values.attrs.get('units', 'activation')})"


def trained_rule(trained: int) -> Rule:
    """The line that marks the trained window M, in tokens."""
    return Rule(trained, f"M = {trained}", BLACK, vertical=True)


def line_of_positions(values: xr.DataArray, label: str, look: Look, faint: bool = False) -> Line:
    """One method's values over position, broken where positions were not captured."""
    position = values["position"].values
    gaps = np.flatnonzero(np.diff(position) != 1) + 1
    x, y = (np.insert(axis.astype(float), gaps, np.nan) for axis in (position, values.values))
    return Line(label, x, y, *look, tokens=token_texts(values, gaps), faint=faint)


def token_texts(values: xr.DataArray, gaps: np.ndarray | None = None) -> tuple[str, ...]:
    """Hover texts: the token at each position, blank at `gaps`; none for one repeated word."""
    if "token" not in values.coords or values["token"].ndim != 1:
        return ()
    tokens = values["token"].values
    if len(set(tokens[1:].tolist())) < 2:
        return ()
    texts = np.array([f"token {token!r}" for token in tokens.tolist()], dtype=object)
    return tuple(texts if gaps is None else np.insert(texts, gaps, ""))


def axis_range(lines: Sequence[Line], rules: Sequence[Rule] = (), ends: float = np.inf) -> tuple[float, float]:
    """Ends of a y axis that holds all values and level rules; of intervals what lies from `1 - ends` to `ends`."""
    levels = np.array([rule.at for rule in rules if not rule.vertical], float)
    intervals = [np.clip(end, 1 - ends, ends) for line in lines for end in line.interval or ()]
    values = np.concatenate([*(line.y for line in lines), levels, *intervals])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    pad = 0.08 * (high - low or 1)
    return low - pad, high + pad


def same_range(panels: Sequence[Panel]) -> tuple[Panel, ...]:
    """The panels over one range of y, so that they compare."""
    y_range = min(panel.y_range[0] for panel in panels), max(panel.y_range[1] for panel in panels)
    return tuple(replace(panel, y_range=y_range) for panel in panels)


def spaced_ticks(places: int, last: bool = False) -> list[int]:
    """Numbers of the places that are labelled, at most twelve or so; last: the last place is among them."""
    step = -(-places // _MOST_TICKS)
    ticks = [*range(0, places, step)]
    if last and places - 1 not in ticks:
        ticks = [*(tick for tick in ticks if places - 1 - tick >= step), places - 1]
    return ticks


def log_ticks(lengths: Sequence[int], least: float = 0.07) -> tuple[int, ...]:
    """The lengths, from the longest down, whose labels do not touch on a log axis; least: share of it between two."""
    ticks = [lengths[-1]]
    for length in reversed(lengths):
        if ticks[-1] >= length * (lengths[-1] / lengths[0]) ** least and length < ticks[-1]:
            ticks.append(length)
    return tuple(reversed(ticks))


def offset(index: int, count: int) -> float:
    """Shift along x of the index-th of `count` lines, so that their intervals do not overlap."""
    return 0.14 * (index - (count - 1) / 2)


def tile_block(
    title: str,
    columns: Sequence[str],
    layers: Sequence[int],
    triples: Mapping[tuple[int, int], Iterable[float]],
    scale: Scale = SHARES,
) -> Block:
    """Tiles of (value, low, high) by layer and number of the column; NaN for the others."""
    values, low, high = np.full((3, len(layers), len(columns)), np.nan)
    for (layer, column), triple in triples.items():
        if layer in layers and 0 <= column < len(columns):
            at = layers.index(layer), column
            values[at], low[at], high[at] = triple
    return Block(title, tuple(columns), values, low, high, scale)
