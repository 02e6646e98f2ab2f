"""Figures drawn by plotly."""

from __future__ import annotations

import math
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from probe.figures.figure_data import (
    Chart,
    Drawable,
    DriftMap,
    Grid,
    Line,
    Panel,
    Point,
    Rule,
    TileMap,
    token_texts,
)
from probe.figures.heatmap import block_size, is_regular
from probe.figures.interactive_maps import draw_drift_map, draw_tile_map
from probe.figures.plotly_theme import colour_bar, colour_title, escaped, subplots, top_title
from probe.figures.styles import BLACK

_ROW_PIXELS, _LEAST_PIXELS, _EDGE_PIXELS, _BELOW = 150, 330, 230, 140
_ENTRY = 42  # characters in a line of the legend, which has room on a phone
_MARKERS = 9  # of a line with too many values for one at each


def draw(figure: Drawable) -> go.Figure:
    """The plotly figure of what `probe.figures.figure_data` holds."""
    if isinstance(figure, TileMap):
        return draw_tile_map(figure)
    if isinstance(figure, DriftMap):
        return draw_drift_map(figure)
    return _draw_grid(figure) if isinstance(figure, Grid) else _draw_chart(figure)


def _draw_grid(grid: Grid) -> go.Figure:
    rows, columns = len(grid.cells), len(grid.cells[0])
    figure = subplots(
        rows,
        columns,
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=min(0.012, 0.3 / columns),
        vertical_spacing=0.12 / rows,
    )
    shapes: list[dict[str, Any]] = []
    for row, cells in enumerate(grid.cells, 1):
        for column, cell in enumerate(cells, 1):
            method = grid.group_titles[(column - 1) // len(grid.region_titles)]
            unit = grid.colour_title.rpartition("(")[2].rstrip(")")
            figure.add_trace(_heatmap(cell, grid.limits[row - 1], row == column == 1, method, unit), row, column)
            first, last = cell["position"].values[[0, -1]]
            if first < grid.trained_length < last:
                shapes.append(_trained_line(grid.trained_length, (row - 1) * columns + column))
        figure.update_yaxes(title_text=grid.row_titles[row - 1], row=row, col=1)
    if not is_regular(grid.cells[0][0]):
        figure.update_yaxes(type="category")
    figure.update_layout(shapes=shapes)  # all at once: `add_vline` takes longer than everything else
    _grid_layout(figure, grid, rows, columns)
    return figure


def _trained_line(trained_length: int, number: int) -> dict[str, Any]:
    """The line at M in the subplot of that number, from 1."""
    axis = "" if number == 1 else number
    ends = {"x0": trained_length, "x1": trained_length, "xref": f"x{axis}", "y0": 0, "y1": 1, "yref": f"y{axis} domain"}
    return {"type": "line", "line": {"color": BLACK, "width": 1.5, "dash": "dash"}, **ends}


def _draw_chart(chart: Chart) -> go.Figure:
    figure = subplots(
        1, len(chart.panels), horizontal_spacing=0.12, subplot_titles=[escaped(p.title) for p in chart.panels]
    )
    listed: set[Any] = set()
    for column, panel in enumerate(chart.panels, 1):
        bands = [_band(line, line.interval) for line in panel.in_order if line.band and line.interval is not None]
        for band in bands:
            figure.add_trace(band, 1, column)
        for trace in [*(_line(line, panel) for line in panel.in_order), *(_point(point) for point in panel.points)]:
            figure.add_trace(trace.update(legendgroup=trace.name, showlegend=trace.name not in listed), 1, column)
            listed.add(trace.name)
        for rule in panel.rules:
            _add_rule(figure, rule, panel, column)
        _axes(figure, panel, column)
    figure.update_layout(
        title={"text": escaped(chart.title), "x": 0.01, "y": 0.98, "yanchor": "top"},
        height=520,
        margin={"t": 90, "b": 150, "l": 80, "r": 30},
        legend={"orientation": "h", "y": -0.25, "yanchor": "top", "x": 0},
    )
    return figure


def _entry(text: str) -> str:
    """A text in lines, for the legend."""
    return "<br>".join(map(escaped, wrap(text, _ENTRY)))


def _line(line: Line, panel: Panel) -> go.Scatter:
    mode, stroke = "lines+markers", {"color": line.colour, "dash": line.dash, "width": 1.5 if line.crowded else 2}
    if line.dash == "none":
        mode, stroke = "markers", {"color": line.colour}
    trace = go.Scatter(
        x=line.x,
        y=line.y,
        name=_entry(line.label),
        mode=mode,
        line=stroke,
        marker={"symbol": line.symbol, "size": 8, "color": line.colour, "maxdisplayed": _MARKERS * line.crowded},
        opacity=0.35 if line.faint else 1,
    )
    hover = [panel.title, line.label, f"{panel.x_title}: %{{x}}", f"{panel.y_title}: %{{y:.4g}}"]
    if line.tokens:
        hover.append("%{customdata}")
        trace.update(customdata=list(map(escaped, line.tokens)))
    trace.update(hovertemplate="<br>".join(map(escaped, hover)) + "<extra></extra>")
    if line.texts:
        trace.update(text=list(map(escaped, line.texts)), hovertemplate="%{text}<extra></extra>")
    if line.interval is not None and not line.band:
        low, high = line.interval
        ends = {"array": high - line.y, "arrayminus": line.y - low, "symmetric": False}
        trace.update(error_y={"type": "data", "thickness": 1, "width": 3, **ends})
    return trace


def _band(line: Line, interval: tuple[np.ndarray, np.ndarray]) -> go.Scatter:
    """The interval of a line as a closed area; the legend toggles it with its line."""
    known = np.isfinite(interval).all(axis=0)
    low, high = (ends[known] for ends in interval)
    x = line.x[known]
    return go.Scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([low, high[::-1]]),
        fill="toself",
        fillcolor=line.colour,
        opacity=0.15,
        line={"width": 0},
        mode="lines",
        legendgroup=_entry(line.label),
        showlegend=False,
        hoverinfo="skip",
    )


def _point(point: Point) -> go.Scatter:
    marker = {"symbol": "diamond-open", "size": 15, "color": point.colour, "line": {"width": 3}}
    text = escaped(point.text)
    hover = f"{text}<extra></extra>"
    return go.Scatter(
        x=[point.x], y=[point.y], name=_entry(point.text), mode="markers", marker=marker, hovertemplate=hover
    )


def _add_rule(figure: go.Figure, rule: Rule, panel: Panel, column: int) -> None:
    place: dict[str, Any] = {"row": 1, "col": column}
    line = {"color": rule.colour, "dash": rule.dash, "width": 1.5}
    (figure.add_vline if rule.vertical else figure.add_hline)(rule.at, line=line, **place)
    if rule.vertical:  # an annotation on a logarithmic axis takes the logarithm, a line does not
        where: dict[str, Any] = {
            "x": math.log10(rule.at) if panel.log_x else rule.at,
            "y": 1,
            "yref": "y domain",
            "yanchor": "top",
        }
    else:
        below = rule.at > sum(panel.y_range) / 2
        where = {"x": 0, "xref": "x domain", "y": rule.at, "yanchor": "top" if below else "bottom"}
    text = {"text": escaped(rule.text), "font": {"color": rule.colour}, "bgcolor": "rgba(255, 255, 255, 0.8)"}
    figure.add_annotation(**text, **where, xanchor="left", showarrow=False, **place)


def _axes(figure: go.Figure, panel: Panel, column: int) -> None:
    figure.update_yaxes(title_text=escaped(panel.y_title), range=panel.y_range, zeroline=False, row=1, col=column)
    figure.update_xaxes(title_text=escaped(panel.x_title), title_standoff=8, zeroline=False, row=1, col=column)
    if panel.x_range is not None:
        ends = [math.log10(end) for end in panel.x_range] if panel.log_x else list(panel.x_range)
        pad = 0.04 * (ends[1] - ends[0])
        figure.update_xaxes(range=[ends[0] - pad, ends[1] + pad], row=1, col=column)
    if panel.log_x:
        ticks = list(panel.x_ticks)
        texts = [str(tick) for tick in ticks]
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=texts, row=1, col=column)
    elif panel.x_ticks:
        labels = [escaped(label) for label in panel.x_labels or map(str, panel.x_ticks)]
        figure.update_xaxes(tickvals=list(panel.x_ticks), ticktext=labels, tickangle=0, row=1, col=column)


def _heatmap(cell: xr.DataArray, limit: float, scale: bool, method: str, unit: str) -> go.Heatmap:
    """One cell, coloured from -limit to limit; scale: with the colour scale."""
    spans = {name: _span_text(cell, name) for name in ("dim", "position")}
    tokens = token_texts(cell) if block_size(cell, "position") == 1 else ()
    texts = np.broadcast_to(np.array(list(map(escaped, tokens)), object), cell.shape) if tokens else None
    return go.Heatmap(
        z=cell.values.astype(np.float32),
        x=cell["position"].values,
        y=cell["dim"].values,
        zmin=-limit,
        zmax=limit,
        colorscale="RdBu_r",
        showscale=scale,
        colorbar=colour_bar({-limit: "-limit", 0: "0", limit: "limit"}),
        customdata=texts,
        hovertemplate=f"{escaped(method)}<br>layer {cell['layer'].item()}<br>{spans['dim']} %{{y}}"
        f"<br>{spans['position']} %{{x}}{'<br>%{customdata}' if tokens else ''}"
        f"<br>value %{{z:.4g}} {escaped(unit)}<extra></extra>",
    )


def _span_text(cell: xr.DataArray, name: str) -> str:
    """What a label on hovering means: one dim or position, or the first of a block."""
    block = block_size(cell, name)
    return name if block == 1 else f"{block} {name}s from"


def _grid_layout(figure: go.Figure, grid: Grid, rows: int, columns: int) -> None:
    regions = len(grid.region_titles)
    for column in range(1, columns + 1):
        title = f"positions<br>{grid.region_titles[(column - 1) % regions]}"
        figure.update_xaxes(title_text=title, title_font_size=12, nticks=2, tickangle=0, row=rows, col=column)
    for group, title in enumerate(grid.group_titles):
        place = {"x": 0, "xref": f"x{group * regions + 1 if group else ''} domain", "y": 1, "yref": "paper"}
        anchors = {"xanchor": "left", "yanchor": "bottom"}
        figure.add_annotation(text=f"<b>{escaped(title)}</b>", showarrow=False, font_size=14, **place, **anchors)
    figure.add_annotation(**colour_title(grid.colour_title, _BELOW))
    figure.update_yaxes(autorange="reversed", nticks=4)
    figure.update_layout(
        title=top_title(grid.title),
        height=max(rows * _ROW_PIXELS, _LEAST_PIXELS) + _EDGE_PIXELS,
        margin={"t": 90, "b": _BELOW, "l": 80, "r": 30},
    )
