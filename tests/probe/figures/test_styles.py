"""Looks: no two methods of a store share one, in any chart of it; every colour reads on light and dark ground."""

import zlib

import numpy as np
import plotly.graph_objects as go
import pytest
from synthetic import evaluation, hidden_states

from mesa.methods import METHODS
from mesa_lens.dashboard.elements import on_both_themes
from probe.figures import styles
from probe.figures.curves import curves_chart
from probe.figures.drift import drift_chart, drift_dim_chart
from probe.figures.styles import style
from probe.figures.thresholds import threshold_chart
from probe.thresholds.drift import find_drift
from probe.thresholds.failure import measured_failure
from probe.thresholds.search import CrossingRule, search

M = 64


def test_two_methods_that_only_a_store_names_never_look_the_same():
    names = [f"theirs-{number}" for number in range(20)]
    assert len({styles._OTHERS[zlib.crc32(name.encode()) % len(styles._OTHERS)] for name in names}) < 20  # they collide
    looks = [style(name, names) for name in names]
    assert len({(dash, symbol) for _, dash, symbol in looks}) == len(names)
    assert style(names[0], names) == style(names[0])  # the first of a store looks as it does alone


def test_methods_of_a_store_look_different_in_every_chart_of_it():
    hidden = hidden_states().sel(prompt="repeated")
    named = ["origin", *colliding()]
    renamed = hidden.isel({"method": slice(3)}).assign_coords(method=named)
    found = search(renamed, M, CrossingRule.scaled(M))
    scored = evaluation().isel({"method": slice(3)}).assign_coords(method=named)
    drifted = find_drift(renamed, M)
    charts = [
        threshold_chart(renamed, found, 1, 3),
        curves_chart(scored, measured_failure(scored, M), M, ()),
        drift_chart(drifted),
        drift_dim_chart(renamed, drifted, 1, 3),
    ]
    for chart in charts:
        for panel in chart.panels:
            assert len({(line.dash, line.symbol) for line in panel.lines}) == 3, chart.title


def colliding():
    """Two names that ask for the same look."""
    seen = {}
    for number in range(100):
        name = f"theirs-{number}"
        if (first := style(name)) in seen:
            return seen[first], name
        seen[first] = name
    raise AssertionError("no two names of a hundred ask for the same of 36 looks")


@pytest.mark.parametrize("method", [*METHODS, *(f"theirs-{number}" for number in range(12))])
def test_every_method_reads_on_both_grounds_and_on_paper(method):
    names = [f"theirs-{number}" for number in range(12)]
    colour = style(method, names)[0]
    on_screen = on_both_themes(go.Figure(go.Scatter(x=[0], y=[0], line_color=colour))).data[0].line.color
    seen = {ground: round(ratio(on_screen, ground), 2) for ground in ("#ffffff", "#0e1117")}  # Streamlit's own
    assert min(seen.values()) >= 3, seen
    assert ratio(colour, "#ffffff") >= 3


def ratio(one, other):
    """WCAG 2's contrast of two colours."""
    light, dark = sorted(map(luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
