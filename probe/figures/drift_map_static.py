"""Drift maps drawn by matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from probe.figures.drift_map import COLOUR_TITLE, COLOURS, NOTE, TICKS, DriftMap
from probe.figures.styles import BLACK, GREY

_WIDTH, _LAYER, _LEAST, _MOST, _MARGINS = 6.4, 0.12, 0.55, 2.0, 1.0
_GROUND = "#D9D9D9"
_SHADES = LinearSegmentedColormap.from_list("drift", list(COLOURS))


def inches(figure: DriftMap) -> tuple[float, float]:
    """Width and height of the picture."""
    each = float(np.clip(_LAYER * len(figure.layers), _LEAST, _MOST)) + 0.22
    return _WIDTH, each * len(figure.maps) + _MARGINS


def draw_drift_map(drawn: Figure, figure: DriftMap) -> None:
    """Draws the maps one below the other into an empty figure, with one colour scale and the note below."""
    axes = drawn.subplots(len(figure.maps), 1, squeeze=False, sharex=True)[:, 0]
    rows = np.arange(len(figure.layers) + 1) - 0.5
    ticks = range(0, len(figure.layers), -(-len(figure.layers) // 6))
    for axis, one in zip(axes, figure.maps, strict=True):
        axis.set_facecolor(_GROUND)
        ends: dict[str, Any] = {"vmin": min(TICKS), "vmax": max(TICKS), "cmap": _SHADES, "rasterized": True}
        axis.pcolormesh(figure.edges, rows, np.ma.masked_invalid(one.doublings), **ends)
        axis.axvline(figure.trained_length, color=BLACK, linestyle="--", linewidth=0.8)
        if one.first is not None:
            axis.plot(*one.first, "o", color="#111111", markersize=6, markerfacecolor="none", markeredgewidth=1.4)
        axis.set_title(one.title, loc="left")
        axis.set_yticks(ticks, [str(figure.layers[at]) for at in ticks], fontsize=7)
        axis.set_ylim(rows[-1], rows[0])
        axis.set_ylabel("layer")
    axes[-1].set_xlabel(f"position (tokens); dashed: M = {figure.trained_length}")
    bar = drawn.colorbar(axes[0].collections[0], ax=axes, aspect=30, pad=0.015, ticks=list(TICKS), extend="both")
    bar.ax.set_yticklabels(TICKS.values(), fontsize=7)
    bar.set_label(COLOUR_TITLE, fontsize=7)
    drawn.supxlabel(NOTE, fontsize=7, color=GREY)
