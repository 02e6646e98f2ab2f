"""Figures on narrow pages: panels below each other, so that nothing is cut or scrolls; the least width of wide ones."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from probe.figures.figure_data import Block, Chart, Drawable, Grid, TileMap, log_ticks

NARROW = 760
"""Pixels of a page on which panels stand below each other."""
LEAST = 300
"""Pixels that every figure takes."""
_PANEL, _COLUMN, _TILE, _SIDES = 330, 75, 24, 110  # pixels, least width of a panel, a heatmap, a tile, and of axes
_PANEL_HEIGHT, _BETWEEN_PANELS = 300, 95
_LENGTHS_APART = 0.14  # of an axis' width: from one length to the next
_TITLE_CHARACTERS = 36  # in a line of a panel's title
_ENTRY, _LINE, _AXIS = 21, 17, 70  # pixels: of a legend's entry, of each further line of it, and of the axis above it
_REGIONS = 2  # of a heatmap, side by side
_GRID_HEIGHT, _LAYER_HEIGHT, _BELOW_GRID = 220, 150, 115
_ROW_HEIGHT, _BELOW_BLOCK = 26, 60
_WIDTH = 270  # pixels for what stands side by side: a label in the legend, tiles
_MARGINS = {"margin.l": 50, "margin.r": 15}  # so that tiles have room
_NUMBERED_TILE, _PLAIN_TILE = 24, 7


def least_width(figure: Drawable) -> int:
    """Pixels below which parts of the figure would overlap, unless it has its `mobile_layout`."""
    if isinstance(figure, Chart):
        return max(LEAST, len(figure.panels) * _PANEL)
    if isinstance(figure, Grid):
        return max(LEAST, len(figure.cells[0]) * _COLUMN + _SIDES)
    if isinstance(figure, TileMap):
        return max(LEAST, sum(len(block.columns) for block in figure.blocks) * _TILE + _SIDES)
    return LEAST


def mobile_layout(figure: Drawable, drawn: go.Figure) -> dict[str, Any]:
    """Changes of the layout of `drawn` for a narrow page; none for a drift map, which fits as it is.

    Panels, methods and blocks stand below each other, the legend in one column under them all.
    """
    if isinstance(figure, Chart):
        return _chart(figure, drawn)
    if isinstance(figure, Grid):
        return _grid(figure, drawn)
    return _tiles(figure, drawn) if isinstance(figure, TileMap) else {}


def _chart(figure: Chart, drawn: go.Figure) -> dict[str, Any]:
    layout: Any = drawn.layout
    traces: Any = drawn.data
    breaks = [trace.name.count("<br>") for trace in traces if trace.showlegend]
    below = _AXIS + _ENTRY * len(breaks) + _LINE * sum(breaks)
    inner = _stacked(len(figure.panels), _PANEL_HEIGHT, _BETWEEN_PANELS)
    legend = {"x": 0, "xref": "container", "y": 0, "yref": "container", "yanchor": "bottom"}
    legend |= {"entrywidth": _WIDTH, "entrywidthmode": "pixels", "maxheight": below, "traceorder": "normal"}
    changes: dict[str, Any] = {"height": inner + layout.margin.t + below, "margin.b": below}
    changes |= {f"legend.{name}": value for name, value in legend.items()}
    titles = iter(range(len(figure.panels)))
    for number, panel in enumerate(figure.panels):
        axis, top = _axis(number), 1 - number * (_PANEL_HEIGHT + _BETWEEN_PANELS) / inner
        changes |= _domains(axis, [0, 1], [max(0.0, top - _PANEL_HEIGHT / inner), top])
        if panel.log_x and panel.x_ticks:
            ticks = list(log_ticks(panel.x_ticks, _LENGTHS_APART))
            changes |= _ticks(axis, ticks, [str(tick) for tick in ticks])
        if panel.title:
            at = next(titles)
            text = "<br>".join(wrap(layout.annotations[at].text, _TITLE_CHARACTERS))
            title = {"x": 0.5, "y": top, "text": text, "font.size": 13}
            changes |= {f"annotations[{at}].{name}": value for name, value in title.items()}
    return changes


def _grid(figure: Grid, drawn: go.Figure) -> dict[str, Any]:
    rows, columns, regions = len(figure.cells), len(figure.cells[0]), len(figure.region_titles)
    lines = -(-regions // _REGIONS)  # of a method
    height = max(_GRID_HEIGHT, rows * _LAYER_HEIGHT)
    inner = _stacked(lines * len(figure.group_titles), height, _BELOW_GRID)
    changes = _height(drawn, inner)
    for column in range(columns):
        group, region = divmod(column, regions)
        line, place = group * lines + region // _REGIONS, region % _REGIONS
        top = inner - line * (height + _BELOW_GRID)
        across = [0, 1] if regions == 1 else [[0, 0.48], [0.52, 1]][place]
        for row in range(rows):
            axis = _axis(row * columns + column)
            ends = (top - height * (row + 0.95) / rows, top - height * row / rows)
            changes |= _domains(axis, across, [end / inner for end in ends])
            if place == 0:
                changes |= _labelled(axis, figure.row_titles[row])
        if region == 0:
            changes[f"annotations[{group}].y"] = top / inner
    return changes


def _tiles(figure: TileMap, drawn: go.Figure) -> dict[str, Any]:
    lines = _lines(figure.blocks)
    height = len(figure.rows) * _ROW_HEIGHT
    inner = _stacked(len(lines), height, _BELOW_BLOCK)
    changes = _height(drawn, inner)
    titles = iter(range(len(figure.blocks)))
    for line, numbers in enumerate(lines):
        top = 1 - line * (height + _BELOW_BLOCK) / inner
        whole, left = sum(_block_width(figure.blocks[number]) for number in numbers), 0.0
        for number in numbers:
            block, axis = figure.blocks[number], _axis(number)
            right = left + _block_width(block) / whole
            across = [left + 0.02 * (left > 0), min(right, 1.0)]
            changes |= _domains(axis, across, [max(0.0, top - height / inner), top])
            pixels = _WIDTH * (across[1] - across[0]) / len(block.columns)
            step = -(-max(len(label) * 7 + 5 for label in block.columns) // int(pixels))
            if step > 1 and all(label.isdigit() for label in block.columns):
                ticks = list(range(0, len(block.columns), step))
                changes |= _ticks(axis, ticks, [block.columns[tick] for tick in ticks])
            if left == 0:
                changes |= _labelled(axis, figure.row_title)
            if block.title:
                title = f"annotations[{next(titles)}]"
                changes |= {f"{title}.x": sum(across) / 2, f"{title}.y": top}
            left = right
    return changes


def _lines(blocks: tuple[Block, ...]) -> list[list[int]]:
    """Numbers of the blocks that have room side by side."""
    lines: list[list[int]] = []
    room = 0
    for number, block in enumerate(blocks):
        room -= _block_width(block)
        if room < 0:
            lines, room = [*lines, []], _WIDTH - _block_width(block)
        lines[-1].append(number)
    return lines


def _block_width(block: Block) -> int:
    """Least width of a block in pixels."""
    return len(block.columns) * (_NUMBERED_TILE if (block.texts != "").any() else _PLAIN_TILE)


def _stacked(lines: int, height: int, between: int) -> int:
    """Pixels of so many lines below each other."""
    return lines * (height + between) - between


def _height(drawn: go.Figure, inner: int) -> dict[str, Any]:
    margin: Any = drawn.layout["margin"]
    return _MARGINS | {"height": inner + margin.t + margin.b}


def _domains(axis: str, x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    return {f"xaxis{axis}.domain": x, f"yaxis{axis}.domain": y}


def _ticks(axis: str, values: list[int], texts: list[str]) -> dict[str, Any]:
    return {f"xaxis{axis}.tickvals": values, f"xaxis{axis}.ticktext": texts}


def _labelled(axis: str, title: str) -> dict[str, Any]:
    """A y axis that is now the first of its line."""
    return {f"yaxis{axis}.showticklabels": True, f"yaxis{axis}.title.text": title}


def _axis(number: int) -> str:
    """The suffix of plotly's name for the axis of that number, counted from 0."""
    return str(number + 1) if number else ""
