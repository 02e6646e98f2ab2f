"""Looks: no two methods of a store share one, in any chart of it; every colour reads on light and dark ground."""

import zlib

import numpy as np
import plotly.graph_objects as go
import pytest

from mesa.methods import METHODS
from mesa_lens.dashboard.elements import on_both_themes
from probe.figures import styles
from probe.figures.styles import style


def test_two_methods_that_only_a_store_names_never_look_the_same():
    names = [f"theirs-{number}" for number in range(20)]
    assert len({styles._OTHERS[zlib.crc32(name.encode()) % len(styles._OTHERS)] for name in names}) < 20  # they collide
    pairs = [style(name, names) for name in names]
    assert len({(dash, symbol) for _, dash, symbol in pairs}) == len(names)
    assert style(names[0], names) == style(names[0])  # the first of a store looks as it does alone


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
