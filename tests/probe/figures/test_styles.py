"""Looks: no two methods share one; every colour reads on light and dark ground."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_hex

from mesa.methods import METHODS
from mesa_lens.dashboard.elements import on_both_themes
from probe.commands.anatomy import page
from probe.figures import figure_data, interactive, static
from probe.figures.figure_data import SHARES, Chart, Line, Panel, Point, Scale, style, tiles


def test_no_two_methods_share_a_look(monkeypatch):
    points = [SimpleNamespace(name=name) for name in ("theirs", "another", "a-third")]
    monkeypatch.setattr("mesa.plugins.named_in", lambda group: points)
    named = {name: method.__name__ for name, method in METHODS.items()} | {point.name: point.name for point in points}
    for part, of in (("colour", slice(1)), ("dash and marker", slice(1, None))):  # the latter tell lines apart in grey
        seen = dict[tuple[str, ...], str]()
        for name, title in named.items():
            first = seen.setdefault(style(name)[of], title)
            assert first == title, f"`look` of the class {title} in mesa/methods/ has the {part} of {first}"


@pytest.mark.parametrize("method", [*METHODS, *(f"theirs-{number}" for number in range(12))])
def test_every_method_reads_on_both_grounds_and_on_paper(method):
    colour = style(method)[0]
    on_screen = on_both_themes(go.Figure(go.Scatter(x=[0], y=[0], line_color=colour))).data[0].line.color
    seen = {ground: round(ratio(on_screen, ground), 2) for ground in ("#ffffff", "#171614")}  # Streamlit's own
    assert min(seen.values()) >= 3, seen
    assert ratio(colour, "#ffffff") >= 3


def test_what_does_not_count_is_thin_and_keeps_its_colour():
    lines = [
        Line(name, np.arange(3.0), np.ones(3), *style(name), faint=name == "rerope") for name in ("mesa", "rerope")
    ]
    chart = Chart("", (Panel("", "position", "value", tuple(lines), (0, 2)),))
    faint, counted = interactive.draw(chart).data
    assert [faint.opacity, faint.line.color] == [None, style("rerope")[0]]
    assert 1 <= faint.line.width < counted.line.width
    faint, counted = static.draw(chart).axes[0].lines
    assert [faint.get_alpha(), faint.get_linewidth() < counted.get_linewidth()] == [None, True]


def test_a_mark_on_a_line_shows_its_own_text():
    line = Line("origin", np.array([1.0, 2.0]), np.array([0.0, 1.0]), *style("origin"))
    mark = Point("measured failure", 2, 1, line.colour, hover="origin: measured failure (1, 2]", ends=(1, 2))
    drawn, seen, unseen = interactive.draw(Chart("", (Panel("", "x", "y", (line,), (0, 2), points=(mark,)),))).data
    assert seen.hoverinfo == "skip"
    assert "measured failure (1, 2]" in unseen.hovertemplate
    assert (
        min(unseen.marker.size) < drawn.marker.size in unseen.marker.size
    )  # plotly prefers the smaller, then the later
    assert (unseen.marker.opacity, unseen.showlegend) == (0, False)


@pytest.mark.parametrize(
    "colour", [*(look[0] for look in figure_data.STYLES.values()), *figure_data._COLOURS, "#222222"]
)
def test_every_colour_reads_on_a_dark_page(colour):
    """A chart is turned by the filter of `page.css`: its colours are inverted, and keep their hue."""
    css = Path(figure_data.__file__).with_name("page.css").read_text()
    share = float(re.search(r"\.chart .*invert\(([0-9.]+)\) hue-rotate\(180deg\)", css)[1])
    ground = re.findall(r"--page: (#\w+)", css)[1]
    inverted = share - (2 * share - 1) * np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    luma = np.array([0.213, 0.715, 0.072])
    turned = np.clip(2 * luma @ inverted - inverted, 0, 1)
    on_page = "#" + "".join(f"{round(255 * part):02x}" for part in turned)
    assert ratio(on_page, ground) >= 4


@pytest.mark.parametrize(("scale", "colours"), [(SHARES, "RdBu_r"), (Scale(0, 1), "Blues")])
def test_numbers_read_on_their_tiles(scale, colours):
    values = np.linspace(scale.low, scale.high, 81)
    triples = {(0, at): (value, -1, 1) for at, value in enumerate(values)}
    tile = tiles("", [str(at) for at in range(81)], [0], triples, scale)
    shares = (values - scale.low) / (scale.high - scale.low)
    for share, number in zip(shares, tile.number_colours[0], strict=True):
        assert ratio(to_hex(colormaps[colours](share)), number) >= 4.4


def test_tokens_read_on_their_colour():
    for colour in ((220, 38, 38), (30, 136, 229)):
        for text, ground in (("#222222", 255), ("#dddddd", 20)):
            mixed = [round(page._DEEPEST * part + (1 - page._DEEPEST) * ground) for part in colour]
            assert ratio("#" + "".join(f"{part:02x}" for part in mixed), text) >= 4.5


def ratio(one, other):
    """WCAG 2's contrast of two colours."""
    light, dark = sorted(map(luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
