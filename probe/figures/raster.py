"""Pictures of one pixel a value in a palette of 256 colours, with labelled axes around the values."""

from __future__ import annotations

import os
from typing import BinaryIO

import matplotlib
import numpy as np
import xarray as xr
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from probe.figures.heatmap import describe, row_name

COLORMAP = "RdBu_r"
LEFT, TOP = 150, 34
"""Pixels before and above the values."""
_RIGHT, _BOTTOM, _LEAST_WIDTH = 14, 44, 640
_SEPARATOR = 2  # pixels between layers and between regions
_INK, _PAPER = 0, 128  # of the palette: its darkest blue, its white
_TICK, _ROW_TICKS, _COLUMN_TICKS = 5, 30, 70  # pixels: length of a tick, between ticks
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
    wide = max(_LEAST_WIDTH, LEFT + width + _RIGHT, int(font.getlength(title)) + 20)
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
            pen.line((LEFT - _TICK, top + at, LEFT - 1, top + at), _INK)
            pen.text((LEFT - _TICK - 3, top + at), f"{row_name(panel)} {dims[at]}", _INK, anchor="rm")
    starts = [0, *breaks]
    for region, labels in enumerate(np.split(panel["position"].values, breaks)):
        for at in _ticks(len(labels), _COLUMN_TICKS):
            x = LEFT + starts[region] + region * _SEPARATOR + at
            pen.line((x, below, x, below + _TICK), _INK)
            pen.text((x, below + _TICK + 3), str(labels[at]), _INK, anchor="ma")
    pen.text((LEFT, below + 26), "position (tokens)", _INK)


def _ticks(size: int, apart: int) -> list[int]:
    """Round places from the first on, at least so many pixels apart, away from the end, where the next strip begins."""
    step = next(unit * 10**power for power in range(9) for unit in (1, 2, 5) if unit * 10**power >= apart)
    return list(range(0, max(1, size - apart // 2), step))
