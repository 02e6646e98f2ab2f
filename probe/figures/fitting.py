"""Figures on pages of any width: the title as text that wraps, and the least width at which nothing overlaps."""

from __future__ import annotations

import html
import json
from typing import Any

import plotly.graph_objects as go

from probe.figures.cells import Cells
from probe.figures.drift_map import DriftMap
from probe.figures.interactive import draw
from probe.figures.marks import Chart, Grid
from probe.figures.narrow import NARROW, narrowed

LEAST = 300
"""Pixels that every figure takes."""
_PANEL, _COLUMN, _CELL, _SIDES = 330, 75, 24, 110  # pixels
_HEAD = 40  # pixels that the title took
_STACK = f"""<script>
if (innerWidth < {NARROW}) {{
  const room = document.currentScript.previousElementSibling;
  room.style.minWidth = "{LEAST}px";
  const plot = room.querySelector(".plotly-graph-div"), changed = JSON.parse(room.dataset.narrow);
  plot.style.height = plot.parentElement.style.height = changed.height + "px";
  Plotly.relayout(plot, {{...changed, width: null, autosize: true}}).then(() => Plotly.Plots.resize(plot));
}}
</script>"""


def untitled(figure: Chart | Grid | Cells | DriftMap) -> go.Figure:
    """The plotly figure without its title, and without the room for it."""
    drawn = draw(figure)
    layout: Any = drawn.layout
    layout.title.text, layout.height = None, layout.height - _HEAD
    layout.margin.update(t=layout.margin.t - _HEAD, pad=0)
    return drawn


def least_width(figure: Chart | Grid | Cells | DriftMap) -> int:
    """Pixels below which parts of the figure would overlap, unless it is `narrowed`."""
    if isinstance(figure, Chart):
        return max(LEAST, len(figure.panels) * _PANEL)
    if isinstance(figure, Grid):
        return max(LEAST, len(figure.cells[0]) * _COLUMN + _SIDES)
    if isinstance(figure, Cells):
        return max(LEAST, sum(len(block.columns) for block in figure.blocks) * _CELL + _SIDES)
    return LEAST


def embedded(figure: Chart | Grid | Cells | DriftMap, plotly_js: bool | str = False, div_id: str | None = None) -> str:
    """The figure's HTML with its title as a caption; plotly_js: as in `to_html`, False for a page that has it."""
    config = {"responsive": True, "displaylogo": False}
    drawn = untitled(figure)
    options = {"full_html": False, "include_plotlyjs": plotly_js, "config": config, "div_id": div_id}
    plot = drawn.to_html(validate=False, **options)
    title = html.escape(figure.title, quote=False)
    sides = "margin: 1em 0; overflow-x: auto"
    narrow = narrowed(figure, drawn)
    told = html.escape(json.dumps(narrow))
    stack = _STACK if narrow else ""
    inner = f'<div style="min-width: {least_width(figure)}px" data-narrow="{told}">{plot}</div>{stack}'
    return f'<figure style="{sides}"><figcaption style="position: sticky; left: 0">{title}</figcaption>{inner}</figure>'
