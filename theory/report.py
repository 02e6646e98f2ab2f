"""The report of the verification: its claims, and curves measured on the constructions next to the closed forms."""

from collections.abc import Sequence
from importlib.resources import files

import jinja2
import numpy as np
import xarray as xr
from markupsafe import Markup

from theory import figures
from theory.bounds import extended_length
from theory.claim import OURS, PAPER, SAFETY, Claim, summary
from theory.claims.corollary import exact_stair_model
from theory.claims.settings import VerifyOptions
from theory.claims.theorem3 import ONE_HEAD, ideal_denominator
from theory.figures import IDEAL, NOPE, PE, STAIR, WEAVE
from theory.model import Construction, nope_model, plain_model, woven_model
from theory.weave import rerope


def curves(settings: VerifyOptions) -> xr.Dataset:
    """o_t - H, the recovered position and the attention on <bos>, over (construction, t); T* in attrs.

    For the user's sizes, completed, or M = 16, N = E = 3; to beyond T* where that is within 2000 tokens.
    """
    stated = settings.M, settings.N, settings.E
    M, N, E = (16, 3, 3) if stated == (None, None, None) else settings.triples()[0]
    length = int(min(2.5 * extended_length(M, N), 2000))
    models: dict[str, Construction] = {
        NOPE: nope_model(M, settings.H, **settings.options(shape=ONE_HEAD)),
        PE: plain_model(M, settings.H, **settings.wide_mlp(length, shape=ONE_HEAD)),
        WEAVE: woven_model(M, N, settings.H, **settings.chosen_mlp(M, shape=ONE_HEAD)),
        STAIR: exact_stair_model(M, N, E, length, settings),
    }
    rows = {
        name: (
            model.head_output(length) - settings.H,
            np.full(length, np.nan) if name == NOPE else model.recovered_position(length),
            model.bos_attention(length),
        )
        for name, model in models.items()
    }
    ideal = 1 / ideal_denominator(N, length, settings)
    rows[IDEAL] = (M * ideal - 1, rerope(np.arange(length), N) + 1.0, ideal)
    return figures.curve_data({name: rows[name] for name in (NOPE, PE, WEAVE, IDEAL, STAIR)}, M, N, E, settings.H)


def render(claims: Sequence[Claim], settings: VerifyOptions) -> str:
    """The report's HTML, plotly.js included (about 5 MB)."""
    data = curves(settings)
    drawers = (figures.excess_figure, figures.position_figure, figures.attention_figure)
    drawn = [
        Markup(draw(data).to_html(full_html=False, include_plotlyjs=number == 0)) for number, draw in enumerate(drawers)
    ]
    template = jinja2.Environment(autoescape=True).from_string(
        files("theory").joinpath("report.html").read_text("utf-8")
    )
    sentence = summary((claim.name, claim.verdict, claim.whose) for claim in claims)
    groups = {"Claims of the paper": PAPER, "Our own, about its constructions": OURS}
    tables = {
        title: of for title, whose in groups.items() if (of := [claim for claim in claims if claim.whose == whose])
    }
    values = {"tables": tables, "summary": sentence, "settings": settings, "example": data.attrs}
    return template.render(**values, figures=drawn, safety=SAFETY)
