"""Figures as parts of pages and as files: HTML that opens offline, PNG, SVG and PDF."""

from __future__ import annotations

import html
import importlib
import importlib.util
import io
import json
from typing import Any

import plotly.graph_objects as go

from probe.figures.figure_data import Drawable, Figure, Raster
from probe.figures.interactive import draw
from probe.figures.mobile_layout import LEAST, NARROW, least_width, mobile_layout
from probe.figures.raster import write_png
from probe.figures.static import picture

PICTURES = ("html", "png", "svg", "pdf")
RENDERERS = ("matplotlib", "kaleido")
_PIXELS, _SCALE = 1300, 2
_HEAD = 40  # pixels of the title

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title></head>
<body style="font: 16px/1.5 Helvetica, Arial, sans-serif; color: #222">
{figure}
</body>
</html>
"""
_STACK = f"""<script>
if (innerWidth < {NARROW}) {{
  const room = document.currentScript.previousElementSibling;
  room.style.minWidth = "{LEAST}px";
  const plot = room.querySelector(".plotly-graph-div"), changed = JSON.parse(room.dataset.narrow);
  plot.style.height = plot.parentElement.style.height = changed.height + "px";
  Plotly.relayout(plot, {{...changed, width: null, autosize: true}}).then(() => Plotly.Plots.resize(plot));
}}
</script>"""


def rendered(figure: Figure, form: str, renderer: str = "matplotlib") -> bytes:
    """The content of the figure's html, png, svg or pdf file; the same bytes for the same figure.

    renderer: of png, svg and pdf. kaleido draws the page's picture with Chrome and does not promise the same bytes.
    Raises ValueError for an unknown format or renderer, RuntimeError if kaleido or Chrome is missing.
    """
    if form not in PICTURES:
        raise ValueError(f"a figure has no format {form!r}; known: {', '.join(PICTURES)}")
    check_renderer(renderer)
    if isinstance(figure, Raster):
        return _raster(figure, form)
    if form == "html":
        return page(figure)
    return picture(figure, form) if renderer == "matplotlib" else _by_kaleido(figure, form)


def page(figure: Drawable, plotly_js: bool | str = True) -> bytes:
    """The figure's HTML page, with plotly.js in it, or, for "directory", beside it as plotly.min.js."""
    plot = html_embed(figure, plotly_js, "figure")
    return _PAGE.format(title=html.escape(figure.title), figure=plot).encode()


def html_embed(figure: Drawable, plotly_js: bool | str = False, div_id: str | None = None) -> str:
    """The figure's HTML with its title as a caption; plotly_js: as in `to_html`, False for a page that has it."""
    drawn = untitled(figure)
    config = {"responsive": True, "displaylogo": False}
    options = {"full_html": False, "include_plotlyjs": plotly_js, "config": config, "div_id": div_id}
    plot = drawn.to_html(validate=False, **options)
    changes = mobile_layout(figure, drawn)
    data = html.escape(json.dumps(changes))
    inner = f'<div style="min-width: {least_width(figure)}px" data-narrow="{data}">{plot}</div>'
    title = html.escape(figure.title, quote=False)
    caption = f'<figcaption style="position: sticky; left: 0">{title}</figcaption>'
    return f'<figure style="margin: 1em 0; overflow-x: auto">{caption}{inner}{_STACK if changes else ""}</figure>'


def untitled(figure: Drawable) -> go.Figure:
    """The plotly figure without its title, and without the room for it: on pages the title is text that wraps."""
    drawn = draw(figure)
    layout: Any = drawn.layout
    layout.title.text, layout.height = None, layout.height - _HEAD
    layout.margin.update(t=layout.margin.t - _HEAD, pad=0)
    return drawn


def check_renderer(renderer: str) -> None:
    """Raises ValueError for an unknown renderer, RuntimeError for kaleido where it is not installed."""
    if renderer not in RENDERERS:
        raise ValueError(f"unknown renderer {renderer!r}; known: {', '.join(RENDERERS)}")
    if renderer == "kaleido" and importlib.util.find_spec("kaleido") is None:
        remedy = "install it with `pip install 'mesa-lens[export]'`, or take --renderer matplotlib"
        raise RuntimeError(f"kaleido is not installed; {remedy}")


def _raster(figure: Raster, form: str) -> bytes:
    if form != "png":
        raise ValueError(f"one pixel a cell is png, not {form}; leave --native out")
    file = io.BytesIO()
    write_png(figure.values, file, figure.limits)
    return file.getvalue()


def _by_kaleido(figure: Drawable, form: str) -> bytes:
    plot = draw(figure).to_dict()
    options = {"format": form, "width": _PIXELS, "height": plot["layout"]["height"], "scale": _SCALE}
    try:  # mathjax would be fetched from the network
        return importlib.import_module("kaleido").calc_fig_sync(plot, opts=options, kopts={"mathjax": False})
    except (RuntimeError, OSError) as error:
        remedy = "install Chrome or Chromium, or take --renderer matplotlib"
        raise RuntimeError(f"kaleido could not draw with Chrome ({type(error).__name__}: {error}); {remedy}") from error
