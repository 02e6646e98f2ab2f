"""Where inside drift shows, as maps: layer by position, one below the other, a map a method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from probe.thresholds.calls import Call, drift_calls

COLUMNS = 256
"""Cells side by side; of more runs the one farthest out stands for those beside it."""
TICKS = {-2.0: "1/4", -1.0: "1/2", 0.0: "limit", 1.0: "2 x", 2.0: "4 x", 3.0: "8 x"}
"""Colours are doublings of a layer's limit."""
COLOURS = ((0.0, "#F4F8FB"), (0.4, "#C6DBEF"), (0.4, "#FDCDB5"), (0.6, "#EF6548"), (0.8, "#B2182B"), (1.0, "#4A0012"))
"""By share of the scale: pale blue up to the limit, red beyond it."""
COLOUR_TITLE = "rms distance from in-window range"
NOTE = "judged from M on; circle: where drift begins; grey: settling, too many false alarms, or not captured"


@dataclass(frozen=True)
class Map:
    """One method: doublings of the limit and rms distance in ranges (layer, column), NaN where not judged.

    first: position and row of the layer where its drift begins; None: nowhere. limits: by layer, in ranges.
    """

    method: str
    title: str
    doublings: np.ndarray
    distance: np.ndarray
    limits: np.ndarray
    first: tuple[int, int] | None


@dataclass(frozen=True)
class DriftMap:
    """Maps over the same layers and columns; `edges` are the positions between which columns lie."""

    title: str
    layers: tuple[int, ...]
    edges: np.ndarray
    maps: tuple[Map, ...]
    trained_length: int

    def told(self, one: Map, row: int, column: int) -> str:
        """A cell in words: method, layer, positions, distance and limit."""
        first, last = int(self.edges[column]), int(self.edges[column + 1]) - 1
        where = f"{one.method}, layer {self.layers[row]}, positions {first} to {last}"
        return f"{where}: {one.distance[row, column]:.2g} ranges, limit {one.limits[row]:.2g}"


def drift_map(found: xr.Dataset, prompt: str = "") -> DriftMap:
    """The maps of one prompt's `found` (from `find_drift`): how far each layer is from its in-window range."""
    run, begin = found.attrs["run"], found["run"].values
    columns = (begin - begin[0]) // run
    block = -(-(int(columns[-1]) + 1) // COLUMNS)
    edges = begin[0] + run * block * np.arange(int(columns[-1]) // block + 2)
    maps = tuple(_map(found.sel({"method": call.method}), call, columns // block) for call in drift_calls(found))
    where = f", prompt {prompt}" if prompt else ""
    title = f"Drift of {found.attrs['hook']} by layer and position{where}; red: beyond the layer's limit"
    return DriftMap(title, tuple(found["layer"].values.tolist()), edges, maps, found.attrs["trained_length"])


def _map(at: xr.Dataset, call: Call, columns: np.ndarray) -> Map:
    judged = at["trusted"].values[:, None] & ~at["settling"].values
    distance = np.full((len(judged), int(columns[-1]) + 1), np.nan)
    for number, level in zip(columns, np.where(judged, np.sqrt(at["level"].values), np.nan).T, strict=True):
        distance[:, number] = np.fmax(distance[:, number], level)
    limits = np.sqrt(at["limit"].values)
    tiny = np.finfo(float).tiny
    doublings = np.log2(np.maximum(distance, tiny) / limits[:, None])
    layers = at["layer"].values.tolist()
    first = None if call.length is None or call.layer is None else (call.length, layers.index(call.layer))
    says = f"first at {call.length}, in layer {call.layer}" if first else str(call)
    return Map(call.method, f"{call.method}: {says}", doublings, distance, limits, first)
