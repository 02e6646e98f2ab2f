"""Figures on pages of any width: the title as text that wraps, and the least width at which nothing overlaps."""

from __future__ import annotations

import html
import json
from typing import Any

import plotly.graph_objects as go

from probe.figures.cells import Cells
from probe.figures.drift_map import DriftMap
from probe.figures.interactive import draw
from probe.figures.marks import Chart, Grid, apart

_PANEL, _COLUMN, _CELL, _SIDES, _LEAST = 330, 75, 24, 150, 300  # pixels
_HEAD = 40  # pixels that the title took
NARROW = 760
"""Pixels of a page on which panels stand below each other."""
_TALL, _BETWEEN = 300, 95  # pixels: of such panels, and from one to the next
_APART = 0.14  # of an axis' width: from one length to the next on a narrow page
_STACK = f"""<script>
if (innerWidth < {NARROW}) {{
  const room = document.currentScript.previousElementSibling;
  room.style.minWidth = "{_LEAST}px";
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


def below_each_other(figure: Chart | Grid | Cells | DriftMap, drawn: go.Figure) -> dict[str, Any]:
    """What of a chart's `drawn` layout is changed so that its panels stand below each other; nothing of one panel."""
    if not isinstance(figure, Chart) or len(figure.panels) == 1:
        return {}
    layout: Any = drawn.layout
    count, margin = len(figure.panels), layout.margin
    inner = count * _TALL + (count - 1) * _BETWEEN
    changed: dict[str, Any] = {"height": inner + margin.t + margin.b, "legend.y": -_BETWEEN / inner}
    for number in range(count):
        axis, top = str(number + 1) if number else "", 1 - number * (_TALL + _BETWEEN) / inner
        changed |= {f"xaxis{axis}.domain": [0, 1], f"yaxis{axis}.domain": [max(0.0, top - _TALL / inner), top]}
        ticks = figure.panels[number].x_ticks
        if figure.panels[number].log_x and ticks:
            few = list(apart(ticks, _APART))
            changed |= {f"xaxis{axis}.tickvals": few, f"xaxis{axis}.ticktext": [str(tick) for tick in few]}
        changed |= {f"annotations[{number}].x": 0.5, f"annotations[{number}].y": top}  # its title
    return changed


def least_width(figure: Chart | Grid | Cells | DriftMap) -> int:
    """Pixels below which parts of the figure would overlap: a narrower page scrolls it sideways."""
    if isinstance(figure, Chart):
        return max(_LEAST, len(figure.panels) * _PANEL)
    if isinstance(figure, Grid):
        return max(_LEAST, len(figure.cells[0]) * _COLUMN + _SIDES)
    if isinstance(figure, Cells):
        return max(_LEAST, sum(len(block.columns) for block in figure.blocks) * _CELL + _SIDES)
    return _LEAST


def embedded(figure: Chart | Grid | Cells | DriftMap, plotly_js: bool | str = False, div_id: str | None = None) -> str:
    """The figure's HTML with its title as a caption; plotly_js: as in `to_html`, False for a page that has it."""
    config = {"responsive": True, "displaylogo": False}
    drawn = untitled(figure)
    options = {"full_html": False, "include_plotlyjs": plotly_js, "config": config, "div_id": div_id}
    plot = drawn.to_html(validate=False, **options)
    title = html.escape(figure.title, quote=False)
    sides = "margin: 1em 0; overflow-x: auto"
    narrow = below_each_other(figure, drawn)
    told = html.escape(json.dumps(narrow))
    inner = (
        f'<div style="min-width: {least_width(figure)}px" data-narrow="{told}">{plot}</div>{_STACK if narrow else ""}'
    )
    return f'<figure style="{sides}"><figcaption style="position: sticky; left: 0">{title}</figcaption>{inner}</figure>'
