"""Figures drawn by matplotlib, sized for a paper."""

from __future__ import annotations

import io
import textwrap
import threading
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle

from probe.figures.figure_data import (
    DRIFT_COLOUR_TITLE,
    DRIFT_COLOURS,
    DRIFT_NOTE,
    DRIFT_TICKS,
    MUTED,
    NOTE,
    Block,
    Chart,
    Drawable,
    DriftMap,
    Grid,
    Line,
    Panel,
    Rule,
    TileMap,
)
from probe.figures.heatmap import is_regular, merged
from probe.figures.raster import COLORMAP
from probe.figures.styles import BLACK, GREY

DPI = 300
_SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "figure.titlesize": 9,
    "legend.fontsize": 7.5,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.parse_math": False,  # labels come from stores
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
    "svg.hashsalt": "mesa-lens",
}
_UNDATED = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
_DASHES = {
    "none": "",
    "solid": "-",
    "dash": (0, (4, 1.5)),
    "dot": (0, (1, 1.2)),
    "dashdot": (0, (5, 1.2, 1, 1.2)),
    "longdash": (0, (8, 2)),
    "longdashdot": (0, (8, 1.5, 1, 1.5)),
}
_TRIANGLES = {"triangle-up": "^", "triangle-down": "v", "triangle-left": "<", "triangle-right": ">"}
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "x": "x", "cross": "P", "star": "*"}
MARKERS |= {"pentagon": "p", "hexagon": "h"} | _TRIANGLES
"""Matplotlib's, by the names of `styles`."""
_PANEL, _LINE_INCHES, _LEAST_INCHES = (3.6, 3.1), 0.135, 5.5
_CELL_INCHES = (0.8, 0.95)
_LEVEL = 6  # labels of lengths, at most, that have room side by side
_TILE, _TILES_WIDTH, _TILES_MARGINS, _TILES_GROUND = (0.4, 0.23), 6.4, (1.5, 1.25), "#F2F2F2"
_DRIFT_WIDTH, _DRIFT_LAYER, _DRIFT_HEIGHT, _DRIFT_MARGINS, _DRIFT_GROUND = 6.4, 0.12, (0.55, 2.0), 1.0, "#D9D9D9"
_DRIFT_SHADES = LinearSegmentedColormap.from_list("drift", list(DRIFT_COLOURS))
_ONE_AT_A_TIME = threading.Lock()  # matplotlib's settings are the process's


class _BordersLayout(ConstrainedLayoutEngine):
    """Constrained layout of a grid by its first column and its first and last row; the rest has ticks only.

    Measuring every one of hundreds of panels took longer than drawing them.
    """

    def __init__(self, axes: np.ndarray) -> None:
        super().__init__()
        self._axes = axes
        for axis in axes[1:-1, 1:].flat:
            axis.set_in_layout(False)

    def execute(self, fig: Figure) -> None:
        super().execute(fig)
        for row in self._axes[1:-1]:
            for axis, above in zip(row[1:], self._axes[0, 1:], strict=True):
                across, down = above.get_position(), row[0].get_position()
                axis.set_position((across.x0, down.y0, across.width, down.height))


def picture(figure: Drawable, form: str, dpi: int = DPI) -> bytes:
    """The figure as a png, svg (text as text) or pdf file; the same bytes for the same figure."""
    file = io.BytesIO()
    with _ONE_AT_A_TIME, rc_context(_SETTINGS):
        draw(figure).savefig(file, format=form, dpi=dpi, metadata={"Title": figure.title, **_UNDATED[form]})
    return file.getvalue()


def draw(figure: Drawable) -> Figure:
    """The matplotlib figure of what `probe.figures.figure_data` holds."""
    if isinstance(figure, TileMap):
        return _draw_tile_map(figure)
    if isinstance(figure, DriftMap):
        return _draw_drift_map(figure)
    return _draw_grid(figure) if isinstance(figure, Grid) else _draw_chart(figure)


def _draw_grid(grid: Grid) -> Figure:
    rows, columns = len(grid.cells), len(grid.cells[0])
    width = max(_LEAST_INCHES, 1.2 + columns * _CELL_INCHES[0])
    height = max(2.5, rows * _CELL_INCHES[1]) + 0.8
    figure = _figure(grid.title, width, height)
    axes = figure.subplots(rows, columns, squeeze=False)
    room = (int(DPI * (height - 1) / rows), int(DPI * (width - 1.5) / columns))
    figure.set_layout_engine(_BordersLayout(axes))
    regions = len(grid.region_titles)
    for row, cells in enumerate(grid.cells):
        for column, cell in enumerate(cells):
            axis = axes[row, column]
            _draw_cell(axis, cell, grid.limits[row], grid.trained_length, room)
            axis.tick_params(labelsize=6.5, labelleft=column == 0, labelbottom=row == rows - 1)
            axis.locator_params("y", nbins=3)
            axis.locator_params("x", nbins=3 if cell["position"].values[-1] < 1000 else 2)
        axes[row, 0].set_ylabel(textwrap.fill(grid.row_titles[row], 13), fontsize=7)
    for column in range(columns):
        axes[-1, column].set_xlabel(f"positions\n{grid.region_titles[column % regions]}", fontsize=7)
    for group, title in enumerate(grid.group_titles):
        axes[0, group * regions].set_title(title, loc="left", fontweight="bold")
    bar = figure.colorbar(axes[0, 0].images[0], ax=axes, label=grid.colour_title, aspect=30, pad=0.01, ticks=[-1, 0, 1])
    bar.ax.set_yticklabels(["-limit", "0", "limit"])
    return figure


def _draw_cell(axis: Axes, cell: xr.DataArray, limit: float, trained_length: int, room: tuple[int, int]) -> None:
    """One heatmap, its values merged where there would be more than pixels: a renderer drops some of them instead."""
    values = merged(cell, *(-(-size // pixels) for size, pixels in zip(cell.shape, room, strict=True)))
    (left, right), (top, bottom) = _edges(values, "position"), _edges(values, "dim")
    if not is_regular(values):  # one row a dim, under its own label
        top, bottom = -0.5, values.sizes["dim"] - 0.5
        labels = dict(enumerate(values["dim"].values))
        axis.yaxis.set_major_formatter(lambda row, _: str(labels.get(int(row), "") if row == int(row) else ""))
    look: dict[str, Any] = {"cmap": COLORMAP, "aspect": "auto", "interpolation": "none", "vmin": -1, "vmax": 1}
    axis.imshow(values.values / limit, extent=(left, right, bottom, top), **look)
    if left < trained_length < right:
        axis.axvline(trained_length, color=BLACK, linestyle="--", linewidth=0.8)


def _edges(cell: xr.DataArray, name: str) -> tuple[float, float]:
    return float(cell[name].values[0]) - 0.5, float(cell[f"{name}_last"].values[-1]) + 0.5


def _draw_chart(chart: Chart) -> Figure:
    width = max(_LEAST_INCHES, _PANEL[0] * len(chart.panels))
    figure = _figure(chart.title, width, _PANEL[1])
    axes = figure.subplots(1, len(chart.panels), squeeze=False)[0]
    for axis, panel in zip(axes, chart.panels, strict=True):
        _draw_panel(axis, panel)
    entries = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    rows = -(-len(entries) // max(1, int(width / (0.45 + 0.056 * max(map(len, entries))))))
    figure.set_figheight(_PANEL[1] + rows * _LINE_INCHES)
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower left", ncols=-(-len(entries) // rows), frameon=False
    )
    return figure


def _figure(title: str, width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(textwrap.fill(title, int(width / 0.07)))
    return figure


def _draw_panel(axis: Axes, panel: Panel) -> None:
    for number, line in enumerate(panel.in_order):
        _draw_line(axis, line, number)
    for point in panel.points:
        marks: dict[str, Any] = {"markersize": 7.5, "markerfacecolor": "none", "markeredgewidth": 1.6, "zorder": 5}
        axis.plot(point.x, point.y, "D", color=point.colour, label=point.text, **marks)
    for rule in panel.rules:
        _draw_rule(axis, rule, panel)
    axis.set(title=panel.title, xlabel=panel.x_title, ylabel=panel.y_title, ylim=panel.y_range)
    axis.spines[["top", "right"]].set_visible(False)
    if panel.log_x:
        axis.set_xscale("log", base=2)
        rotation = 45 if len(panel.x_ticks) > _LEVEL else 0
        axis.set_xticks(panel.x_ticks, [str(tick) for tick in panel.x_ticks], rotation=rotation)
        axis.minorticks_off()
    elif panel.x_ticks:
        axis.set_xticks(panel.x_ticks, panel.x_labels or None)


def _draw_line(axis: Axes, line: Line, number: int) -> None:
    """A line with a marker at each value, or at a few, away from those of the lines drawn before."""
    step = len(line.x) // 6
    marks: dict[str, Any] = {"marker": MARKERS[line.symbol], "markersize": 3.5, "markerfacecolor": "none"}
    if line.crowded:
        marks["markevery"] = (step * (2 + number) // 6 % step, step)
    style = {"color": line.colour, "linestyle": _DASHES[line.dash], "linewidth": 1, "alpha": 0.35 if line.faint else 1}
    axis.plot(line.x, line.y, label=line.label, **style, **marks)
    if line.interval is not None:
        if line.band:
            axis.fill_between(line.x, *line.interval, color=line.colour, alpha=0.15, linewidth=0)
            return
        ends = np.abs(np.stack(line.interval) - line.y)
        axis.errorbar(line.x, line.y, ends, fmt="none", ecolor=line.colour, elinewidth=0.6, capsize=1.5)


def _draw_rule(axis: Axes, rule: Rule, panel: Panel) -> None:
    style: dict[str, Any] = {"color": rule.colour, "linestyle": _DASHES[rule.dash], "linewidth": 0.8}
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.8}
    look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "color": rule.colour, "bbox": box}
    if rule.vertical:
        axis.axvline(rule.at, **style)
        place = {"xycoords": ("data", "axes fraction"), "xytext": (3, -1), "ha": "left", "va": "top"}
        axis.annotate(rule.text, (rule.at, 1), **place, **look)
    else:
        axis.axhline(rule.at, **style)
        below = rule.at > sum(panel.y_range) / 2
        place = {"xytext": (3, -3 if below else 3), "ha": "left", "va": "top" if below else "bottom"}
        axis.annotate(rule.text, (0, rule.at), xycoords=("axes fraction", "data"), **place, **look)


def _draw_tile_map(tiles: TileMap) -> Figure:
    """Blocks side by side, with one colour scale and the note below; tiles as large as numbers need, or smaller."""
    widths = [len(block.columns) for block in tiles.blocks]
    rows, columns = len(tiles.rows), sum(widths)
    width = columns * float(np.clip(_TILES_WIDTH / columns, 0.14, _TILE[0])) + 0.15 * len(widths)
    height = rows * (_TILE[1] if rows < 16 else 0.19) + _TILES_MARGINS[1]
    figure = _figure(tiles.title, max(4.6, width + _TILES_MARGINS[0]), height)
    axes = figure.subplots(1, len(widths), squeeze=False, sharey=True, width_ratios=widths)[0]
    for axis, block in zip(axes, tiles.blocks, strict=True):
        _draw_block(axis, block)
    axes[0].set_yticks(range(rows), tiles.rows, fontsize=7)
    axes[0].set_ylim(rows - 0.5, -0.5)
    axes[0].set_ylabel(tiles.row_title)
    ticks, extend = tiles.scale.ticks, "both" if tiles.scale.low < 0 else "neither"
    look: dict[str, Any] = {"extend": extend, "aspect": 20, "pad": 0.015, "anchor": (0, 1)}
    bar = figure.colorbar(axes[0].images[0], ax=axes, shrink=min(1.0, 10 / rows), ticks=list(ticks), **look)
    bar.ax.set_yticklabels(ticks.values(), fontsize=7)
    bar.set_label(tiles.colour_title, fontsize=7)
    figure.supxlabel(NOTE, fontsize=7, color=GREY)
    return figure


def _draw_block(axis: Axes, block: Block) -> None:
    axis.set_facecolor(_TILES_GROUND)
    ends: dict[str, Any] = {"vmin": block.scale.low, "vmax": block.scale.high}
    colours = COLORMAP if block.scale.low < 0 else "Blues"
    axis.imshow(np.ma.masked_invalid(block.values), cmap=colours, aspect="auto", **ends)
    rotation = 90 if max(map(len, block.columns)) > 5 else 0
    axis.set_xticks(np.arange(len(block.columns)), block.columns, fontsize=7, rotation=rotation)
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


def _draw_drift_map(drift: DriftMap) -> Figure:
    """Maps one below the other, with one colour scale and the note below."""
    layers = len(drift.layers)
    height = float(np.clip(_DRIFT_LAYER * layers, *_DRIFT_HEIGHT)) + 0.22
    figure = _figure(drift.title, _DRIFT_WIDTH, height * len(drift.maps) + _DRIFT_MARGINS)
    axes = figure.subplots(len(drift.maps), 1, squeeze=False, sharex=True)[:, 0]
    rows = np.arange(layers + 1) - 0.5
    ticks = range(0, layers, -(-layers // 6))
    for axis, one in zip(axes, drift.maps, strict=True):
        axis.set_facecolor(_DRIFT_GROUND)
        look: dict[str, Any] = {"vmin": min(DRIFT_TICKS), "vmax": max(DRIFT_TICKS), "cmap": _DRIFT_SHADES}
        axis.pcolormesh(drift.edges, rows, np.ma.masked_invalid(one.doublings), rasterized=True, **look)
        axis.axvline(drift.trained_length, color=BLACK, linestyle="--", linewidth=0.8)
        if one.first is not None:
            axis.plot(*one.first, "o", color="#111111", markersize=6, markerfacecolor="none", markeredgewidth=1.4)
        axis.set_title(one.title, loc="left")
        axis.set_yticks(ticks, [str(drift.layers[at]) for at in ticks], fontsize=7)
        axis.set_ylim(rows[-1], rows[0])
        axis.set_ylabel("layer")
    axes[-1].set_xlabel(f"position (tokens); dashed: M = {drift.trained_length}")
    bar = figure.colorbar(axes[0].collections[0], ax=axes, aspect=30, pad=0.015, ticks=list(DRIFT_TICKS), extend="both")
    bar.ax.set_yticklabels(DRIFT_TICKS.values(), fontsize=7)
    bar.set_label(DRIFT_COLOUR_TITLE, fontsize=7)
    figure.supxlabel(DRIFT_NOTE, fontsize=7, color=GREY)
    return figure
