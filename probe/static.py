"""Static figures (matplotlib, for PNG and SVG) of what `probe.marks` works out."""

from __future__ import annotations

from collections.abc import Sequence

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probe.failure import Measured
from probe.heatmap import COLORMAP
from probe.marks import BLACK, Chart, Panel, curves_chart, heatmap_grid, threshold_chart
from probe.predict import Prediction

_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_MARKERS = {"circle": "o", "square": "s", "triangle-up": "^", "triangle-down": "v", "diamond": "D", None: None}


def static_threshold(hidden: xr.DataArray, found: xr.Dataset, layer: int, dim: int) -> Figure:
    """The figure of `threshold_chart`; save it with `figure.savefig(path)`."""
    return _draw(threshold_chart(hidden, found, layer, dim))


def static_curves(
    evaluation: xr.Dataset, measured: Measured, trained_length: int, predictions: Sequence[Prediction] = ()
) -> Figure:
    """The figure of `curves_chart`; save it with `figure.savefig(path)`."""
    return _draw(curves_chart(evaluation, measured, trained_length, predictions))


def static_heatmap(panel: xr.DataArray, trained_length: int, limits: xr.DataArray | None = None) -> Figure:
    """`panel` ([method,] layer, dim, position), from `regions` or `pool`; `figure.savefig(path)` saves it."""
    grid = heatmap_grid(panel, trained_length, limits)
    rows, columns = len(grid.cells), len(grid.cells[0])
    figure = Figure(figsize=(2.2 + 1.9 * columns, 1.2 + 1.4 * rows), dpi=120, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    each = len(grid.region_titles)
    image = None
    for row, cells in enumerate(grid.cells):
        for column, cell in enumerate(cells):
            axis = axes[row, column]
            edges = [*_edges(cell, "position"), *_edges(cell, "dim")[::-1]]
            bounds = {"vmin": -1, "vmax": 1}
            image = axis.imshow(
                cell.values / grid.limits[row],
                cmap=COLORMAP,
                aspect="auto",
                extent=edges,
                interpolation="nearest",
                **bounds,
            )
            if edges[0] < grid.trained_length < edges[1]:
                axis.axvline(grid.trained_length, color=BLACK, linestyle="--", linewidth=1)
            axis.tick_params(labelsize=8, labelleft=column == 0, labelbottom=row == rows - 1)
            axis.locator_params(nbins=3)
        axes[row, 0].set_ylabel(grid.row_titles[row])
    for column in range(columns):
        axes[-1, column].set_xlabel(f"positions\n{grid.region_titles[column % each]}", fontsize=9)
    for group, title in enumerate(grid.group_titles):
        axes[0, group * each].set_title(title, loc="left", fontweight="bold")
    if image is not None:
        bar = figure.colorbar(image, ax=axes, label=grid.colour_title, fraction=0.03, pad=0.01, ticks=[-1, 0, 1])
        bar.ax.set_yticklabels(["-limit", "0", "limit"])
    figure.suptitle(grid.title)
    return figure


def _edges(cell: xr.DataArray, name: str) -> list[float]:
    last = cell[f"{name}_last"] if f"{name}_last" in cell.coords else cell[name]
    return [float(cell[name].values[0]) - 0.5, float(last.values[-1]) + 0.5]


def _draw(chart: Chart) -> Figure:
    figure = Figure(figsize=(6.2 * len(chart.panels), 5.4), dpi=120, layout="constrained")
    axes = figure.subplots(1, len(chart.panels), squeeze=False)[0]
    for axis, panel in zip(axes, chart.panels, strict=True):
        _draw_panel(axis, panel)
    listed = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            listed.setdefault(label, handle)
    where = {"loc": "outside lower left", "ncols": 2 * len(chart.panels), "frameon": False, "fontsize": 9}
    figure.legend(listed.values(), listed.keys(), **where)
    figure.suptitle(chart.title)
    return figure


def _draw_panel(axis: Axes, panel: Panel) -> None:
    for line in panel.lines:
        marks = {"linestyle": _DASHES[line.dash], "marker": _MARKERS[line.symbol], "markersize": 5}
        axis.plot(line.x, line.y, color=line.colour, label=line.label, linewidth=1.2, **marks)
    for point in panel.points:
        marks = {"markersize": 10, "markerfacecolor": "none", "markeredgewidth": 2.2}
        axis.plot(point.x, point.y, "D", color=point.colour, label=point.text, **marks)
    for rule in panel.rules:
        style = {"color": rule.colour, "linestyle": _DASHES[rule.dash], "linewidth": 1.2}
        if rule.vertical:
            axis.axvline(rule.at, **style)
            place = {"xycoords": ("data", "axes fraction"), "xytext": (4, -2), "ha": "left", "va": "top"}
            axis.annotate(rule.text, (rule.at, 1), textcoords="offset points", fontsize=9, **place)
        else:
            axis.axhline(rule.at, **style)
            below = rule.at > sum(panel.y_range) / 2
            place = {"xytext": (4, -4 if below else 4), "ha": "left", "va": "top" if below else "bottom"}
            where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
            axis.annotate(rule.text, (0, rule.at), color=rule.colour, fontsize=9, bbox=box, **where, **place)
    axis.set(title=panel.title, xlabel=panel.x_title, ylabel=panel.y_title, ylim=panel.y_range)
    axis.spines[["top", "right"]].set_visible(False)
    if panel.log_x:
        axis.set_xscale("log", base=2)
        axis.set_xticks(panel.x_ticks, [str(tick) for tick in panel.x_ticks], rotation=45)
        axis.minorticks_off()
