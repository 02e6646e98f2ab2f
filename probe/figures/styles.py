"""What a method looks like: the same colour, dash and marker in every figure, also in grey."""

from __future__ import annotations

import zlib
from functools import cache
from importlib.metadata import entry_points
from itertools import product

from mesa.methods import ENTRY_POINTS

Look = tuple[str, str, str]
BLACK, RED, GREY = "#000000", "#CC0000", "#666666"
FAINT = 0.5
"""Opacity of what does not count."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
STYLES: dict[str, Look] = {  # after Okabe and Ito, at least 3:1 on white; (colour, dash, symbol)
    "origin": (BLACK, "solid", "circle"),
    "nope": ("#8C6D31", "longdash", "x"),
    "rerope": ("#0072B2", "dash", "square"),
    "leaky-rerope": ("#3A95D0", "dashdot", "square"),
    "pi": ("#6B8E00", "dashdot", "triangle-up"),
    "yarn": ("#3F7F4F", "solid", "square"),
    "cope": ("#2F8F8B", "longdash", "square"),
    "dca": ("#8E5BB0", "longdash", "circle"),
    "string": ("#B5482A", "dash", "triangle-down"),
    "lampe": ("#C2477F", "dashdot", "circle"),
    "crop": ("#6B6B88", "longdashdot", "x"),
    "dynamic-ntk": ("#C47F00", "solid", "triangle-up"),
    "ntk-mixed": ("#9A8F00", "longdash", "triangle-up"),
    "lm-infinite": ("#D55E00", "dashdot", "triangle-down"),
    "streaming-llm": ("#7A8B99", "dot", "triangle-down"),
    "self-extend": ("#CC79A7", "dash", "diamond"),
    "stair": ("#A8326E", "solid", "diamond"),
    "mesa": ("#009E73", "dot", "diamond"),
}
"""Of the methods that come with the package."""

_COLOURS = ("#6F63C5", "#B5651D", "#2E8B9A", "#AA4499", "#5F8A1E", "#C4516C", "#4F7CAC")
_SYMBOLS = ("cross", "star", "pentagon", "triangle-left", "triangle-right", "hexagon")
_OTHERS = tuple(
    (_COLOURS[number % len(_COLOURS)], dash, symbol) for number, (dash, symbol) in enumerate(product(DASHES, _SYMBOLS))
)


def style(method: str) -> Look:
    """A method's colour, dash and symbol: those of an installed one differ from all others'."""
    return STYLES.get(method) or _installed().get(method) or nth(zlib.crc32(method.encode()))


def rank(colour: str) -> int:
    """Where in a legend what has the colour stands: methods in the order of `STYLES`, all others behind them."""
    return next((place for place, look in enumerate(STYLES.values()) if look[0] == colour), len(STYLES))


def nth(number: int) -> Look:
    """The look of the number-th of what is not a method, such as prompts: one that no method of the package has."""
    return _OTHERS[number % len(_OTHERS)]


@cache
def _installed() -> dict[str, Look]:
    """Looks of the methods that installed packages name."""
    return {name: nth(at) for at, name in enumerate(sorted(point.name for point in entry_points(group=ENTRY_POINTS)))}
