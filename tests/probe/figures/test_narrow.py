"""Figures on a phone: everything stands in the width, one below the other, and nothing is cut."""

import numpy as np
import pytest
from synthetic import hidden_states

from probe.figures.figure_data import Block, Chart, Line, Panel, TileMap
from probe.figures.heatmap import heatmap_grid, regions
from probe.figures.mobile_layout import mobile_layout
from probe.figures.render import html_embed, untitled

LONG = "dynamic-ntk: excluded, beyond the threshold on 100% of positions inside M"


def changed(figure):
    drawn = untitled(figure)
    drawn.plotly_relayout(mobile_layout(figure, drawn))
    return drawn


def boxes(drawn, axes):
    """Left, bottom, right and top of panels, in pixels of a phone's plot that is 240 wide."""
    layout = drawn.layout
    tall = layout.height - layout.margin.t - layout.margin.b
    for axis in axes:
        across, along = layout[f"xaxis{axis}"].domain, layout[f"yaxis{axis}"].domain
        yield 240 * across[0], tall * along[0], 240 * across[1], tall * along[1]


def apart(one, other):
    return any(one[side + 2] <= other[side] or other[side + 2] <= one[side] for side in (0, 1))


@pytest.fixture
def chart():
    lines = tuple(
        Line(label, np.arange(3.0), np.arange(3.0), "#000000", "solid", "circle")
        for label in (LONG, *(f"copy-{number}" for number in range(20)))
    )
    return Chart("a chart", (Panel("a title of the panel that is far too long for one line", "x", "y", lines, (0, 3)),))


def test_a_long_entry_of_the_legend_is_in_lines_and_whole_on_hovering(chart):
    trace = untitled(chart).data[0]
    lines = trace.name.split("<br>")
    assert len(lines) == 2
    assert max(map(len, lines)) <= 42
    assert " ".join(lines) == LONG
    assert LONG in trace.hovertemplate


def test_the_legend_has_room_below_the_panel_in_one_column(chart):
    layout = changed(chart).layout
    assert layout.legend.xref == layout.legend.yref == "container"
    assert layout.legend.maxheight >= 21 * 20 + 38  # 20 entries of a line, one of two
    assert layout.margin.b >= layout.legend.maxheight
    assert layout.height - layout.margin.t - layout.margin.b == 300  # the panel stays as tall


@pytest.mark.parametrize("regions_of", [1, 3])
def test_heatmaps_of_methods_are_stacked(regions_of):
    hidden = hidden_states(64, 5, 2, 8, ("repeated",)).isel(prompt=0)
    bounds = [(64 * start, 64 * start + 32) for start in range(regions_of)]
    drawn = changed(heatmap_grid(regions(hidden, bounds), 64))
    columns = 4 * regions_of
    axes = ["", *range(2, 2 * columns + 1)]
    all_boxes = list(boxes(drawn, axes))
    assert len(set(all_boxes)) == 2 * columns
    assert all(apart(one, other) for at, one in enumerate(all_boxes) for other in all_boxes[:at])
    assert min(right - left for left, _, right, _ in all_boxes) > 100
    labelled = [axis for axis in axes if drawn.layout[f"yaxis{axis}"].title.text]
    assert all(drawn.layout[f"xaxis{axis}"].domain[0] == 0 for axis in labelled)
    assert len(labelled) == sum(box[0] == 0 for box in all_boxes)
    tops = [drawn.layout[f"yaxis{axis}"].domain[1] for axis in axes[:columns:regions_of]]
    assert [note.y for note in drawn.layout.annotations[:4]] == pytest.approx(
        tops
    )  # a method's name above its heatmaps


def cells(rows, columns):
    """A figure with blocks of so many columns."""
    blocks = []
    for number, count in enumerate(columns):
        values = np.full((rows, count), 0.5)
        blocks.append(Block(f"block {number}", tuple(map(str, range(count))), values, values, values))
    return TileMap("cells", "share", "layer", tuple(map(str, range(rows))), tuple(blocks))


def test_a_page_with_a_figure_holds_what_a_phone_changes(chart):
    for figure in (chart, cells(4, (8, 8))):
        assert "<script>\nif (innerWidth" in html_embed(figure)
