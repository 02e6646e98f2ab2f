"""Figures drawn by matplotlib, and heatmaps of one pixel a value."""

import io
import os
import textwrap
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO

import matplotlib
import numpy as np
import xarray as xr
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from probe.figures import figure_data as fig
from probe.figures.heatmap import describe, farthest, row_name

COLORMAP = "RdBu_r"
LEFT, TOP = 150, 34
"""Pixels before and above the values."""
_RASTER_RIGHT, _BOTTOM, _LEAST_WIDTH = 14, 44, 640
_SEPARATOR = 2  # pixels between layers and between regions
_INK, _PAPER = 0, 128  # of the palette: its darkest blue, its white
_RASTER_TICK, _ROW_TICKS, _COLUMN_TICKS = 5, 30, 70  # pixels: length of a tick, between ticks
_BLOCK = 128  # columns coloured at a time: they stay in the cache

_PALETTE = matplotlib.colormaps[COLORMAP](np.arange(256), bytes=True)[:, :3].copy()
GREY_INDEX = int(np.abs(np.diff(_PALETTE.astype(int), axis=0)).max(axis=1).argmin())
"""Grey takes the place of a colour that differs from the next by 1/255; the next one stands in for it."""
_PALETTE[GREY_INDEX] = 128


def write_png(panel: xr.DataArray, file: str | os.PathLike[str] | BinaryIO, limits: xr.DataArray) -> None:
    """Writes `panel` (layer, dim, position), from `regions`, one pixel a value, coloured from -limit to limit by layer.

    Layers are stacked from the top, each with its first dim at the top; regions stand side by side; thin grey lines
    separate them. The palette is packed lightly: more takes ten times as long for 5%.
    """
    breaks = np.flatnonzero(np.diff(panel["region"].values)) + 1
    dims, text, about = panel.sizes["dim"], describe(panel), PngInfo()
    height, width = len(limits) * (dims + _SEPARATOR) - _SEPARATOR, panel.sizes["position"] + _SEPARATOR * len(breaks)
    title, font = f"{text}; red > 0, blue < 0", ImageFont.load_default(12)
    wide = max(_LEAST_WIDTH, LEFT + width + _RASTER_RIGHT, int(font.getlength(title)) + 20)
    image = Image.new("L", (wide, TOP + height + _BOTTOM), _PAPER)
    image.paste(GREY_INDEX, (LEFT, TOP, LEFT + width, TOP + height))
    for row, limit in enumerate(limits.values):
        left, values = LEFT, panel.isel(layer=row).load().transpose("dim", "position").values
        for part in np.split(values, breaks, axis=1):
            image.paste(Image.fromarray(colour_index(part, limit)), (left, TOP + row * (dims + _SEPARATOR)))
            left += part.shape[1] + _SEPARATOR
    pen = ImageDraw.Draw(image)
    pen.fontmode, pen.font = "1", font  # a palette has no shades of ink
    pen.text((8, 8), title, _INK)
    _draw_axes(pen, panel, limits, breaks, TOP + height)
    image.putpalette(_PALETTE.tobytes())
    about.add_text("Description", text)
    image.save(file, format="png", compress_level=1, pnginfo=about)


def colour_index(values: np.ndarray, limit: float) -> np.ndarray:
    """The palette's colour for each of `values` (row, column), from -limit to limit."""
    index, half = np.empty(values.shape, np.uint8), len(_PALETTE) // 2
    for start in range(0, values.shape[1], _BLOCK):
        block = slice(start, start + _BLOCK)
        scaled = values[:, block].astype(np.float32) / (limit / half)  # a power of two: no rounding but division's
        scaled += half
        colours = np.clip(scaled, 0, len(_PALETTE) - 1, out=scaled).astype(np.uint8)
        index[:, block] = colours + (colours == GREY_INDEX)
    return index


def _draw_axes(
    pen: ImageDraw.ImageDraw, panel: xr.DataArray, limits: xr.DataArray, breaks: np.ndarray, below: int
) -> None:
    """Layers and dims left of the values and positions `below` them; no pixel of them is covered."""
    dims = panel["dim"].values
    for row, (layer, limit) in enumerate(zip(panel["layer"].values, limits.values, strict=True)):
        top = TOP + row * (len(dims) + _SEPARATOR)
        pen.text((8, top + len(dims) // 2), f"layer {layer} (±{limit:.2g})", _INK, anchor="lm")
        for at in _ticks(len(dims), _ROW_TICKS):
            pen.line((LEFT - _RASTER_TICK, top + at, LEFT - 1, top + at), _INK)
            pen.text((LEFT - _RASTER_TICK - 3, top + at), f"{row_name(panel)} {dims[at]}", _INK, anchor="rm")
    starts = [0, *breaks]
    for region, labels in enumerate(np.split(panel["position"].values, breaks)):
        for at in _ticks(len(labels), _COLUMN_TICKS):
            x = LEFT + starts[region] + region * _SEPARATOR + at
            pen.line((x, below, x, below + _RASTER_TICK), _INK)
            pen.text((x, below + _RASTER_TICK + 3), str(labels[at]), _INK, anchor="ma")
    pen.text((LEFT, below + 26), "position (tokens)", _INK)


def _ticks(size: int, apart: int) -> list[int]:
    """Round places from the first on, at least so many pixels apart, away from the end, where the next strip begins."""
    step = next(unit * 10**power for power in range(9) for unit in (1, 2, 5) if unit * 10**power >= apart)
    return list(range(0, max(1, size - apart // 2), step))


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
MARKERS |= {"pentagon": "p", "hexagon": "h", "none": ""} | _TRIANGLES
"""Matplotlib's, by the names of `styles`."""
_PANEL, _LINE_INCHES, _LEAST_INCHES = (3.6, 3.1), 0.135, 5.5
_LEVEL = 6  # labels of lengths, at most, that have room side by side
_PER_INCH, _GROUND = 130, "#DDDDDD"  # pixels of `Heatmaps.height`; where heatmaps are blank
_LEFT, _RIGHT, _BESIDE, _BETWEEN, _BETWEEN_TITLED, _LINE = 0.75, 0.95, 0.12, 0.1, 0.32, 0.15  # inches
_TICK, _TICK_SIZE = 11, 6.5  # points: from labels of heatmaps to what they label, and their size
_LONG = 5  # characters of a label that stands upright
_ONE_AT_A_TIME = threading.Lock()  # matplotlib's settings are the process's


def picture(figure: fig.Drawable, form: str, dpi: int = DPI) -> bytes:
    """The figure as a png, svg (text as text) or pdf file; the same bytes for the same figure."""
    return pictures(figure, (form,), dpi)[form]


def pictures(figure: fig.Drawable, forms: Sequence[str], dpi: int = DPI) -> dict[str, bytes]:
    """The figure's files by form, each laid out as the first one is."""
    files = {form: io.BytesIO() for form in forms}
    # a higher level: a quarter smaller, in twice the time
    packed: dict[str, Any] = {"png": {"pil_kwargs": {"compress_level": 1}}}
    with _ONE_AT_A_TIME, rc_context(_SETTINGS):
        drawn = draw(figure)
        for form, file in files.items():
            about = {"Title": figure.title, **_UNDATED[form]}
            drawn.savefig(file, format=form, dpi=dpi, metadata=about, **packed.get(form, {}))
            drawn.set_layout_engine("none")
    return {form: file.getvalue() for form, file in files.items()}


def draw(figure: fig.Drawable) -> Figure:
    """The matplotlib figure of what `probe.figures.figure_data` holds."""
    return _draw_chart(figure) if isinstance(figure, fig.Chart) else _draw_heatmaps(figure)


def _draw_heatmaps(maps: fig.Heatmaps) -> Figure:
    """All heatmaps in margins of so many inches; those of a column on one pair of axes: hundreds are slow to make."""
    rows, columns = len(maps.cells), len(maps.columns)
    labels = [label for cell in maps.cells[-1] for label in (cell.x_ticks or {}).values()]
    longest = max(map(len, labels), default=0)
    upright = 0.055 * longest if longest > _LONG else 0.0
    between = _BETWEEN_TITLED if any(cell.title for row in maps.cells[1:] for cell in row) else _BETWEEN
    width = max(_LEAST_INCHES, maps.width + _LEFT + _RIGHT)
    high = maps.height / _PER_INCH
    wide = width - _LEFT - _RIGHT
    room = int(DPI * high), int(DPI * (wide / columns - _BESIDE))
    title = textwrap.wrap(maps.title + _merging(maps, room), int(width / 0.07))
    top, below = 0.36 + _LINE * len(title), 0.3 + upright
    below += _LINE * (bool(maps.note) + max(cell.x_title.count("\n") + bool(cell.x_title) for cell in maps.cells[-1]))
    inner = rows * high + (rows - 1) * between
    height = top + inner + below
    figure = Figure(figsize=(width, height))
    figure.suptitle("\n".join(title), y=1 - 0.08 / height, va="top")
    sides = {"left": _LEFT / width, "right": 1 - _RIGHT / width, "top": 1 - top / height, "bottom": below / height}
    spaces = {"wspace": _BESIDE / max(0.1, wide / columns - _BESIDE)}
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=maps.columns, gridspec_kw=sides | spaces)[0]
    scale = maps.colours
    colours = colormaps[scale] if isinstance(scale, str) else LinearSegmentedColormap.from_list("", scale)
    colours = colours.with_extremes(bad=_GROUND)
    down = np.arange(rows) * (1 + between / high)  # of rows, in heights of a heatmap
    lowest, highest = maps.cells[0][0].ends[2:]
    for axis, cells in zip(axes, zip(*maps.cells, strict=True), strict=True):
        _label_heatmaps(axis, cells, room, 90 if upright else 0, down if axis is axes[0] else down[:0])
        for cell, row in zip(cells, down, strict=True):
            _draw_heatmap(axis, cell, colours, room, row * (lowest - highest))
            figure.text(axis.get_position().x0, 1 - (top + row * high - 6 / 72) / height, cell.title, fontsize=8)
        axis.set_ylim(lowest + down[-1] * (lowest - highest), highest)
    longest = max((len(label.get_text()) for label in axes[0].get_yticklabels()), default=0)
    left = (_LEFT - (_TICK + 0.64 * _TICK_SIZE * longest) / 72) / width
    upwards: dict[str, Any] = {"fontsize": 7, "rotation": 90, "ha": "right", "va": "center", "multialignment": "center"}
    for cells, row in zip(maps.cells, down, strict=True):
        middle = 1 - (top + (row + 0.5) * high) / height
        figure.text(left, middle, textwrap.fill(cells[0].y_title, 13), **upwards)
    long = min(inner, 3)
    box = 1 - (_RIGHT - 0.12) / width, (below + inner - long) / height, 0.1 / width, long / height
    extend = "both" if maps.cells[0][0].low < 0 else "neither"
    bar = figure.colorbar(axes[0].images[0], cax=figure.add_axes(box), ticks=list(maps.ticks), extend=extend)
    bar.ax.set_yticklabels(maps.ticks.values(), fontsize=7)
    bar.set_label(maps.colour_title, fontsize=7)
    note = "; ".join(maps.note)
    figure.text(sides["left"], 0.06 / height, note, fontsize=7, color=fig.GREY)
    return figure


def _steps(cell: fig.Heatmap, room: tuple[int, int]) -> list[int]:
    """Rows and columns of values to a pixel, where there would be more than pixels."""
    return [-(-size // pixels) for size, pixels in zip(cell.values.shape, room, strict=True)]


def _merging(maps: fig.Heatmaps, room: tuple[int, int]) -> str:
    """What the title says of merged values; empty where every value is drawn."""
    rows, columns = np.max([_steps(cell, room) for row in maps.cells for cell in row], axis=0)
    return f"; drawn: the farthest from 0 of {rows} x {columns} cells" if rows * columns > 1 else ""


def _draw_heatmap(axis: Axes, cell: fig.Heatmap, colours: Any, room: tuple[int, int], down: float) -> None:
    """One heatmap, its values merged where there would be more than pixels: a renderer drops some of them instead."""
    steps = _steps(cell, room)
    rows, columns = (np.arange(0, size, step) for size, step in zip(cell.values.shape, steps, strict=True))
    left, right, bottom, top = cell.ends[0], cell.ends[1], cell.ends[2] + down, cell.ends[3] + down
    look: dict[str, Any] = {"cmap": colours, "aspect": "auto", "interpolation": "none"}
    values = np.ma.masked_invalid(farthest(cell.values, (rows, columns)))
    axis.imshow(values, extent=(left, right, bottom, top), vmin=cell.low, vmax=cell.high, **look)
    if cell.m is not None and left < cell.m < right:
        for look in ({"color": "white", "linewidth": 1.6}, {"color": fig.BLACK, "linestyle": "--", "linewidth": 0.8}):
            axis.plot([cell.m, cell.m], [bottom, top], solid_capstyle="butt", **look)
    if cell.mark is not None:
        marks: dict[str, Any] = {"markersize": 6, "markerfacecolor": "none", "markeredgewidth": 1.4}
        axis.plot(cell.mark.x, cell.mark.y + down, "o", color=cell.mark.colour, **marks)
    if cell.muted is not None and cell.numbers is not None:
        _draw_tiles(axis, cell, cell.muted, cell.numbers)
    else:
        frame: dict[str, Any] = {"fill": False, "linewidth": 0.6, "zorder": 2.5, "clip_on": False}
        axis.add_patch(Rectangle((left, top), right - left, bottom - top, **frame))


def _label_heatmaps(
    axis: Axes, cells: Sequence[fig.Heatmap], room: tuple[int, int], rotation: int, down: np.ndarray
) -> None:
    """Labels below a column of heatmaps, and left of those that are `down`, in their heights; no line about them."""
    left, right, bottom, top = cells[-1].ends
    axis.set(xlim=(left, right), ylim=(bottom, top))
    axis.set_xlabel(cells[-1].x_title, fontsize=7)
    axis.tick_params(labelsize=_TICK_SIZE)
    axis.spines[:].set_visible(False)
    most = 3 * -(-room[1] // (2 * DPI))  # labels of positions
    if (ticks := cells[-1].x_ticks) is None:
        axis.locator_params("x", nbins=most if right < 1000 else max(2, most - 1))
    else:
        axis.set_xticks(list(ticks), list(ticks.values()), rotation=rotation)
    if (ticks := cells[-1].y_ticks) is None:
        axis.locator_params("y", nbins=3)
        places = [at for at in axis.get_yticks() if top <= at <= bottom]
        ticks = dict(zip(places, axis.yaxis.get_major_formatter().format_ticks(places), strict=True))
    axis.set_yticks(np.add.outer(down * (bottom - top), list(ticks)).ravel(), [*ticks.values()] * len(down))


def _draw_tiles(axis: Axes, cell: fig.Heatmap, muted: np.ndarray, numbers: np.ndarray) -> None:
    """White lines between the values, strokes over the muted ones, and numbers."""
    axis.set_xticks(np.arange(-0.5, muted.shape[1]), minor=True)
    axis.set_yticks(np.arange(-0.5, muted.shape[0]), minor=True)
    axis.grid(which="minor", color="white", linewidth=0.8)
    axis.tick_params(which="both", length=0)
    hatch: dict[str, Any] = {"fill": False, "hatch": "/////", "edgecolor": "#00000030", "linewidth": 0}
    for row, column in np.argwhere(muted):
        axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **hatch))
    for row, column in np.argwhere(numbers != ""):
        look = {"ha": "center", "va": "center", "fontsize": 6.5, "color": cell.number_colours[row, column]}
        axis.text(column, row, str(numbers[row, column]), **look)


def _draw_chart(chart: fig.Chart) -> Figure:
    width = max(_LEAST_INCHES, _PANEL[0] * len(chart.panels))
    figure = _figure(chart.title, width, _PANEL[1])
    axes = figure.subplots(1, len(chart.panels), squeeze=False)[0]
    for axis, panel in zip(axes, chart.panels, strict=True):
        _draw_panel(axis, panel)
    entries = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            if label not in chart.noted:
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


def _draw_panel(axis: Axes, panel: fig.Panel) -> None:
    for number, line in enumerate(panel.drawn):
        _draw_line(axis, line, number)
    for point in panel.points:
        marks: dict[str, Any] = {"markersize": 7.5, "markerfacecolor": "none", "markeredgewidth": 1.6, "zorder": 5}
        symbol = {"diamond": "D", "tick": "|"}[point.symbol]
        axis.plot(point.x, point.y, symbol, color=point.colour, label=point.text, **marks)
        if point.ends is not None:
            axis.hlines(point.y, *point.ends, color=point.colour, linewidth=1.6)
    for rule in panel.rules:
        _draw_rule(axis, rule, panel)
    below = "\n".join(filter(None, [panel.x_title, panel.outside]))
    title = textwrap.fill(panel.title, int(_PANEL[0] / 0.075))
    axis.set(title=title, xlabel=below, ylabel=panel.y_title, ylim=panel.y_range)
    axis.spines[["top", "right"]].set_visible(False)
    if panel.log_x:
        axis.set_xscale("log", base=2)
        rotation = 45 if len(panel.x_ticks) > _LEVEL else 0
        axis.set_xticks(panel.x_ticks, [str(tick) for tick in panel.x_ticks], rotation=rotation)
        axis.minorticks_off()
    elif panel.x_ticks:
        axis.set_xticks(panel.x_ticks, panel.x_labels or None)


def _draw_line(axis: Axes, line: fig.Line, number: int) -> None:
    """A line with a marker at each value, or at a few, away from those of the lines drawn before."""
    step = len(line.x) // 6
    marks: dict[str, Any] = {"marker": MARKERS[line.symbol], "markersize": 3.5, "markerfacecolor": "none"}
    if line.crowded:
        marks["markevery"] = (step * (2 + number) // 6 % step, step)
    width = fig.FAINT if line.faint else 1
    style = {"color": line.colour, "linestyle": _DASHES[line.dash], "linewidth": width}
    axis.plot(line.x, line.y, label=line.entry, **style, **marks)
    if line.interval is not None:
        if line.band:
            axis.fill_between(line.x, *line.interval, color=line.colour, alpha=0.15, linewidth=0)
            return
        ends = np.abs(np.stack(line.interval) - line.y)
        axis.errorbar(line.x, line.y, ends, fmt="none", ecolor=line.colour, elinewidth=0.6, capsize=1.5)


def _draw_rule(axis: Axes, rule: fig.Rule, panel: fig.Panel) -> None:
    style: dict[str, Any] = {"color": rule.colour, "linestyle": _DASHES[rule.dash], "linewidth": 0.8}
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.8}
    look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "color": rule.colour, "bbox": box}
    if rule.vertical:
        axis.axvline(rule.at, **style)
        anchor = {"xycoords": ("data", "axes fraction"), "xytext": (3, -1), "ha": "left", "va": "top"}
        axis.annotate(rule.text, (rule.at, 1), **anchor, **look)
    else:
        axis.axhline(rule.at, **style)
        below = panel.is_below(rule)
        anchor = {"xytext": (-3 if rule.right else 3, -3 if below else 3), "va": "top" if below else "bottom"}
        anchor["ha"] = "right" if rule.right else "left"
        axis.annotate(rule.text, (int(rule.right), rule.at), xycoords=("axes fraction", "data"), **anchor, **look)
