"""Figures as data, before anything is drawn: panels, lines, points, maps, and what a method looks like."""

import html
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
import xarray as xr

from mesa import plugins
from mesa.methods import METHODS
from probe.store.result_file import percent, ranged

Look = tuple[str, str, str]
BLACK, RED, GREY = "#000000", "#CC0000", "#666666"
FAINT = 0.7
"""Width of the line of what does not count, as a share of others': in full colour, it can be seen on any page."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
STYLES: dict[str, Look] = {name: method.look for name, method in METHODS.items() if method.look}
"""Of the methods that come with the package: after Okabe and Ito; colour, dash, symbol.

Colours have a contrast of at least 3:1 on white and, but for black, on a dark page.
"""

_COLOURS = ("#6F63C5", "#B5651D", "#2E8B9A", "#AA4499", "#5F8A1E", "#C4516C", "#4F7CAC")
_SYMBOLS = ("cross", "star", "pentagon", "triangle-left", "triangle-right", "hexagon")
_OTHERS = tuple(
    (_COLOURS[number % len(_COLOURS)], dash, symbol) for number, (dash, symbol) in enumerate(product(DASHES, _SYMBOLS))
)


def style(method: str) -> Look:
    """A method's colour, dash and symbol: those of an installed one differ from all others'."""
    return STYLES.get(method) or _installed().get(method) or nth(zlib.crc32(method.encode()))


def rank(colour: str) -> int:
    """Where in a legend what has the colour stands: methods in the order of `METHODS`, all others behind them."""
    return next((index for index, look in enumerate(STYLES.values()) if look[0] == colour), len(STYLES))


def nth(number: int) -> Look:
    """The look of the number-th of what is not a method, such as prompts: one that no method of the package has."""
    return _OTHERS[number % len(_OTHERS)]


def _installed() -> dict[str, Look]:
    """Looks of the methods that installed packages name."""
    return {point.name: nth(at) for at, point in enumerate(plugins.named_in(plugins.METHODS))}


WRITTEN = 64
"""Tiles of a block in which numbers are written; with more of them numbers appear on hovering only."""
NOTE = ("hatched: 95% interval includes 0 or is missing", "empty: not run")
_CROWDED = 64  # values of a line
DRAWN = 8192
"""About how many values of a line are drawn: four for each pixel of a wide panel."""
_MOST_TICKS = 12


@dataclass(frozen=True)
class Line:
    """A line; NaN breaks it. dash: solid, dash, dot, dashdot, or none for markers alone. symbol: its markers, or none.

    interval: (low, high) of y, drawn at each value, or as a band. texts: hover text of each value, in place of the
    default; tokens: hover text next to the default. faint: an excluded method, for the reason in `label` or `note`.
    note: what is found in this panel, after the label in legends.
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
    note: str = ""

    @property
    def entry(self) -> str:
        """Its legend entry."""
        return self.label + self.note

    @property
    def crowded(self) -> bool:
        """Whether a marker at every value would hide the line."""
        return len(self.x) > _CROWDED

    @property
    def is_long(self) -> bool:
        """Whether it has more values than a screen shows, so that the extremes of blocks are drawn."""
        return len(self.x) > DRAWN and self.interval is None

    def at(self, indices: np.ndarray) -> "Line":
        """The line through these of its values; for lines without an interval."""
        texts, tokens = (tuple(part[index] for index in indices) if part else () for part in (self.texts, self.tokens))
        return replace(self, x=self.x[indices], y=self.y[indices], texts=texts, tokens=tokens)


@dataclass(frozen=True)
class Point:
    """One marked place; `text` is its legend entry, unless a line has the same.

    hover: its hover text, default `text`. symbol: diamond or tick. ends: of x, drawn as a line.
    """

    text: str
    x: float
    y: float
    colour: str
    symbol: str = "diamond"
    hover: str = ""
    ends: tuple[float, float] | None = None


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel, at `at` on the y axis, or on the x axis if `vertical`; its text at one end."""

    at: float
    text: str
    colour: str
    dash: str = "dash"
    vertical: bool = False
    right: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes. x_ticks: places of ticks, labelled by `x_labels` if set. log_x: x in powers of two.

    seen: what it shows, as a sentence.
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
    seen: str = ""

    @property
    def outside(self) -> str:
        """How many values of its lines the y axis leaves out, and between which ends; empty where it holds all."""
        values = np.concatenate([np.empty(0), *(line.y[np.isfinite(line.y)] for line in self.lines)])
        left_out = values[(values < self.y_range[0]) | (values > self.y_range[1])]
        if not left_out.size:
            return ""
        ends = f"{left_out.min():.3g} to {left_out.max():.3g}"
        return f"outside this axis: {left_out.size} of {values.size} values, {ends}"

    def is_below(self, rule: Rule) -> bool:
        """Whether the text of a level rule stands below it: away from another one and from M's text at the top."""
        others = [other.at for other in self.rules if not other.vertical and other.text and other is not rule]
        low, high = self.y_range
        if not others:
            return rule.at > (low + high) / 2
        tenth = (high - low) / 10
        return rule.at < others[0] or (rule.at > high - tenth and rule.at > others[0] + 2 * tenth)

    @property
    def drawn(self) -> list[Line]:
        """The lines to draw, in the order of every legend: by method. Long ones are thinned to what a screen shows.

        Lines over the same x are thinned to the same x, so that hovering shows every line's value there.
        """
        lines, by_x = list(self.lines), dict[bytes, list[int]]()
        for number, line in enumerate(lines):
            if line.is_long:
                by_x.setdefault(line.x.tobytes(), []).append(number)
        for numbers in by_x.values():
            most = DRAWN // len(numbers)
            kept = np.unique(np.concatenate([_extremes(lines[number].y, most) for number in numbers]))
            for number in numbers:
                lines[number] = lines[number].at(kept)
        return sorted(lines, key=lambda line: rank(line.colour))


def _extremes(y: np.ndarray, most: int) -> np.ndarray:
    """Indices of each block's lowest and highest value and first NaN, and of both ends: about `most`."""
    step, breaks = -(-2 * len(y) // most), np.isnan(y)
    starts = np.arange(0, len(y), step)
    low, high = (np.where(breaks, least, y) for least in (np.inf, -np.inf))
    indices = [start + part[start : start + step].argmin() for part in (low, -high, ~breaks) for start in starts]
    return np.array([0, *indices, len(y) - 1])


@dataclass(frozen=True)
class Chart:
    """Panels side by side over one legend, which lists each text once, and a label without its notes if it has any.

    crosshair: panels of one x axis, which plotly draws below each other: all lines' values at the x under the mouse.
    """

    title: str
    panels: tuple[Panel, ...]
    crosshair: bool = False

    @property
    def noted(self) -> set[str]:
        """The labels that have a note in one of the panels."""
        return {line.label for panel in self.panels for line in panel.lines if line.note}

    @property
    def seen(self) -> str:
        """What its panels show, as sentences, and what is not drawn; with a crosshair also what y axes leave out."""
        notes = [
            f"{panel.title.capitalize()}: {panel.outside}." for panel in self.panels if self.crosshair and panel.outside
        ]
        if any(line.is_long for panel in self.panels for line in panel.lines):
            notes.append(f"Long lines (over {DRAWN} values, no interval) show each block's lowest and highest value.")
        return " ".join([*(panel.seen for panel in self.panels if panel.seen), *notes])


@dataclass(frozen=True)
class Heatmap:
    """Values by row and column on one pair of axes, coloured from `low` to `high`; NaN is blank.

    x, y: what columns and rows stand for, numbers or texts. ends: left, right, bottom and top of the axes. texts:
    hover text of each value; template: plotly's, in place of it. ticks: places and labels, default plotly's.
    numbers: texts written on the values. muted: hatched values. mark: a circled place. m: dashed line at this x.
    """

    title: str
    values: np.ndarray
    x: np.ndarray
    y: np.ndarray
    ends: tuple[float, float, float, float]
    low: float
    high: float
    x_title: str = ""
    y_title: str = ""
    x_ticks: Mapping[float, str] | None = None
    y_ticks: Mapping[float, str] | None = None
    texts: np.ndarray | None = None
    template: str = "%{customdata}"
    numbers: np.ndarray | None = None
    muted: np.ndarray | None = None
    mark: Point | None = None
    m: int | None = None

    @property
    def number_colours(self) -> np.ndarray:
        """Colours of `numbers` that read on the values' own: white from where it is clearer than black."""
        limit = np.where((self.values > 0) & (self.low < 0), 0.66, 0.71)  # reds of RdBu_r darken before blues
        return np.where(np.abs(self.values) > limit * self.high, "#FFFFFF", "#010101")


@dataclass(frozen=True)
class Heatmaps:
    """Heatmaps in rows and columns over one colour scale; rows share their y axis, columns their x axis.

    colours: the name of a scale that plotly and matplotlib know, or (share, colour) stops. ticks: texts at values of
    the first heatmap's scale. width: inches of all columns, which are as wide as `columns` says; height: pixels of a
    row. note: lines below. seen: a sentence on what they show.
    """

    title: str
    colour_title: str
    colours: str | tuple[tuple[float, str], ...]
    ticks: Mapping[float, str]
    cells: tuple[tuple[Heatmap, ...], ...]
    width: float
    height: int
    columns: tuple[float, ...]
    note: tuple[str, ...] = ()
    seen: str = ""


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

    def written(self, value: float) -> str:
        """A value as a tile shows it."""
        return str(round(100 * value)) if self.digits is None else f"{value:z.{self.digits}f}"


SHARES = Scale()
SCORES = Scale(0.0, 1.0, 2)
"""0: nothing, 1: all of the loss."""
Drawable = Chart | Heatmaps
Figure = Drawable | Raster


def escaped(text: str) -> str:
    """A text in which plotly sees no markup."""
    return html.escape(text, quote=False)


def value_name(values: xr.DataArray) -> str:
    """Name of an array's values."""
    return str(values.attrs.get("long_name", values.name))


def value_title(values: xr.DataArray) -> str:
    """Name and unit of an array's values."""
    return f"{value_name(values)} ({values.attrs.get('units', 'activation')})"


def trained_rule(trained: int) -> Rule:
    """The line that marks the trained window M, in tokens."""
    return Rule(trained, f"trained to M = {trained}", BLACK, vertical=True)


def line_of_positions(values: xr.DataArray, label: str, look: Look, faint: bool = False, note: str = "") -> Line:
    """One method's values over position, broken where positions were not captured."""
    position = values["position"].values
    gaps = np.flatnonzero(np.diff(position) != 1) + 1
    x, y = (np.insert(axis.astype(float), gaps, np.nan) for axis in (position, values.values))
    return Line(label, x, y, *look, tokens=token_texts(values, gaps), faint=faint, note=note)


def token_texts(values: xr.DataArray, gaps: np.ndarray | None = None) -> tuple[str, ...]:
    """Hover texts: the token at each position, blank at `gaps`; none for one repeated word."""
    if "token" not in values.coords or values["token"].ndim != 1:
        return ()
    tokens = values["token"].values
    if len(set(tokens[1:].tolist())) < 2:
        return ()
    texts = np.array([f"token {token!r}" for token in tokens.tolist()], dtype=object)
    return tuple(texts if gaps is None else np.insert(texts, gaps, ""))


def grouped(texts: Iterable[tuple[str, str]], most: int = 4) -> str:
    """Pairs of name and text as a sentence, empty for none: those of one text together, more than `most` counted."""
    names: dict[str, list[str]] = {}
    for name, text in texts:
        names.setdefault(text, []).append(name)
    parts = [f"{', '.join(few) if len(few) <= most else f'{len(few)} methods'}: {text}" for text, few in names.items()]
    return f"{'; '.join(parts)}." if parts else ""


def farthest_tile(blocks: Sequence[Heatmap]) -> str:
    """The tile farthest from 0, as its hover text has it; empty where there is none."""
    known = [
        (abs(block.values[at]), block.texts[at])
        for block in blocks
        if block.texts is not None
        for at in zip(*np.nonzero(np.isfinite(block.values)), strict=True)
    ]
    return f"Farthest from 0: {max(known, key=lambda pair: pair[0])[1]}." if known else "Nothing was measured."


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


def tiles(
    title: str,
    columns: Sequence[str],
    layers: Sequence[int],
    triples: Mapping[tuple[int, int], Iterable[float]],
    scale: Scale = SHARES,
    named: str = "",
) -> Heatmap:
    """Tiles of (value, low, high) by layer and number of the column; NaN, and blank, for the others.

    Hatched where a value is not clearly different from 0. named: the column in hover texts; default: by its title.
    """
    values, low, high = np.full((3, len(layers), len(columns)), np.nan)
    numbers, texts = np.full((2, *values.shape), "", dtype=object)
    for (layer, column), triple in triples.items():
        if layer in layers and 0 <= column < len(columns):
            at = layers.index(layer), column
            values[at], low[at], high[at] = triple
            interval = percent if scale.digits is None else partial(ranged, digits=scale.digits)
            where = f"layer {layer}, {named or f'{title} {columns[column]}'.strip()}"
            texts[at] = f"{where}: {interval(values[at], low[at], high[at])}"
            numbers[at] = scale.written(values[at]) if np.isfinite(values[at]) else ""
    if np.isfinite(values).sum() > WRITTEN:
        numbers[:] = ""
    clear = (low > 0) | (high < 0) | ((low == 0) & (high == 0))
    return Heatmap(
        title,
        values,
        np.arange(len(columns)),
        np.arange(len(layers)),
        (-0.5, len(columns) - 0.5, len(layers) - 0.5, -0.5),
        scale.low,
        scale.high,
        y_title="layer",
        x_ticks=dict(enumerate(columns)),
        y_ticks=dict(enumerate(map(str, layers))),
        texts=texts,
        numbers=numbers,
        muted=np.isfinite(values) & ~clear,
    )


def tile_map(title: str, colour_title: str, blocks: Sequence[Heatmap], scale: Scale = SHARES) -> Heatmaps:
    """Blocks of `tiles` side by side over the same layers."""
    columns = tuple(float(len(block.x)) for block in blocks)
    sign = "%" if scale.digits is None else ""
    hatched = any(block.muted is not None and block.muted.any() for block in blocks)
    empty = any(np.isnan(block.values).any() for block in blocks)
    return Heatmaps(
        title,
        colour_title,
        "RdBu_r" if scale.low < 0 else "Blues",
        {float(value): scale.written(value) + sign for value in np.linspace(scale.low, scale.high, 5)},
        (tuple(blocks),),
        width=sum(columns) * float(np.clip(6.4 / sum(columns), 0.14, 0.4)),
        height=26 * len(blocks[0].y),
        columns=columns,
        note=tuple(text for text, is_there in zip(NOTE, (hatched, empty), strict=True) if is_there),
        seen=farthest_tile(blocks),
    )


def at_length(model: str, trained_length: int, length: int) -> str:
    """Model and length in tokens, as in titles."""
    return f"{model}, {length} tokens ({length / trained_length:.3g}x the trained length)"
