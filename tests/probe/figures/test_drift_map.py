"""The drift map: where a planted break is, in which words; nothing red where nothing breaks; figures that fit."""

import numpy as np
import pytest
from synthetic import hidden_states

from probe.figures import interactive, mobile_layout, render, static
from probe.figures.drift import COLUMNS, drift_map
from probe.thresholds.drift import find_drift

M = 64


@pytest.fixture(scope="module")
def drift():
    return find_drift(hidden_states(M, windows=5).sel(prompt="repeated"), M)


def test_a_planted_break_is_red_where_it_is_and_nowhere_else(drift):
    figure = drift_map(drift, "repeated")
    assert [one.method for one in figure.maps] == ["origin", "rerope", "dynamic-ntk", "mesa"]
    origin, rerope = figure.maps[:2]
    late = figure.edges[:-1] >= 1.5 * M
    assert (origin.doublings[1:, late] > 0).all()
    assert not (origin.doublings[0] > 0).any()  # the first layer never leaves
    assert not (rerope.doublings > 0).any()
    assert origin.first is not None
    assert origin.first[0] in range(M, 80)
    assert rerope.first is None
    assert rerope.title == "rerope: none up to 320"
    warm_up = figure.edges[:-1] < drift.attrs["warm_up"]
    assert np.isnan(origin.doublings[:, warm_up]).all()


def test_many_runs_keep_their_largest_and_gaps_stay_empty(drift):
    many = find_drift(hidden_states(M, windows=3 * COLUMNS // 32, layers=2, dims=12).isel(prompt=0), M)
    figure = drift_map(many)
    assert figure.maps[0].doublings.shape[1] <= COLUMNS
    assert np.nanmax(figure.maps[0].distance) == pytest.approx(
        np.sqrt(many["level"].sel({"method": "origin"}).where(~many["warm_up"].sel({"method": "origin"})).max())
    )
    gap = drift_map(drift.isel(run=[*range(100), *range(140, drift.sizes["run"])]))
    empty = np.isnan(gap.maps[0].doublings).all(axis=0)
    assert empty[50:70].all()  # a column is two runs
    assert not empty[30:50].any()


def test_both_renderers_draw_every_map(drift):
    figure = drift_map(drift, "<b>repeated</b>")
    plot = interactive.draw(figure)
    assert [trace.type for trace in plot.data].count("heatmap") == 4
    assert "origin, layer 1, positions" in plot.data[0].customdata[1][-1]
    assert "ranges, limit" in plot.data[0].customdata[1][-1]
    assert len(static.draw(figure).axes) == 5  # with the colour scale


def test_a_page_has_the_title_as_text_that_wraps(drift):
    figure = drift_map(drift, "<b>repeated</b>")
    html = render.html_embed(figure)
    assert "prompt &lt;b&gt;repeated&lt;/b&gt;" in html.partition("</figcaption>")[0]
    assert render.untitled(figure).layout.title.text is None
    assert mobile_layout.least_width(figure) < 390
