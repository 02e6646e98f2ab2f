"""Curves of the constructions over the position, and their interactive figures. No torch."""

import math
from collections.abc import Mapping
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theory.bounds import extended_length

NOPE, PE, WEAVE, IDEAL, STAIR = "NoPE", "PE", "remap", "remap, ideal recovery", "Stair"
"""The constructions: theorem 3.1, theorem 3.2, theorem 3.3 with the step MLP and with ideal recovery, the corollary."""

STYLES: dict[str, dict[str, Any]] = {
    NOPE: {"color": "#888888", "lw": 4, "alpha": 0.6},
    PE: {"color": "#D55E00", "lw": 1.6},
    WEAVE: {"color": "#0072B2", "lw": 1.8},
    IDEAL: {"color": "#0072B2", "lw": 1.4, "ls": "--"},
    STAIR: {"color": "#009E73", "lw": 1.4},
}
"""matplotlib's style of each construction; NoPE and PE coincide, so one is drawn wide."""


def curve_data(rows: Mapping[str, tuple[np.ndarray, ...]], M: int, N: int, E: int, H: float) -> xr.Dataset:
    """o_t - H, the recovered position and the attention on <bos>, of each row, over (construction, t); T* in attrs."""
    names = {"excess": "head output o_t - H", "position": "recovered position", "attention": "attention on <bos>"}
    values = np.stack([np.stack(row) for row in rows.values()], 1)
    coords = {"construction": list(rows), "t": np.arange(1, values.shape[-1] + 1)}
    reach = {"T_weave": extended_length(M, N), "T_stair": extended_length(M, N, E)}
    data = xr.Dataset(coords=coords, attrs={"M": M, "N": N, "E": E, "H": H, **reach})
    for (name, title), array in zip(names.items(), values, strict=True):
        data[name] = ("construction", "t"), array, {"long_name": title}
    return data


def curve_end(data: xr.Dataset | xr.DataArray) -> str:
    """Where the curves over t stop, and why, where a T* lies beyond; empty where none does."""
    end = int(data.t[-1])
    reaches = {"Stair PE": data.attrs["T_stair"], "the remap": data.attrs["T_weave"]}
    beyond = [f"T* of {name}, {reach:.5g}," for name, reach in reaches.items() if reach > end]
    if not beyond:
        return ""
    lie = "lies" if len(beyond) == 1 else "lie"
    return f"Curves stop at t = {end:,}, the most that is computed; {' and '.join(beyond)} {lie} beyond."


def _over_t(data: xr.DataArray) -> go.Figure:
    """One line a construction, over t; titles from the array's labels."""
    figure = go.Figure()
    for name in data.construction.values:
        line = data.sel(construction=name)
        if line.notnull().any():
            style = STYLES[str(name)]
            look = {"color": style["color"], "width": 1.4 * style["lw"], "dash": "dash" if "ls" in style else "solid"}
            figure.add_scatter(x=line.t.values, y=line.values, name=str(name), line=look, mode="lines")
    end = wrap(curve_end(data), 50)
    if end:
        _note(figure, "<br>".join(end), x=0, xref="paper", y=1.01, yref="paper", yanchor="bottom", align="left")
    figure.update_xaxes(type="log", title="position t")
    figure.update_yaxes(title=data.attrs["long_name"])
    figure.update_layout(template="plotly_white", height=460, margin={"t": 40 + 14 * len(end), "r": 20})
    return figure.update_layout(hovermode="x unified", legend={"orientation": "h", "y": -0.22, "yanchor": "top"})


def _note(figure: go.Figure, text: str, **place: Any) -> go.Figure:
    """A text in the figure; on a logarithmic axis plotly takes its place as a power of 10, unlike that of a line."""
    return figure.add_annotation(text=text, showarrow=False, xanchor="left", font={"size": 11}, **place)


def output_figure(data: xr.Dataset) -> go.Figure:
    """`excess_figure` raised by H: o_t over t, and a line at H."""
    H = float(data.attrs["H"])
    figure = excess_figure(data.assign(excess=(data.excess + H).assign_attrs(long_name="head output o_t")), H)
    return _note(figure, f"H = {H:g}: fails below", x=0.01, xref="paper", y=H, yref="y", yanchor="top")


def excess_figure(data: xr.Dataset, least: float = 0.0) -> go.Figure:
    """o_t - H over t, with the crossing at M and both T*; it succeeds above `least`."""
    figure = _over_t(data.excess.assign_attrs(data.attrs))
    figure.add_hline(least, line={"color": "black", "width": 1})
    marks = {"M": (data.M, PE), "T* stair": (data.T_stair, STAIR), "T* remap": (data.T_weave, WEAVE)}
    for number, (name, (position, curve)) in enumerate(marks.items()):  # one below the other, for they stand close
        figure.add_vline(position, line={"color": STYLES[curve]["color"], "dash": "dot"})
        _note(figure, f"{name} = {position:.5g}", x=math.log10(position), y=least + 3.9 - 0.3 * number, yref="y")
    top = least + 4
    if float(data.excess.max()) > top:
        figure.update_yaxes(title=f"{data.excess.attrs['long_name']} (above {top:g}: not drawn)")
    return figure.update_yaxes(range=[least - 1.1, top])


def position_figure(data: xr.Dataset) -> go.Figure:
    """The recovered position over t."""
    return _over_t(data.position.assign_attrs(data.attrs)).update_yaxes(type="log")


def attention_figure(data: xr.Dataset) -> go.Figure:
    """Layer 2's attention on <bos> over t; a construction succeeds where it is above 1 / M."""
    figure = _over_t(data.attention.assign_attrs(data.attrs)).update_yaxes(type="log")
    figure.add_hline(1 / data.M, line={"color": "black", "width": 1})
    return _note(figure, "1 / M: succeeds above", x=0.01, xref="paper", y=-math.log10(data.M), yanchor="top")
