"""What plotly draws our figures on: of its template `plotly_white` what they use, a tenth of it."""

from __future__ import annotations

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
