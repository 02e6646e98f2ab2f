"""What a method looks like: the same colour, dash and marker in every figure, and no two of them the same in grey."""

from __future__ import annotations

import zlib
from functools import cache
from importlib.metadata import entry_points
from itertools import product

from mesa.methods import ENTRY_POINTS

Look = tuple[str, str, str]
BLACK, RED, GREY = "#000000", "#CC0000", "#666666"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
STYLES: dict[str, Look] = {  # Okabe and Ito's palette, wine, grey and brown added; (colour, dash, symbol)
    "origin": (BLACK, "solid", "circle"),
    "nope": ("#8C6D31", "longdash", "x"),
    "rerope": ("#0072B2", "dash", "square"),
    "leaky-rerope": ("#56B4E9", "dashdot", "square"),
    "dynamic-ntk": ("#E69F00", "solid", "triangle-up"),
    "ntk-mixed": ("#F0E442", "longdash", "triangle-up"),
    "lm-infinite": ("#D55E00", "dashdot", "triangle-down"),
    "streaming-llm": ("#999999", "dot", "triangle-down"),
    "self-extend": ("#CC79A7", "dash", "diamond"),
    "stair": ("#882255", "solid", "diamond"),
    "mesa": ("#009E73", "dot", "diamond"),
}
"""Of the methods that come with the package."""

_COLOURS = ("#6F63C5", "#B5651D", "#2E8B9A", "#AA4499", "#5F8A1E", "#C4516C", "#4F7CAC")
_SYMBOLS = ("cross", "star", "pentagon", "triangle-left", "triangle-right", "hexagon")
_OTHERS = tuple(
    (_COLOURS[number % len(_COLOURS)], dash, symbol) for number, (dash, symbol) in enumerate(product(DASHES, _SYMBOLS))
)


def style(method: str) -> Look:
    """A method's colour, dash and symbol; those of other packages take one that no method here has."""
    if method in STYLES:
        return STYLES[method]
    return _installed().get(method) or _OTHERS[_first(method)]


@cache
def _installed() -> dict[str, Look]:
    """Styles of the methods that installed packages name, each its own."""
    free, found = list(_OTHERS), {}
    for name in sorted(point.name for point in entry_points(group=ENTRY_POINTS)):
        look = next((each for each in _OTHERS[_first(name) :] + _OTHERS if each in free), _OTHERS[_first(name)])
        if look in free:
            free.remove(look)
        found[name] = look
    return found


def _first(method: str) -> int:
    """Where among the styles a name is looked up first: the same on every machine."""
    return zlib.crc32(method.encode()) % len(_OTHERS)
