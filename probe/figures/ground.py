"""What plotly draws our figures on: of its template `plotly_white` what they use, a tenth of it."""

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


def panels(rows: int, columns: int, **options: Any) -> go.Figure:
    """`make_subplots` on this ground; plotly would put its whole default template, 7 kB, into every figure."""
    ground = go.Figure(layout={"template": _TEMPLATE, "font": _FONT})
    return make_subplots(rows, columns, figure=ground, **options)


def colour_bar(ticks: Mapping[float, str]) -> dict[str, Any]:
    """A colour scale along the lower edge of a figure of any width; `colour_title` stands above it."""
    place = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    size = {"lenmode": "pixels", "len": 240, "thickness": 12}
    return place | size | {"tickvals": list(ticks), "ticktext": list(ticks.values())}


def colour_title(title: str, below: int) -> dict[str, Any]:
    """The scale's title as an annotation, as plotly loses its own there; below: pixels under the plot."""
    place = {"x": 0, "xref": "paper", "xanchor": "left", "y": 0, "yref": "paper", "yanchor": "bottom"}
    text = {"text": html.escape(title, quote=False), "font": {"size": 12}, "showarrow": False}
    return place | text | {"yshift": _BAR - below}
