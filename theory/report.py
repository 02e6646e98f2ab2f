"""The report: one HTML file with the claims and the figures, which opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup

from theory.claims import Claim, Settings
from theory.claims.base import SAFETY
from theory.curves import Example, curves, head_output_by_dimension
from theory.figures import attention_figure, dimension_figure, excess_figure, position_figure
from theory.verdicts import summary


def write_report(claims: Sequence[Claim], settings: Settings, path: Path) -> None:
    """Writes the HTML report, plotly.js included (about 5 MB). Raises OSError where `path` cannot be written."""
    template = jinja2.Environment(autoescape=True).from_string(files("theory").joinpath("report.html").read_text())
    html = template.render(
        claims=claims,
        summary=summary((claim.name, claim.verdict) for claim in claims),
        figures=_figures(settings),
        dtype=settings.dtype,
        H=settings.H,
        seed=settings.seed,
        safety=SAFETY,
    )
    path.write_text(html)


def _figures(settings: Settings) -> list[dict[str, str]]:
    """Title, text and HTML of each figure; the first one carries plotly.js."""
    example = Example.of(settings)
    data, output = curves(example), head_output_by_dimension(example)
    where = f"M = {example.M}, N = {example.N}, E = {example.E}"
    drawn: list[tuple[str, str, go.Figure]] = [
        (
            f"Head output over t ({where})",
            "Without positions and with a plain encoding it falls below H at M. The weave and Stair PE, with the same "
            "weights, keep it above up to T*, not for ever. The real step MLP recovers larger positions than N + 1 "
            "later on, which lets the weave reach further than T*.",
            excess_figure(data),
        ),
        (
            "Recovered position",
            "What layer 1 writes to the third dimension: t under the plain encoding, about N + 1 under the weave, "
            "W(t - 1) + 1 under Stair PE.",
            position_figure(data),
        ),
        (
            "Attention on <bos> in layer 2",
            "1 / D(t); the head output is above H exactly where this is above 1 / M.",
            attention_figure(data),
        ),
        (
            "Layer 2's attention output in all dimensions, minus its value at M",
            "Plain encoding, free heads and free embedding rows random. Dimension 3 alone is above its value at M "
            "(that is H) before M and below it after; this is what a threshold search over dimensions has to find.",
            dimension_figure(output),
        ),
    ]
    return [
        {
            "title": title,
            "text": text,
            "html": Markup(figure.to_html(full_html=False, include_plotlyjs=place == 0)),
        }
        for place, (title, text, figure) in enumerate(drawn)
    ]
