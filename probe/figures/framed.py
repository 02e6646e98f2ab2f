"""Axes about a picture of one pixel a value: labels of layers, dims and positions, in the picture's own palette."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

LEFT, TOP = 150, 34
"""Pixels before and above the values."""
_RIGHT, _BOTTOM, _LEAST_WIDTH = 14, 44, 640
_INK, _GROUND = 0, 128  # of the palette: its darkest blue, its white
_TICK, _APART = 5, 70  # pixels


@dataclass(frozen=True)
class Axis:
    """A strip of rows or columns: its first pixel, its labels, one a pixel, and what it is called."""

    start: int
    labels: np.ndarray
    name: str


def framed(pixels: np.ndarray, rows: Sequence[Axis], columns: Sequence[Axis], title: str) -> np.ndarray:
    """`pixels` (row, column) with a title, layers and dims at their left and positions below; no pixel is covered."""
    height, width = pixels.shape
    font = ImageFont.load_default(12)
    wide = max(_LEAST_WIDTH, LEFT + width + _RIGHT, int(font.getlength(title)) + 20)
    whole = np.full((TOP + height + _BOTTOM, wide), _GROUND, np.uint8)
    whole[TOP : TOP + height, LEFT : LEFT + width] = pixels
    image = Image.fromarray(whole, mode="P")
    pen = ImageDraw.Draw(image)
    pen.fontmode = "1"  # a palette has no shades of ink
    pen.text((8, 8), title, _INK, font)
    for axis in rows:
        top, middle = TOP + axis.start, TOP + axis.start + len(axis.labels) // 2
        pen.text((8, middle), axis.name, _INK, font, anchor="lm")
        for at in _ticks(len(axis.labels), 30):
            pen.line((LEFT - _TICK, top + at, LEFT - 1, top + at), _INK)
            pen.text((LEFT - _TICK - 3, top + at), f"dim {axis.labels[at]}", _INK, font, anchor="rm")
    below = TOP + height
    for axis in columns:
        for at in _ticks(len(axis.labels), _APART):
            x = LEFT + axis.start + at
            pen.line((x, below, x, below + _TICK), _INK)
            pen.text((x, below + _TICK + 3), str(axis.labels[at]), _INK, font, anchor="ma")
    pen.text((LEFT, below + 26), "position (tokens)", _INK, font)
    return np.asarray(image)


def _ticks(size: int, apart: int) -> list[int]:
    """Round places from the first on, at least so many pixels apart, away from the end, where the next strip begins."""
    step = next(each * 10**power for power in range(9) for each in (1, 2, 5) if each * 10**power >= apart)
    return list(range(0, max(1, size - apart // 2), step))
