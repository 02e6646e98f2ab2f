"""Tables of numbers drawn by matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from probe.figures.cells import MUTED, NOTE, Block, Cells
from probe.figures.raster import COLORMAP
from probe.figures.styles import GREY

_CELL, _WIDTH, _MARGINS = (0.4, 0.23), 6.4, (1.5, 1.25)
_GROUND = "#F2F2F2"


def inches(cells: Cells) -> tuple[float, float]:
    """Width and height of the picture: cells as large as numbers need, smaller where there are many columns."""
    columns = sum(len(block.columns) for block in cells.blocks)
    width = columns * float(np.clip(_WIDTH / columns, 0.14, _CELL[0])) + 0.15 * len(cells.blocks)
    return max(4.6, width + _MARGINS[0]), len(cells.rows) * (_CELL[1] if len(cells.rows) < 16 else 0.19) + _MARGINS[1]


def draw_cells(figure: Figure, cells: Cells) -> None:
    """Draws the blocks side by side into an empty figure, with one colour scale and the note below."""
    widths = [len(block.columns) for block in cells.blocks]
    axes = figure.subplots(1, len(widths), squeeze=False, sharey=True, width_ratios=widths)[0]
    for axis, block in zip(axes, cells.blocks, strict=True):
        _draw_block(axis, block)
    axes[0].set_yticks(range(len(cells.rows)), cells.rows, fontsize=7)
    axes[0].set_ylim(len(cells.rows) - 0.5, -0.5)
    axes[0].set_ylabel(cells.row_title)
    ticks, extend = cells.scale.ticks, "both" if cells.scale.low < 0 else "neither"
    look: dict[str, Any] = {"extend": extend, "aspect": 20, "pad": 0.015, "anchor": (0, 1)}
    shrink = min(1.0, 10 / len(cells.rows))
    bar = figure.colorbar(axes[0].images[0], ax=axes, shrink=shrink, ticks=list(ticks), **look)
    bar.ax.set_yticklabels(ticks.values(), fontsize=7)
    bar.set_label(cells.colour_title, fontsize=7)
    figure.supxlabel(NOTE, fontsize=7, color=GREY)


def _draw_block(axis: Axes, block: Block) -> None:
    axis.set_facecolor(_GROUND)
    ends: dict[str, Any] = {"vmin": block.scale.low, "vmax": block.scale.high}
    colours = COLORMAP if block.scale.low < 0 else "Blues"
    axis.imshow(np.ma.masked_invalid(block.values), cmap=colours, aspect="auto", **ends)
    axis.set_xticks(np.arange(len(block.columns)), block.columns, fontsize=7, rotation=_turn(block))
    axis.set_title(block.title, fontsize=7.5)
    axis.set_xticks(np.arange(-0.5, len(block.columns)), minor=True)
    axis.set_yticks(np.arange(-0.5, len(block.values)), minor=True)
    axis.grid(which="minor", color="white", linewidth=0.8)
    axis.tick_params(which="both", length=0)
    axis.spines[:].set_visible(False)
    hatch: dict[str, Any] = {"fill": False, "hatch": "/////", "edgecolor": "#00000030", "linewidth": 0}
    for row, column in np.argwhere(block.muted):
        axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **hatch))
    for (row, column), text in np.ndenumerate(block.texts):
        if text:
            colour = "white" if block.dark[row, column] else MUTED if block.muted[row, column] else "black"
            axis.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)


def _turn(block: Block) -> int:
    """Degrees by which labels of columns are turned: long ones stand."""
    return 90 if max(map(len, block.columns)) > 5 else 0
