"""Figures as files' contents: HTML that opens offline, PNG, SVG and PDF."""

from __future__ import annotations

import html
import importlib
import importlib.util
import io

from probe.figures.cells import Cells
from probe.figures.drift_map import DriftMap
from probe.figures.fitting import embedded
from probe.figures.heatmap import write_png
from probe.figures.interactive import draw
from probe.figures.marks import Chart, Grid, Raster
from probe.figures.static import picture

PICTURES = ("html", "png", "svg", "pdf")
RENDERERS = ("matplotlib", "kaleido")
_PIXELS, _SCALE = 1300, 2

Drawn = Chart | Grid | Cells | DriftMap
Figure = Drawn | Raster

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title></head>
<body style="font: 16px/1.5 Helvetica, Arial, sans-serif; color: #222">
{figure}
</body>
</html>
"""


def rendered(figure: Figure, form: str, renderer: str = "matplotlib") -> bytes:
    """The content of the figure's html, png, svg or pdf file; the same bytes for the same figure.

    renderer: of png, svg and pdf. kaleido draws the page's picture with Chrome and does not promise the same bytes.
    Raises ValueError for what cannot be had, RuntimeError if kaleido or Chrome is missing.
    """
    if form not in PICTURES:
        raise ValueError(f"a figure has no format {form!r}; known: {', '.join(PICTURES)}")
    check_renderer(renderer)
    if isinstance(figure, Raster):
        return _raster(figure, form)
    if form == "html":
        return page(figure)
    return picture(figure, form) if renderer == "matplotlib" else _by_kaleido(figure, form)


def page(figure: Drawn, plotly_js: bool | str = True) -> bytes:
    """The figure's HTML page, with plotly.js in it, or, for "directory", beside it as plotly.min.js."""
    plot = embedded(figure, plotly_js, "figure")
    return _PAGE.format(title=html.escape(figure.title), figure=plot).encode()


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


def _by_kaleido(figure: Drawn, form: str) -> bytes:
    plot = draw(figure).to_dict()
    options = {"format": form, "width": _PIXELS, "height": plot["layout"]["height"], "scale": _SCALE}
    try:  # mathjax would be fetched from the network
        return importlib.import_module("kaleido").calc_fig_sync(plot, opts=options, kopts={"mathjax": False})
    except (RuntimeError, OSError) as error:
        remedy = "install Chrome or Chromium, or take --renderer matplotlib"
        raise RuntimeError(f"kaleido could not draw with Chrome ({type(error).__name__}: {error}); {remedy}") from error
