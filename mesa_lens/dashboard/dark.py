"""Pictures drawn for white paper, on a dark page."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.collections import Collection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

_GROUND, _INK = 0.1, 0.92  # what white and black become
_GREY = 0.05  # the most that a grey's channels are apart
_COLOURED = {
    Line2D: ("color", "markeredgecolor", "markerfacecolor"),
    Text: ("color",),
    Patch: ("edgecolor", "facecolor"),
}


def darkened(figure: Figure) -> Figure:
    """The figure with light ink on a dark ground: greys turned round, colours as they are."""
    for kind, names in _COLOURED.items():
        for artist in figure.findobj(kind):
            turned = {name: _turned(getattr(artist, f"get_{name}")()) for name in names}
            artist.set(**turned)  # all at once: a marker is asked for its line's colour
    for artist in figure.findobj(Collection):
        artist.set_edgecolor([_turned(each) for each in artist.get_edgecolor()])
        artist.set_facecolor([_turned(each) for each in artist.get_facecolor()])
    return figure


def _turned(colour: Any) -> Any:
    if isinstance(colour, str) and colour.lower() in ("none", "auto"):
        return colour
    red, green, blue, alpha = to_rgba(colour)
    if max(red, green, blue) - min(red, green, blue) > _GREY:
        return red, green, blue, alpha
    grey = float(np.interp((red + green + blue) / 3, (0, 1), (_INK, _GROUND)))
    return grey, grey, grey, alpha
