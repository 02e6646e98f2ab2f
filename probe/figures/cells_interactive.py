"""Tables of numbers drawn by plotly."""

from __future__ import annotations

import html

import numpy as np
import plotly.graph_objects as go

from probe.figures.cells import MUTED, NOTE, Block, Cells
from probe.figures.ground import colour_bar, colour_title, panels
from probe.figures.styles import GREY

_ROW_PIXELS, _LEAST_PIXELS, _EDGES = 26, 190, {"t": 95, "b": 185, "l": 80, "r": 30}


def draw_cells(cells: Cells) -> go.Figure:
    """Blocks side by side; hovering tells place, value and interval; cells that are not clear are hatched."""
    widths = [float(len(block.columns)) + 0.5 for block in cells.blocks]
    titles = [_text(block.title) for block in cells.blocks]
    gap = min(0.03, 0.3 / len(widths))
    figure = panels(
        1, len(widths), shared_yaxes=True, column_widths=widths, subplot_titles=titles, horizontal_spacing=gap
    )
    for column, block in enumerate(cells.blocks, 1):
        figure.add_trace(_heatmap(block, cells, column == 1), 1, column)
        figure.add_trace(_hatching(block), 1, column)
        figure.add_trace(_numbers(block), 1, column)
        labels = [_text(label) for label in block.columns]
        figure.update_xaxes(
            tickvals=list(range(len(labels))), ticktext=labels, range=[-0.5, len(labels) - 0.5], row=1, col=column
        )
    figure.update_xaxes(showgrid=False, zeroline=False, tickfont_size=11)
    figure.update_yaxes(showgrid=False, zeroline=False, range=[len(cells.rows) - 0.5, -0.5], tickfont_size=11)
    figure.update_yaxes(tickvals=list(range(len(cells.rows))), ticktext=list(cells.rows))
    figure.update_yaxes(title_text=_text(cells.row_title), row=1, col=1)
    figure.update_annotations(font_size=13)
    note = {
        "text": NOTE.replace("; ", "<br>"),
        "align": "left",
        "x": 0,
        "xref": "paper",
        "y": 0,
        "yref": "paper",
        "yshift": -85,
        "showarrow": False,
    }
    figure.add_annotation(**note, xanchor="left", font={"size": 12, "color": GREY})
    figure.add_annotation(**colour_title(cells.colour_title, _EDGES["b"]))
    figure.update_layout(
        title={"text": _text(cells.title), "x": 0.01, "y": 1, "yanchor": "top", "pad": {"t": 16}},
        plot_bgcolor="rgba(128, 128, 128, 0.08)",
        height=max(len(cells.rows) * _ROW_PIXELS, _LEAST_PIXELS) + _EDGES["t"] + _EDGES["b"],
        margin=_EDGES,
        showlegend=False,
    )
    return figure


def _text(text: str) -> str:
    """A text in which plotly sees no markup."""
    return html.escape(text, quote=False)


def _heatmap(block: Block, cells: Cells, scale: bool) -> go.Heatmap:
    told = [
        [
            _text(f"{cells.row_title} {row}, {_place(block, column)}: {block.told(y, x)}")
            for x, column in enumerate(block.columns)
        ]
        for y, row in enumerate(cells.rows)
    ]
    return go.Heatmap(
        z=block.values,
        zmin=cells.scale.low,
        zmax=cells.scale.high,
        colorscale="RdBu_r" if cells.scale.low < 0 else "Blues",
        customdata=told,
        hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False,
        xgap=1,
        ygap=1,
        showscale=scale,
        colorbar=colour_bar(cells.scale.ticks),
    )


def _place(block: Block, column: str) -> str:
    return f"{block.title} {column}".strip()


def _hatching(block: Block) -> go.Scatter:
    """Strokes over the muted cells, as one broken line."""
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
    """What is written in the cells; cells are light or dark on any ground."""
    rows, columns = np.nonzero(block.texts != "")
    dark, muted = block.dark[rows, columns], block.muted[rows, columns]
    colours = np.where(dark, "#FFFFFF", np.where(muted, MUTED, "#111111"))
    texts = block.texts[rows, columns].tolist()
    font = {"size": 12, "color": colours.tolist()}
    return go.Scatter(x=columns, y=rows, text=texts, mode="text", textfont=font, hoverinfo="skip")
