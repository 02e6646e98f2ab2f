"""Pictures of one byte a pixel: values as colours of a palette of 256, one of which is the grey between panels."""

from __future__ import annotations

import os
from typing import BinaryIO

import matplotlib
import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

COLORMAP = "RdBu_r"
_BLOCK = 128  # columns coloured at a time: they stay in the cache

_PALETTE = matplotlib.colormaps[COLORMAP](np.arange(256), bytes=True)[:, :3].copy()
GREY_INDEX = int(np.abs(np.diff(_PALETTE.astype(int), axis=0)).max(axis=1).argmin())
"""Grey takes the place of a colour that differs from the next by 1/255; the next one stands in for it."""
_PALETTE[GREY_INDEX] = 128


def colour_index(values: np.ndarray, limit: float) -> np.ndarray:
    """The palette's colour for each of `values` (row, column), from -limit to limit."""
    index = np.empty(values.shape, np.uint8)
    for start in range(0, values.shape[1], _BLOCK):
        block = slice(start, start + _BLOCK)
        scaled = values[:, block].astype(np.float32) / (2 * limit)
        scaled += 0.5
        scaled *= len(_PALETTE)
        index[:, block] = np.clip(scaled, 0, len(_PALETTE) - 1, out=scaled).astype(np.uint8)
    index[index == GREY_INDEX] += 1
    return index


def save_png(pixels: np.ndarray, file: str | os.PathLike[str] | BinaryIO, description: str) -> None:
    """Writes `pixels` (row, column), colours of the palette; packed lightly: more takes ten times as long for 5%."""
    image, about = Image.fromarray(pixels), PngInfo()
    image.putpalette(_PALETTE.tobytes())
    about.add_text("Description", description)
    image.save(file, format="png", compress_level=1, pnginfo=about)
