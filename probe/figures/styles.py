"""What a method looks like: the same colour, dash and marker in every figure, also in grey."""

from __future__ import annotations

import zlib
from functools import cache
from importlib.metadata import entry_points
from itertools import product

from mesa.methods import ENTRY_POINTS, METHODS

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
    return next((place for place, look in enumerate(STYLES.values()) if look[0] == colour), len(STYLES))


def nth(number: int) -> Look:
    """The look of the number-th of what is not a method, such as prompts: one that no method of the package has."""
    return _OTHERS[number % len(_OTHERS)]


@cache
def _installed() -> dict[str, Look]:
    """Looks of the methods that installed packages name."""
    return {name: nth(at) for at, name in enumerate(sorted(point.name for point in entry_points(group=ENTRY_POINTS)))}
