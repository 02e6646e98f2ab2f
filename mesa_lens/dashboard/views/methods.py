"""Methods: the relative positions of two methods side by side."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st
import xarray as xr

from mesa.errors import Refused
from mesa.methods import Method, make, registry
from mesa.plan import distances
from mesa.settings import drawing_sizes
from mesa_lens.dashboard import address, elements as ui
from mesa_lens.dashboard.runs import Context
from probe.figures.export import csv_bytes
from probe.glossary import REMAP

_NUMBERED = 24  # tokens up to which numbers stand in the cells
_GAPS = 64  # tokens up to which cells are parted
_SIDES = {"a": "rerope", "b": "mesa"}  # and the methods drawn at first


def page(context: Context) -> None:
    """Two methods side by side."""
    st.caption(ui.plain(REMAP))
    left, right = st.columns(2)
    length = address.slider(left, "Length (tokens)", 4, 256, 24, "length")
    trained = address.slider(right, "Trained window M (tokens)", 2, 256, 16, "window")
    places = st.columns(2)
    methods = [_choose(place, *side, trained) for place, side in zip(places, _SIDES.items(), strict=True)]
    for place, side, method in zip(st.columns(2), _SIDES, methods, strict=True):
        if method is not None:
            with place:
                _draw(method, f"{method.name}-{side}", length, trained)


def _choose(place: Any, side: str, default: str, trained: int) -> Method | None:
    """A method with its sizes, from widgets; None, with a warning, where it refuses the sizes."""
    names = list(registry())
    name = address.select(place, f"Method {side}", names, side, default)
    sizes = drawing_sizes(name, trained)
    for (size, value), column in zip(sizes.items(), place.columns(len(sizes)) if sizes else (), strict=True):
        sizes[size] = address.number(column, size, 1, 4096, value, f"{side}.{name}.{size}", trained)
    try:
        return make(name, trained, **sizes)
    except Refused as error:
        place.warning(ui.plain(error))
        return None


def _draw(method: Method, key: str, length: int, trained: int) -> None:
    """Formula, matrix, its largest position, and how many pairs were never trained or are masked."""
    plan = method.plan(length)
    matrix = distances(plan)
    masked = int((matrix < 0).sum()) - length * (length - 1) // 2
    beyond, largest = int((matrix >= trained).sum()), float(matrix.max())
    facts = (
        f"The largest relative position is {largest:.4g}, {'at or beyond' if beyond else 'inside'} M = {trained}; "
        f"pairs at M or beyond, where the model was never trained: {beyond:,}; causal pairs masked: {masked:,}."
    )
    st.markdown(f"**{ui.plain(method.name)}** `{method.formula}`  \n{ui.plain(method.source)}")
    sizes = (f"{size}{getattr(method, size)}" for size in drawing_sizes(method.name, trained))
    stem = ui.file_stem("methods", key, *sizes, length, "M", trained)
    seen = f"Relative positions of {method.name} for {length} tokens. {facts}"
    ui.show(matrix_figure(matrix, trained), key, seen, file=stem)
    st.markdown(ui.plain(facts))
    if plan.frequency_scale is not None:
        st.caption("Rotary frequencies are changed at this length; the positions above are not.")
    labels = {"query": range(length), "key": range(length)}
    numbers = xr.Dataset({"relative_position": (("query", "key"), np.where(matrix < 0, np.nan, matrix))}, labels)
    ui.download("CSV", lambda: csv_bytes(numbers), f"{stem}.csv", key=f"{key} csv")


def matrix_figure(matrix: np.ndarray, trained: int) -> go.Figure:
    """The matrix (query, key) of relative positions, blue below M and orange from M on; masked pairs are blank."""
    length = len(matrix)
    numbers = {}
    if length <= _NUMBERED:
        texts = [["" if value < 0 else f"{value:.3g}" for value in row] for row in matrix]
        numbers = {"text": texts, "texttemplate": "%{text}"}
    top, gap = max(float(matrix.max()), trained), int(length <= _GAPS)
    figure = go.Figure(
        go.Heatmap(
            z=np.where(matrix < 0, np.nan, matrix),
            zmin=0,
            zmax=top,
            colorscale=_scale(trained / top),
            xgap=gap,
            ygap=gap,
            hovertemplate="query %{y}, key %{x}<br>relative position %{z:.4g}<extra></extra>",
            hoverongaps=False,
            colorbar={"orientation": "h", "thickness": 10, "y": -0.14, "yanchor": "top", "len": 0.9},
            **numbers,
        )
    )
    bare = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    figure.update_xaxes(title_text="key i", **bare)
    figure.update_yaxes(title_text="query t", autorange="reversed", scaleanchor="x", **bare)
    return figure.update_layout(height=470, margin={"t": 10, "b": 90, "l": 50, "r": 0})


def _scale(window: float) -> list[list[Any]]:
    """Blues up to M, the share `window` of the scale; oranges beyond."""
    inside = [[0, "#deebf7"], [min(window, 1), "#6baed6"]]
    return inside if window >= 1 else [*inside, [window, "#fdae6b"], [1, "#d94801"]]
