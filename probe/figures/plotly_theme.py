"""The theme of all plotly figures: the part of `plotly_white` that they use, a tenth of it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

_FONT = {"family": "Helvetica, Arial, sans-serif", "size": 13, "color": "#222222"}
_AXIS = {
    "automargin": True,
    "gridcolor": "#EBF0F8",
    "linecolor": "#EBF0F8",
    "ticks": "",
    "title": {"standoff": 15},
    "zerolinecolor": "#EBF0F8",
    "zerolinewidth": 2,
}
_BAR = 40  # pixels, of a colour scale
_TEMPLATE = {
    "data": {"heatmap": [{"type": "heatmap", "colorbar": {"outlinewidth": 0, "ticks": ""}}]},
    "layout": {
        "autotypenumbers": "strict",
        "hoverlabel": {"align": "left"},
        "hovermode": "closest",
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "title": {"x": 0.05},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    },
}


def subplots(rows: int, columns: int, **options: Any) -> go.Figure:
    """`make_subplots` in this theme; plotly would put its whole default template, 7 kB, into every figure."""
    figure = go.Figure(layout={"template": _TEMPLATE, "font": _FONT})
    return make_subplots(rows, columns, figure=figure, **options)


def escaped(text: str) -> str:
    """A text in which plotly sees no markup."""
    return html.escape(text, quote=False)


def top_title(text: str) -> dict[str, Any]:
    """The layout's title at the upper edge of a figure of any height."""
    return {"text": escaped(text), "x": 0.01, "y": 1, "yanchor": "top", "pad": {"t": 16}}


def colour_bar(ticks: Mapping[float, str]) -> dict[str, Any]:
    """A colour scale along the lower edge of a figure of any width; `colour_title` stands above it."""
    place = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    size = {"lenmode": "pixels", "len": 240, "thickness": 12}
    return place | size | {"tickvals": list(ticks), "ticktext": list(ticks.values())}


def colour_title(title: str, below: int) -> dict[str, Any]:
    """The scale's title as an annotation, as plotly loses its own there; below: pixels under the plot."""
    place = {"x": 0, "xref": "paper", "xanchor": "left", "y": 0, "yref": "paper", "yanchor": "bottom"}
    text = {"text": escaped(title), "font": {"size": 12}, "showarrow": False}
    return place | text | {"yshift": _BAR - below}
