"""Files of the pages that read no run: the matrix of a method and the theory's curves."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from mesa.methods import Method
from probe.figures.tables import csv_bytes
from theory.figures import STYLES, curve_end

_NUMBERED = 24  # tokens
_DPI = 200


@dataclass(frozen=True)
class Drawing:
    """One figure, drawn on demand, and its numbers under one name; `files` as in `probe.figures.export`."""

    name: str
    draw: Callable[[], Figure]
    numbers: xr.Dataset

    def files(self, form: str) -> Iterator[tuple[str, bytes]]:
        """Name and content of the file in format `form`: csv, png, svg or pdf."""
        if form == "csv":
            yield f"{self.name}.csv", csv_bytes(self.numbers)
            return
        file, figure = io.BytesIO(), self.draw()
        FigureCanvasAgg(figure)
        figure.savefig(file, format=form, dpi=_DPI)
        yield f"{self.name}.{form}", file.getvalue()


def matrix_drawing(name: str, method: Method, matrix: np.ndarray, trained: int, colours: list[list]) -> Drawing:
    """The relative positions (query, key) of a method, in the page's colours; masked pairs are left out."""
    positions = np.where(matrix < 0, np.nan, matrix)
    labels = {"query": range(len(matrix)), "key": range(len(matrix))}
    numbers = xr.Dataset({"relative_position": (("query", "key"), positions)}, labels)
    return Drawing(name, lambda: _matrix(method, positions, trained, colours), numbers)


def curves_drawing(name: str, values: xr.DataArray, level: float | None = None) -> Drawing:
    """A quantity (construction, t) of the theory over t; `level`: where success ends."""
    numbers = values.to_dataset(name=str(values.name))
    return Drawing(name, lambda: _curves(values, level), numbers)


def _matrix(method: Method, positions: np.ndarray, trained: int, colours: list[list]) -> Figure:
    figure = Figure(figsize=(6, 5.4), layout="constrained")
    axes = figure.subplots()
    scale = LinearSegmentedColormap.from_list("window", [(float(at), colour) for at, colour in colours])
    top = max(float(np.nanmax(positions)), trained)
    bar = figure.colorbar(axes.imshow(positions, scale, vmin=0, vmax=top), ax=axes, shrink=0.8)
    bar.set_label(f"relative position; from M = {trained} on: never trained")
    if len(positions) <= _NUMBERED:
        for query, key in np.argwhere(np.isfinite(positions)):
            axes.text(key, query, f"{positions[query, key]:.3g}", ha="center", va="center", fontsize=6)
    axes.set(xlabel="key i", ylabel="query t", title=f"{method.name}: {method.formula}")
    axes.title.set(fontsize=9, wrap=True)
    return figure


def _curves(values: xr.DataArray, level: float | None) -> Figure:
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for name in values["construction"].values.tolist():
        axes.plot(values["t"], values.sel(construction=name), label=name, **STYLES[name])
    if level is not None:
        axes.axhline(level, color="black", lw=0.8)
    for name, colour in (("M", "#D55E00"), ("T_stair", "#009E73"), ("T_weave", "#0072B2")):
        axes.axvline(values.attrs[name], color=colour, ls=":", label=f"{name.replace('T_', 'T* ')} = "
                     f"{values.attrs[name]:.5g}")  # fmt: skip
    axes.set(xscale="log", xlabel="position t (tokens)", ylabel=values.attrs["long_name"])
    if float(values.min()) > 0:
        axes.set_yscale("log")
    axes.set_title("\n".join(wrap(curve_end(values), 75)), fontsize=8, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
