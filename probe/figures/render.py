"""Figures as parts of pages and as files: HTML that opens offline, PNG, SVG and PDF."""

from __future__ import annotations

import html
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from mesa.errors import Refused
from probe.figures.figure_data import Chart, Drawable, Figure, Raster
from probe.figures.interactive import ROOM_BELOW, draw
from probe.figures.static import picture, write_png
from probe.files import GENERATOR

PICTURES = ("html", "png", "svg", "pdf")
PANEL_WIDTH = 330
"""Pixels that a panel of a chart needs."""
_HEAD = 40  # pixels of the title

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8">{generator}<meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
{css}body {{ font: 16px/1.5 Helvetica, Arial, sans-serif; color: var(--text); background: var(--page); }}
</style></head>
<body>
{figure}
<script>
{js}</script>
</body>
</html>
"""


def rendered(figure: Figure, form: str) -> bytes:
    """The content of the figure's html, png, svg or pdf file; the same bytes for the same figure.

    Raises Refused for an unknown format.
    """
    if form not in PICTURES:
        raise Refused(f"a figure has no format {form!r}; known: {', '.join(PICTURES)}")
    if not isinstance(figure, Raster):
        return page(figure) if form == "html" else picture(figure, form)
    if form != "png":
        raise Refused(f"one pixel a cell is png, not {form}; leave --native out")
    file = io.BytesIO()
    write_png(figure.values, file, figure.limits)
    return file.getvalue()


def asset(name: str) -> str:
    """A style sheet or a script of pages, from this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def page(figure: Drawable, plotly_js: bool | str = True) -> bytes:
    """The figure's HTML page, with plotly.js in it, or, for "directory", beside it as plotly.min.js."""
    plot = html_embed(figure, plotly_js, "figure")
    css, js = (asset(f"page.{kind}") + asset(f"table.{kind}") for kind in ("css", "js"))
    return _PAGE.format(generator=GENERATOR, title=html.escape(figure.title), figure=plot, css=css, js=js).encode()


def html_embed(figure: Drawable, plotly_js: bool | str = False, div_id: str | None = None) -> str:
    """The figure's HTML with its title as a caption; plotly_js: as in `to_html`, False for a page that has it."""
    config = {"responsive": True, "displaylogo": False}
    options = {"full_html": False, "include_plotlyjs": plotly_js, "config": config, "div_id": div_id}
    inner, width = "", PANEL_WIDTH if isinstance(figure, Chart) else least_width(figure)
    for number, drawn in enumerate(plots(figure)):
        plot = drawn.to_html(validate=False, **options)
        inner += f'<div style="flex: 1 1 {PANEL_WIDTH}px; min-width: {width}px">{plot}</div>'
        options |= {"include_plotlyjs": False, "div_id": div_id and f"{div_id}-{number + 2}"}
    title = html.escape(figure.title, quote=False)
    caption = f'<figcaption style="position: sticky; left: 0">{title}</figcaption>'
    inner = f'<div style="display: flex; flex-wrap: wrap; gap: 0 24px">{inner}</div>'
    seen = f'<p style="margin: 0">{html.escape(figure.seen, quote=False)}</p>' if figure.seen else ""
    figure_style, kind = "margin: 1em 0 0; overflow-x: auto", "chart" if isinstance(figure, Chart) else "maps"
    basis = f"{least_width(figure)}px" if isinstance(figure, Chart) else "100%"  # charts stand beside each other
    drawn = f'<figure style="{figure_style}">{caption}{inner}</figure>{seen}'
    return f'<div class="{kind}" style="flex: 1 1 {basis}">{drawn}</div>'


def least_width(figure: Drawable) -> int:
    """Pixels below which parts of the figure would overlap: a narrower page scrolls it sideways."""
    if isinstance(figure, Chart):
        return PANEL_WIDTH * len(figure.panels)
    is_plain = len(figure.columns) == 1 and all(cell.numbers is None for row in figure.cells for cell in row)
    return PANEL_WIDTH if is_plain else 110 + int(70 * figure.width)


def plots(figure: Drawable) -> list[go.Figure]:
    """A plotly figure a panel, so that a phone has them one below the other, with axes at the same height; or one.

    Without the title, and the room for it: on pages that is text that wraps. What a legend takes on a phone, plotly
    takes from the plot of a single panel, which is taller where the page is wider.
    """
    parts = [replace(figure, panels=(panel,)) for panel in figure.panels] if isinstance(figure, Chart) else [figure]
    drawn: list[Any] = [draw(part) for part in parts]
    top, below = (max(one.layout.margin[side] for one in drawn) for side in ("t", "b"))
    for one in drawn:
        margin = one.layout.margin
        height = one.layout.height + top - margin.t + below - margin.b - _HEAD
        margins = {"t": top - _HEAD, "b": ROOM_BELOW if len(parts) == 1 and isinstance(figure, Chart) else below}
        one.update_layout(height=height, margin=margins | {"pad": 0}, title_text=None)
    return drawn
