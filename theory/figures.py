"""The constructions' names, as labels of data and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from matplotlib.figure import Figure

from theory.bounds import extended_length

"""The constructions' names, as labels of data and figures."""

NOPE, PE, WEAVE, IDEAL, STAIR = "NoPE", "PE", "weave", "weave, ideal recovery", "Stair"
"""Theorem 3.1, theorem 3.2, theorem 3.3 with the step MLP, theorem 3.3 with ideal recovery, the corollary."""


LINES = {
    NOPE: {"color": "#999999", "width": 6},
    PE: {"color": "#D55E00", "width": 2},
    WEAVE: {"color": "#0072B2", "width": 2},
    IDEAL: {"color": "#0072B2", "width": 2, "dash": "dash"},
    STAIR: {"color": "#009E73", "width": 1.5},
}


def curve_data(rows: Mapping[str, tuple[np.ndarray, ...]], M: int, N: int, E: int, H: float) -> xr.Dataset:
    """o_t - H, the recovered position and the attention on <bos>, of each row, over (construction, t); T* in attrs."""
    names = {"excess": "head output o_t - H", "position": "recovered position", "attention": "attention on <bos>"}
    values = np.stack([np.stack(row) for row in rows.values()], 1)
    variables: dict[str, Any] = {
        name: (("construction", "t"), array, {"long_name": title})
        for (name, title), array in zip(names.items(), values, strict=True)
    }
    coords = {"construction": list(rows), "t": np.arange(1, values.shape[-1] + 1)}
    reach = {"T_weave": extended_length(M, N), "T_stair": extended_length(M, N, E)}
    return xr.Dataset(variables, coords, {"M": M, "N": N, "E": E, "H": H, **reach})


def reach_marks(data: xr.Dataset) -> list[tuple[str, float, str]]:
    """Label, position and colour of the crossing at M and of both T*."""
    return [("M", data.M, "#D55E00"), ("T* stair", data.T_stair, "#009E73"), ("T* weave", data.T_weave, "#0072B2")]


def curve_end(data: xr.Dataset | xr.DataArray) -> str:
    """Where the curves over t stop, and why, where a T* lies beyond; empty where none does."""
    end = int(data.t[-1])
    reaches = {"Stair PE": data.attrs["T_stair"], "the weave": data.attrs["T_weave"]}
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
            figure.add_scatter(x=line.t.values, y=line.values, name=str(name), line=LINES[str(name)], mode="lines")
    end = wrap(curve_end(data), 50)
    if end:
        _note(figure, "<br>".join(end), x=0, xref="paper", y=1.01, yref="paper", yanchor="bottom", align="left")
    figure.update_xaxes(type="log", title="position t")
    figure.update_yaxes(title=data.attrs["long_name"])
    look: dict[str, Any] = {"template": "plotly_white", "height": 460, "margin": {"t": 40 + 14 * len(end), "r": 20}}
    return figure.update_layout(
        **look, hovermode="x unified", legend={"orientation": "h", "y": -0.22, "yanchor": "top"}
    )


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
    for place, (name, position, color) in enumerate(reach_marks(data)):  # one below the other, for they stand close
        figure.add_vline(position, line={"color": color, "dash": "dot"})
        _note(figure, f"{name} = {position:.5g}", x=math.log10(position), y=least + 3.9 - 0.3 * place, yref="y")
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


def dimension_figure(output: xr.DataArray) -> go.Figure:
    """Layer 2's attention output minus its value at t = M, dimensions by positions: only the third one turns there.

    Each dimension is drawn as a share of its own largest value, so that the free ones do not outshine it.
    """
    change = output - output.sel(t=output.attrs["M"])
    largest = abs(change).max("t")
    change = change / largest.where(largest > 0, 1)
    figure = go.Figure(
        go.Heatmap(
            x=output.t.values,
            y=[f"{dimension}" for dimension in output.dimension.values],
            z=change.values,
            zmin=-1,
            zmax=1,
            colorscale="RdBu_r",
            colorbar={"title": "change from M,<br>share of largest"},
        )
    )
    figure.add_vline(output.attrs["M"], line={"color": "black", "dash": "dash"}, annotation_text="M")
    figure.update_xaxes(title="position t")
    figure.update_yaxes(title="dimension", autorange="reversed", type="category")
    return figure.update_layout(template="plotly_white", height=360, margin={"t": 40, "r": 20})


STYLES: dict[str, dict[str, Any]] = {
    NOPE: {"color": "#888888", "lw": 4, "alpha": 0.6},
    PE: {"color": "#D55E00", "lw": 1.6},
    WEAVE: {"color": "#0072B2", "lw": 1.8},
    IDEAL: {"color": "#0072B2", "lw": 1.4, "ls": "--"},
    STAIR: {"color": "#009E73", "lw": 1.4},
}
"""One style a construction; NoPE and PE coincide, so one is drawn wide."""
SERIES: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "ls": "-", "marker": "o"},
    {"color": "#0072B2", "ls": "--", "marker": "s"},
    {"color": "#C47F00", "ls": "-.", "marker": "^"},
    {"color": "#A8326E", "ls": (0, (5, 2, 1, 2, 1, 2)), "marker": "D"},
    {"color": "#009E73", "ls": ":", "marker": "v"},
)
"""Colour, dash and marker of what is no construction, by its place in the legend; told apart in grey too."""

LABELS = {
    NOPE: "NoPE (3.1)",
    PE: "PE (3.2)",
    WEAVE: "weave (3.3), step MLP",
    IDEAL: "weave (3.3), ideal recovery",
    STAIR: "Stair PE (corollary)",
}


def _figure(count: int = 1) -> tuple[Figure, list[Any]]:
    """A figure with that many panels, two in a row."""
    columns, lines = min(count, 2), (count + 1) // 2
    figure = Figure(figsize=(8 if count == 1 else 9.6, 4.2 * lines), layout="constrained", dpi=130)
    panels = [figure.add_subplot(lines, columns, place + 1) for place in range(count)]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    return figure, panels


def crossing_plot(data: xr.Dataset) -> Figure:
    """o_t - H over t for every construction."""
    figure, (panel,) = _figure()
    for name in data.construction.values:
        panel.plot(data.t, data.excess.sel(construction=name), label=LABELS[name], **STYLES[name])
    panel.axhline(0, color="black", lw=0.8)
    panel.set(
        xscale="log", xlabel="position t", ylabel="$o_t - H$ (above 4: not drawn)", ylim=(-1.1, 4), xlim=(2, data.t[-1])
    )
    panel.text(2.1, 0.06, "above: succeeds", fontsize=8)
    panel.text(2.1, -0.2, "below: fails", fontsize=8)
    for name, position, color in reach_marks(data):
        panel.axvline(position, color=color, ls=":", lw=1.2)
        panel.text(position * 1.03, 3.7, f"{name} = {position:.4g}", color=color, fontsize=8)
    panel.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    title = f"Head output of layer 2 (M = {data.M}, N = {data.N}, E = {data.E})"
    panel.set_title("\n".join([title, *wrap(curve_end(data), 75)]), fontsize=10)
    return figure


def position_plot(data: xr.Dataset) -> Figure:
    """The recovered position, and the attention on <bos>, over t."""
    figure, (left, right) = _figure(2)
    for name in data.construction.values:
        if name != NOPE:
            left.plot(data.t, data.position.sel(construction=name), label=LABELS[name], **STYLES[name])
        right.plot(data.t, data.attention.sel(construction=name), label=LABELS[name], **STYLES[name])
    left.set(xscale="log", yscale="log", xlabel="position t", ylabel="position that layer 1 recovers")
    right.axhline(1 / data.M, color="black", lw=0.8)
    right.text(1.1, 0.85 / data.M, "above 1/M: succeeds, below: fails", fontsize=8, va="top")
    right.set(xscale="log", yscale="log", xlabel="position t", ylabel="layer 2's attention on <bos>, 1 / D(t)")
    left.legend(fontsize=8, frameon=False)
    if end := curve_end(data):
        figure.suptitle(end, fontsize=9)
    return figure


def recovery_plot(tables: list[xr.DataArray]) -> Figure:
    """The worst position error up to the range that an MLP is built for, one panel a dtype; ends where it overflows."""
    figure, panels = _figure(len(tables))
    for panel, table in zip(panels, tables, strict=True):
        for place, mlp in enumerate(table.mlp.values):
            error = table.sel(mlp=mlp)
            so_far = np.maximum.accumulate(np.where(np.isfinite(error), error, np.nan))
            every = max(1, len(so_far) // 8)
            panel.plot(table.positions, so_far.clip(1e-14), label=mlp, lw=1.6, ms=4, markevery=every, **SERIES[place])
        panel.axhline(1e-2, color="black", lw=0.8, ls=":")
        panel.set(yscale="log", ylim=(5e-15, 1e3), xlabel="positions T that the MLP is built for")
        panel.set(ylabel="worst position error", title=table.dtype_name)
    panels[0].text(float(tables[0].positions[-1]), 1.4e-2, "exact below", ha="right", fontsize=8)
    panels[-1].legend(fontsize=8, frameon=False)
    return figure


def table_plot(table: pd.DataFrame) -> Figure:
    """Ideal and measured first failures over M; one panel a width E, one style a window N."""
    figure, panels = _figure(table.E.nunique(dropna=False))
    lengths, windows = sorted(table.M.unique()), sorted(table.N.unique())
    for panel, (width, rows) in zip(panels, table.groupby("E", dropna=False, sort=False), strict=True):
        for place, (N, line) in enumerate(rows.groupby("N")):
            look = SERIES[windows.index(N) % len(SERIES)]
            marks = {"color": look["color"], "ls": "", "marker": look["marker"], "ms": 5}
            panel.plot(line.M, line.ideal, color=look["color"], ls=look["ls"], lw=1.4)
            panel.plot(line.M, line.measured.astype(float), mfc="none", **marks)
            panel.plot(1.04**place * line.M, line.tried.where(line.measured.isna()), **marks)
            panel.plot([], [], label=f"N = {N}", mfc="none", ms=5, lw=1.4, **look)
        panel.plot(lengths, lengths, color="#D55E00", lw=1, ls=":")
        title = "weave (theorem 3.3)" if width is pd.NA else f"Stair PE, E = {width}"
        panel.set(xscale="log", yscale="log", title=title, ylim=(3, 2 * table.tried.max()))
        panel.set(xlabel="window M", ylabel="first failing t (dotted: M)")
        panel.set_xticks(lengths, lengths)
        panel.minorticks_off()
    panels[0].legend(fontsize=8, frameon=False, loc="lower right")
    marks = "line: closed form\nempty mark: measured\nfull mark: none up to there, side by side"
    panels[-1].text(0.02, 0.98, marks, transform=panels[-1].transAxes, va="top", fontsize=9)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG."""
    figure.savefig(path, metadata={"Software": None})
