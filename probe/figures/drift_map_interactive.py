"""Drift maps drawn by plotly."""

from __future__ import annotations

import html
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go

from probe.figures.drift_map import COLOUR_TITLE, COLOURS, NOTE, TICKS, DriftMap, Map
from probe.figures.ground import panels
from probe.figures.styles import BLACK, GREY

_ROW_PIXELS, _LEAST, _MOST, _BETWEEN = 16, 70, 260, 34
_EDGES = {"t": 90, "b": 195, "l": 60, "r": 20}
_BELOW = 55  # pixels, of the axis
_NOTE = 42  # characters in a line of the note, which has room on a phone


def draw_drift_map(figure: DriftMap) -> go.Figure:
    """Maps one below the other over one axis of positions; hovering tells method, layer, positions and distance."""
    rows = len(figure.maps)
    each = int(np.clip(_ROW_PIXELS * len(figure.layers), _LEAST, _MOST))
    inner = rows * each + (rows - 1) * _BETWEEN
    titles = [_text(one.title) for one in figure.maps]
    drawn = panels(rows, 1, shared_xaxes=True, subplot_titles=titles, vertical_spacing=_BETWEEN / inner)
    for row, one in enumerate(figure.maps, 1):
        drawn.add_trace(_heatmap(figure, one, inner if row == 1 else None), row, 1)
        if one.first is not None:
            drawn.add_trace(_mark(figure, one, one.first), row, 1)
        place: dict[str, Any] = {"row": row, "col": 1}
        drawn.add_vline(figure.trained_length, line={"color": BLACK, "width": 1.5, "dash": "dash"}, **place)
    drawn.update_annotations(x=0, xanchor="left", font_size=13)
    told = "<br>".join(line for part in NOTE.split("; ") for line in wrap(part, _NOTE))
    note = {"text": told, "x": 0, "xref": "paper", "y": 0, "yref": "paper", "align": "left"}
    look = {"xanchor": "left", "yanchor": "top", "yshift": -_BELOW - 65, "showarrow": False}
    drawn.add_annotation(**note, **look, font={"size": 12, "color": GREY})
    ticks = _ticks(len(figure.layers), each)
    drawn.update_yaxes(showgrid=False, zeroline=False, range=[len(figure.layers) - 0.5, -0.5], tickvals=ticks)
    drawn.update_yaxes(ticktext=[str(figure.layers[at]) for at in ticks], title_text="layer")
    drawn.update_xaxes(showgrid=False, zeroline=False, range=[int(figure.edges[0]), int(figure.edges[-1])])
    drawn.update_xaxes(title_text=f"position (tokens); dashed: M = {figure.trained_length}", row=rows, col=1)
    return drawn.update_layout(
        title={"text": _text(figure.title), "x": 0.01, "y": 1, "yanchor": "top", "pad": {"t": 16}},
        plot_bgcolor="rgba(128, 128, 128, 0.25)",
        height=inner + _EDGES["t"] + _EDGES["b"],
        margin=_EDGES,
        showlegend=False,
    )


def _heatmap(figure: DriftMap, one: Map, inner: int | None) -> go.Heatmap:
    there = np.isfinite(one.doublings)
    told = np.full(there.shape, "", dtype=object)
    for row, column in np.argwhere(there):
        told[row, column] = _text(figure.told(one, row, column))
    bar: dict[str, Any] = {"title": {"text": COLOUR_TITLE, "side": "top", "font": {"size": 12}}, "thickness": 12}
    place = {"orientation": "h", "y": -_BELOW / (inner or 1), "yanchor": "top", "x": 0, "xanchor": "left", "len": 0.9}
    return go.Heatmap(
        z=np.round(one.doublings, 3),
        x=figure.edges,
        y=np.arange(len(figure.layers) + 1) - 0.5,
        zmin=min(TICKS),
        zmax=max(TICKS),
        colorscale=[list(each) for each in COLOURS],
        customdata=told,
        hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False,
        showscale=inner is not None,
        colorbar=bar | place | {"tickvals": list(TICKS), "ticktext": list(TICKS.values())},
    )


def _mark(figure: DriftMap, one: Map, first: tuple[int, int]) -> go.Scatter:
    position, row = first
    says = f"{one.method} drifts first at position {position}, in layer {figure.layers[row]}"
    marker = {"symbol": "circle-open", "size": 14, "color": "#111111", "line": {"width": 2.5}}
    return go.Scatter(
        x=[position], y=[row], mode="markers", marker=marker, hovertemplate=f"{_text(says)}<extra></extra>"
    )


def _ticks(layers: int, pixels: int) -> list[int]:
    """Rows that are labelled, as many as have room."""
    step = -(-layers * 16 // pixels)
    return list(range(0, layers, step))


def _text(text: str) -> str:
    """A text in which plotly sees no markup."""
    return html.escape(text, quote=False)
