"""Figures on a page as narrow as a phone's: what of a wide figure is changed so that nothing is cut or scrolls."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from probe.figures.cells import Block, Cells
from probe.figures.drift_map import DriftMap
from probe.figures.marks import Chart, Grid, apart

NARROW = 760
"""Pixels of a page on which panels stand below each other."""
_TALL, _BETWEEN = 300, 95  # pixels: of a chart's panels, and from one to the next
_APART = 0.14  # of an axis' width: from one length to the next
_TITLE = 36  # characters in a line of a panel's title
_ENTRY, _LINE, _AXIS = 21, 17, 70  # pixels: of a legend's entry, of each further line of it, and of the axis above it
_REGIONS = 2  # of a heatmap, side by side
_MAP, _LAYER, _BELOW_MAP = 220, 150, 115  # pixels: of a method's heatmaps and a layer of them at least, and below them
_ROW, _BELOW_BLOCK = 26, 60  # pixels: of a row of cells, and from a line of blocks to the next
_WIDTH = 270  # pixels for what stands side by side: a label in the legend, cells
_SIDES = {"margin.l": 50, "margin.r": 15}  # so that cells have room
_NUMBER, _CELL = 24, 7  # pixels: of a cell with its number, and without one


def narrowed(figure: Chart | Grid | Cells | DriftMap, drawn: go.Figure) -> dict[str, Any]:
    """What of the layout of `drawn` is changed on a narrow page; nothing of a drift map, which fits as it is.

    Panels, methods and blocks stand below each other, the legend in one column under them all.
    """
    if isinstance(figure, Chart):
        return _chart(figure, drawn)
    if isinstance(figure, Grid):
        return _grid(figure, drawn)
    return _cells(figure, drawn) if isinstance(figure, Cells) else {}


def _chart(figure: Chart, drawn: go.Figure) -> dict[str, Any]:
    layout: Any = drawn.layout
    traces: Any = drawn.data
    listed = [trace.name.count("<br>") for trace in traces if trace.showlegend]
    below = _AXIS + _ENTRY * len(listed) + _LINE * sum(listed)
    count = len(figure.panels)
    inner = count * _TALL + (count - 1) * _BETWEEN
    changed: dict[str, Any] = {"height": inner + layout.margin.t + below, "margin.b": below}
    ends = {"x": 0, "xref": "container", "y": 0, "yref": "container", "yanchor": "bottom"}
    column = {"entrywidth": _WIDTH, "entrywidthmode": "pixels", "maxheight": below, "traceorder": "normal"}
    changed |= {f"legend.{name}": value for name, value in (ends | column).items()}
    for number, panel in enumerate(figure.panels):
        axis, top = _axis(number), 1 - number * (_TALL + _BETWEEN) / inner
        changed |= {f"xaxis{axis}.domain": [0, 1], f"yaxis{axis}.domain": [max(0.0, top - _TALL / inner), top]}
        if panel.log_x and panel.x_ticks:
            few = list(apart(panel.x_ticks, _APART))
            changed |= {f"xaxis{axis}.tickvals": few, f"xaxis{axis}.ticktext": [str(tick) for tick in few]}
    titles = [number for number, panel in enumerate(figure.panels) if panel.title]
    for at, number in enumerate(titles):
        title = f"annotations[{at}]"
        text = "<br>".join(wrap(layout.annotations[at].text, _TITLE))
        top = changed[f"yaxis{_axis(number)}.domain"][1]
        changed |= {f"{title}.x": 0.5, f"{title}.y": top, f"{title}.text": text, f"{title}.font.size": 13}
    return changed


def _grid(figure: Grid, drawn: go.Figure) -> dict[str, Any]:
    layout: Any = drawn.layout
    rows, each = len(figure.cells), len(figure.region_titles)
    lines = -(-each // _REGIONS)  # of a method
    tall = max(_MAP, rows * _LAYER)
    inner = _inner(lines * len(figure.group_titles), tall, _BELOW_MAP)
    changed: dict[str, Any] = _SIDES | {"height": inner + layout.margin.t + layout.margin.b}
    for column in range(len(figure.cells[0])):
        group, region = divmod(column, each)
        line, place = group * lines + region // _REGIONS, region % _REGIONS
        top = inner - line * (tall + _BELOW_MAP)
        across = [0, 1] if each == 1 else [[0, 0.48], [0.52, 1]][place]
        for row in range(rows):
            axis = _axis(row * len(figure.cells[0]) + column)
            ends = (top - tall * (row + 0.95) / rows, top - tall * row / rows)
            changed |= {f"xaxis{axis}.domain": across, f"yaxis{axis}.domain": [end / inner for end in ends]}
            if place == 0:
                changed |= _labelled(axis, figure.row_titles[row])
        if region == 0:
            changed[f"annotations[{group}].y"] = top / inner
    return changed


def _cells(figure: Cells, drawn: go.Figure) -> dict[str, Any]:
    layout: Any = drawn.layout
    lines = _lines(figure.blocks)
    tall = len(figure.rows) * _ROW
    inner = _inner(len(lines), tall, _BELOW_BLOCK)
    changed: dict[str, Any] = _SIDES | {"height": inner + layout.margin.t + layout.margin.b}
    titles = iter(range(len(figure.blocks)))
    for line, numbers in enumerate(lines):
        top = 1 - line * (tall + _BELOW_BLOCK) / inner
        whole, left = sum(_width(figure.blocks[number]) for number in numbers), 0.0
        for number in numbers:
            block, axis = figure.blocks[number], _axis(number)
            right = left + _width(block) / whole
            across = [left + 0.02 * (left > 0), min(right, 1.0)]
            changed |= {f"xaxis{axis}.domain": across, f"yaxis{axis}.domain": [max(0.0, top - tall / inner), top]}
            pixels = _WIDTH * (across[1] - across[0]) / len(block.columns)
            step = -(-max(len(label) * 7 + 5 for label in block.columns) // int(pixels))
            if step > 1 and all(label.isdigit() for label in block.columns):
                few = range(0, len(block.columns), step)
                changed |= {
                    f"xaxis{axis}.tickvals": list(few),
                    f"xaxis{axis}.ticktext": [block.columns[n] for n in few],
                }
            if left == 0:
                changed |= _labelled(axis, figure.row_title)
            if block.title:
                title = f"annotations[{next(titles)}]"
                changed |= {f"{title}.x": sum(across) / 2, f"{title}.y": top}
            left = right
    return changed


def _lines(blocks: tuple[Block, ...]) -> list[list[int]]:
    """Numbers of the blocks that have room side by side."""
    lines: list[list[int]] = []
    room = 0
    for number, block in enumerate(blocks):
        room -= _width(block)
        if room < 0:
            lines, room = [*lines, []], _WIDTH - _width(block)
        lines[-1].append(number)
    return lines


def _width(block: Block) -> int:
    """Pixels that a block takes at least."""
    return len(block.columns) * (_NUMBER if (block.texts != "").any() else _CELL)


def _inner(lines: int, tall: int, between: int) -> int:
    """Pixels of lines of a height."""
    return lines * (tall + between) - between


def _labelled(axis: str, title: str) -> dict[str, Any]:
    """A y axis that is the first of its line now."""
    return {f"yaxis{axis}.showticklabels": True, f"yaxis{axis}.title.text": title}


def _axis(number: int) -> str:
    """What plotly calls an axis after its x or y, counted from 0."""
    return str(number + 1) if number else ""
