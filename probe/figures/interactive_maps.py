"""Maps of tiles and of drift drawn by plotly."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go

from probe.figures.figure_data import (
    DRIFT_COLOUR_TITLE,
    DRIFT_COLOURS,
    DRIFT_NOTE,
    DRIFT_TICKS,
    MUTED,
    NOTE,
    Block,
    DriftMap,
    MethodDrift,
    TileMap,
)
from probe.figures.plotly_theme import colour_bar, colour_title, escaped, subplots, top_title
from probe.figures.styles import BLACK, GREY

_ROW, _LEAST, _EDGES = 26, 190, {"t": 95, "b": 185, "l": 80, "r": 30}  # pixels, of a tile map
_LAYER, _LOW, _HIGH, _BETWEEN = 16, 70, 260, 34  # pixels, of a drift map
_DRIFT_EDGES = {"t": 90, "b": 195, "l": 60, "r": 20}
_AXIS = 55  # pixels, of the axis below a drift map
_NOTE_CHARACTERS = 42  # in a line of the note, which fits a phone


def draw_tile_map(tiles: TileMap) -> go.Figure:
    """Blocks side by side; hover texts give place, value and interval; tiles that are not clear are hatched."""
    widths = [float(len(block.columns)) + 0.5 for block in tiles.blocks]
    titles = [escaped(block.title) for block in tiles.blocks]
    gap = min(0.03, 0.3 / len(widths))
    figure = subplots(
        1, len(widths), shared_yaxes=True, column_widths=widths, subplot_titles=titles, horizontal_spacing=gap
    )
    for column, block in enumerate(tiles.blocks, 1):
        figure.add_trace(_heatmap(block, tiles, column == 1), 1, column)
        figure.add_trace(_hatching(block), 1, column)
        figure.add_trace(_numbers(block), 1, column)
        labels = [escaped(label) for label in block.columns]
        ticks = {"tickvals": list(range(len(labels))), "ticktext": labels, "range": [-0.5, len(labels) - 0.5]}
        figure.update_xaxes(**ticks, row=1, col=column)
    figure.update_xaxes(showgrid=False, zeroline=False, tickfont_size=11)
    figure.update_yaxes(showgrid=False, zeroline=False, range=[len(tiles.rows) - 0.5, -0.5], tickfont_size=11)
    figure.update_yaxes(tickvals=list(range(len(tiles.rows))), ticktext=list(tiles.rows))
    figure.update_yaxes(title_text=escaped(tiles.row_title), row=1, col=1)
    figure.update_annotations(font_size=13)
    figure.add_annotation(**_note(NOTE.replace("; ", "<br>")), yshift=-85)
    figure.add_annotation(**colour_title(tiles.colour_title, _EDGES["b"]))
    return figure.update_layout(
        title=top_title(tiles.title),
        plot_bgcolor="rgba(128, 128, 128, 0.08)",
        height=max(len(tiles.rows) * _ROW, _LEAST) + _EDGES["t"] + _EDGES["b"],
        margin=_EDGES,
        showlegend=False,
    )


def draw_drift_map(drift: DriftMap) -> go.Figure:
    """Maps one below the other over one axis of positions; hover texts give method, layer, positions and distance."""
    rows, layers = len(drift.maps), len(drift.layers)
    height = int(np.clip(_LAYER * layers, _LOW, _HIGH))
    inner = rows * height + (rows - 1) * _BETWEEN
    titles = [escaped(one.title) for one in drift.maps]
    figure = subplots(rows, 1, shared_xaxes=True, subplot_titles=titles, vertical_spacing=_BETWEEN / inner)
    for row, one in enumerate(drift.maps, 1):
        figure.add_trace(_drift_heatmap(drift, one, inner if row == 1 else None), row, 1)
        if one.first is not None:
            figure.add_trace(_drift_mark(drift, one, *one.first), row, 1)
        place: dict[str, Any] = {"row": row, "col": 1}
        figure.add_vline(drift.trained_length, line={"color": BLACK, "width": 1.5, "dash": "dash"}, **place)
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    note = "<br>".join(line for part in DRIFT_NOTE.split("; ") for line in wrap(part, _NOTE_CHARACTERS))
    figure.add_annotation(**_note(note), yanchor="top", yshift=-_AXIS - 65)
    ticks = list(range(0, layers, -(-layers * 16 // height)))  # as many as have room
    figure.update_yaxes(showgrid=False, zeroline=False, range=[layers - 0.5, -0.5], tickvals=ticks)
    figure.update_yaxes(ticktext=[str(drift.layers[at]) for at in ticks], title_text="layer")
    figure.update_xaxes(showgrid=False, zeroline=False, range=[int(drift.edges[0]), int(drift.edges[-1])])
    figure.update_xaxes(title_text=f"position (tokens); dashed: M = {drift.trained_length}", row=rows, col=1)
    return figure.update_layout(
        title=top_title(drift.title),
        plot_bgcolor="rgba(128, 128, 128, 0.25)",
        height=inner + _DRIFT_EDGES["t"] + _DRIFT_EDGES["b"],
        margin=_DRIFT_EDGES,
        showlegend=False,
    )


def _note(text: str) -> dict[str, Any]:
    place = {"x": 0, "xref": "paper", "xanchor": "left", "y": 0, "yref": "paper", "showarrow": False}
    return place | {"text": text, "align": "left", "font": {"size": 12, "color": GREY}}


def _heatmap(block: Block, tiles: TileMap, scale: bool) -> go.Heatmap:
    texts = [
        [
            escaped(f"{tiles.row_title} {row}, {f'{block.title} {column}'.strip()}: {block.text(y, x)}")
            for x, column in enumerate(block.columns)
        ]
        for y, row in enumerate(tiles.rows)
    ]
    return go.Heatmap(
        z=block.values,
        zmin=tiles.scale.low,
        zmax=tiles.scale.high,
        colorscale="RdBu_r" if tiles.scale.low < 0 else "Blues",
        customdata=texts,
        hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False,
        xgap=1,
        ygap=1,
        showscale=scale,
        colorbar=colour_bar(tiles.scale.ticks),
    )


def _hatching(block: Block) -> go.Scatter:
    """Strokes over the muted tiles, as one broken line."""
    rows, columns = np.nonzero(block.muted)
    ends = np.array([(-0.5, 0.0, 0.0, -0.5), (-0.5, 0.5, 0.5, -0.5), (0.0, 0.5, 0.5, 0.0)])  # x, y of both ends
    blank = np.full((len(rows), len(ends)), np.nan)
    x, y = (
        np.stack([at[:, None] + ends[:, axis], at[:, None] + ends[:, axis + 2], blank], axis=-1).ravel()
        for axis, at in enumerate((columns, rows))
    )
    line = {"color": "rgba(128, 128, 128, 0.35)", "width": 1}
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip")


def _numbers(block: Block) -> go.Scatter:
    """The numbers on the tiles, in colours that read on light and dark tiles."""
    rows, columns = np.nonzero(block.texts != "")
    dark, muted = block.dark[rows, columns], block.muted[rows, columns]
    colours = np.where(dark, "#FFFFFF", np.where(muted, MUTED, "#111111"))
    font = {"size": 12, "color": colours.tolist()}
    texts = block.texts[rows, columns].tolist()
    return go.Scatter(x=columns, y=rows, text=texts, mode="text", textfont=font, hoverinfo="skip")


def _drift_heatmap(drift: DriftMap, one: MethodDrift, inner: int | None) -> go.Heatmap:
    """One method's map; inner: height of all maps in pixels, for the one map with the colour scale."""
    judged = np.isfinite(one.doublings)
    texts = np.full(judged.shape, "", dtype=object)
    for row, column in np.argwhere(judged):
        texts[row, column] = escaped(drift.text(one, row, column))
    bar: dict[str, Any] = {"title": {"text": DRIFT_COLOUR_TITLE, "side": "top", "font": {"size": 12}}, "thickness": 12}
    bar |= {"orientation": "h", "y": -_AXIS / (inner or 1), "yanchor": "top", "x": 0, "xanchor": "left", "len": 0.9}
    return go.Heatmap(
        z=np.round(one.doublings, 3),
        x=drift.edges,
        y=np.arange(len(drift.layers) + 1) - 0.5,
        zmin=min(DRIFT_TICKS),
        zmax=max(DRIFT_TICKS),
        colorscale=[list(stop) for stop in DRIFT_COLOURS],
        customdata=texts,
        hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False,
        showscale=inner is not None,
        colorbar=bar | {"tickvals": list(DRIFT_TICKS), "ticktext": list(DRIFT_TICKS.values())},
    )


def _drift_mark(drift: DriftMap, one: MethodDrift, position: int, row: int) -> go.Scatter:
    text = f"{one.method} drifts first at position {position}, in layer {drift.layers[row]}"
    marker = {"symbol": "circle-open", "size": 14, "color": "#111111", "line": {"width": 2.5}}
    hover = f"{escaped(text)}<extra></extra>"
    return go.Scatter(x=[position], y=[row], mode="markers", marker=marker, hovertemplate=hover)
