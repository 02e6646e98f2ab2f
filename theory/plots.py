"""Static plots (matplotlib, PNG) of what theory.curves and theory.table measure."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from theory.figures import curve_end
from theory.labels import IDEAL, NOPE, PE, STAIR, WEAVE

if TYPE_CHECKING:
    from theory.table import Row

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


def _marks(panel: Any, data: xr.Dataset, heights: tuple[float, float, float]) -> None:
    """Vertical lines at M and at both T*."""
    marks = (("M", data.M, "#D55E00"), ("T* stair", data.T_stair, "#009E73"), ("T* weave", data.T_weave, "#0072B2"))
    for (name, position, color), height in zip(marks, heights, strict=True):
        panel.axvline(position, color=color, ls=":", lw=1.2)
        panel.text(position * 1.03, height, f"{name} = {position:.4g}", color=color, fontsize=8)


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
    _marks(panel, data, (3.7, 3.7, 3.7))
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


def table_plot(table: list[Row]) -> Figure:
    """Ideal and measured first failures over M; one panel a width E, one style a window N."""
    widths = list(dict.fromkeys(row.E for row in table))
    figure, panels = _figure(len(widths))
    lengths, windows = sorted({row.M for row in table}), sorted({row.N for row in table})
    for panel, width in zip(panels, widths, strict=True):
        for place, N in enumerate(sorted({row.N for row in table if width == row.E})):
            chosen = [row for row in table if width == row.E and row.N == N]
            look, M = SERIES[windows.index(N) % len(SERIES)], [row.M for row in chosen]
            color, marker = look["color"], look["marker"]
            panel.plot(M, [row.ideal for row in chosen], color=color, ls=look["ls"], lw=1.4)
            measured = [np.nan if row.measured is None else row.measured for row in chosen]
            panel.plot(M, measured, color=color, ls="", marker=marker, ms=5, mfc="none")
            beyond = [row.tried if row.measured is None else np.nan for row in chosen]
            panel.plot([1.04**place * each for each in M], beyond, color=color, ls="", marker=marker, ms=5)
            panel.plot([], [], label=f"N = {N}", mfc="none", ms=5, lw=1.4, **look)
        panel.plot(lengths, lengths, color="#D55E00", lw=1, ls=":")
        title = "weave (theorem 3.3)" if width is None else f"Stair PE, E = {width}"
        panel.set(xscale="log", yscale="log", title=title, ylim=(3, 2 * max(row.tried for row in table)))
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
