"""Figures: their data, texts and colours; both renderers draw the same"""

from dataclasses import replace

import numpy as np
import pytest
from synthetic import evaluation, hidden_states

from probe.figures import figure_data, interactive
from probe.figures.curves import curves_chart, parted
from probe.figures.export import html_embed, least_width
from probe.figures.figure_data import BLACK, Chart, Line, Panel, Rule, style
from probe.figures.heatmap import heatmap_grid, layer_limits, pool, regions
from probe.figures.states import dim_chart, drift_map, small_thresholds, threshold_chart
from probe.figures.static import draw, picture, pictures
from probe.thresholds.drift import find_drift
from probe.thresholds.failure import PredictedFailure, measured_failure
from probe.thresholds.onset import best
from probe.thresholds.search import CrossingRule, search

M = 64


@pytest.fixture(scope="module")
def hidden():
    return hidden_states().sel(prompt="repeated")


@pytest.fixture(scope="module")
def crossings(hidden):
    return search(hidden, M, CrossingRule.scaled(M))


def curves():
    scores = evaluation()
    predicted = {"origin": PredictedFailure(96, (80, None), 320), "mesa": PredictedFailure(None, (None, None), 320)}
    return scores, measured_failure(scores, M), M, predicted


def test_threshold_marks(hidden, crossings):
    layer, dim = best(crossings, 1)[0]
    chart = threshold_chart(hidden, crossings, layer, dim)
    first, observing = chart.panels
    assert [first.title[:8], observing.title[:8]] == ["layer 0,", f"layer {layer},"]
    assert observing.y_title == "resid_post (activation)"
    assert [rule.at for rule in first.rules] == [M]
    at = crossings.sel(layer=layer, dim=dim)
    assert [rule.at for rule in observing.rules] == [M, float(at["threshold"]), float(at["limit"])]
    assert [rule.colour for rule in observing.rules] == [figure_data.BLACK, figure_data.RED, figure_data.RED]
    crossing = {method: float(at["crossing"].sel({"method": method})) for method in ("origin", "dynamic-ntk")}
    assert {(point.text.split(",")[0], point.x) for point in observing.points} == set(crossing.items())
    for line, method in zip(observing.lines, hidden["method"].values, strict=True):
        np.testing.assert_allclose(line.y, hidden.sel({"method": method, "layer": layer, "dim": dim}), rtol=1e-6)
    spans = [panel.y_range[1] - panel.y_range[0] for panel in chart.panels]
    assert spans[0] == pytest.approx(spans[1])
    assert spans[0] > 4


def test_lines_are_parted_where_nothing_was_captured(hidden):
    parts = hidden.sel(position=[*range(40, 80), *range(250, 300)])
    crossings = search(parts, M, CrossingRule.scaled(M))
    chart = threshold_chart(parts, crossings, *best(crossings, 1)[0])
    line = chart.panels[1].lines[2]
    assert np.flatnonzero(np.isnan(line.y)).tolist() == [40]
    assert (line.x[39], line.x[41]) == (79, 250)
    layer = best(crossings, 1)[0][0]
    assert line.entry == f"dynamic-ntk, layer {layer}: crosses the limit at 250"
    assert chart.panels[1].lines[1].entry == f"rerope, layer {layer}: no crossing up to 300"


def test_lines_of_more_values_than_a_screen_shows_are_drawn_by_the_extremes_of_blocks():
    x, noise = np.arange(100_000.0), np.random.default_rng(0)
    values = [noise.normal(size=100_000) for _ in range(2)]
    values[0][[30_000, 70_000]], values[0][500], values[1][40_000:80_000] = (9, -9), np.nan, np.nan
    tokens = tuple(map(str, range(100_000)))
    lines = [Line(name, x, y, *style(name), tokens=tokens) for name, y in zip(("origin", "mesa"), values, strict=True)]
    chart = Chart("", (Panel("", "", "", tuple(lines), y_range=(-9.0, 9.0)),))
    assert chart.seen == "Long lines (over 8192 values, no interval) show each block's lowest and highest value."
    drawn = interactive.draw(chart).data
    kept = np.asarray(drawn[0].x, int)
    assert {0, 500, 30_000, 70_000, 99_999} <= set(kept.tolist())
    assert len(kept) < 2 * figure_data.DRAWN
    for y, line in zip(values, drawn, strict=True):
        assert np.array_equal(np.asarray(line.x, int), kept)
        assert np.array_equal(y[kept], line.y, equal_nan=True)
        assert [int(token) for token in line.customdata] == kept.tolist()
        block = 49  # 100,000 values in 2048 blocks
        for begin in range(0, 39_000, block):
            part, at = y[begin : begin + block], kept[(kept >= begin) & (kept < begin + block)]
            assert {np.nanmin(part), np.nanmax(part)} <= set(y[at].tolist())


@pytest.mark.parametrize(("values", "interval"), [(8192, False), (8193, True)])
def test_short_lines_and_lines_with_an_interval_are_drawn_in_full(values, interval):
    x = np.arange(float(values))
    line = Line("origin", x, x, *style("origin"), interval=(x, x) if interval else None)
    panel = Panel("", "", "", (line,), y_range=(0.0, 1.0))
    assert panel.drawn == [line]
    assert not Chart("", (panel,)).seen


def test_a_panel_carries_the_crossings_of_its_layer_only(hidden, crossings):
    layer, dim = best(crossings, 1)[0]
    chart = threshold_chart(hidden, crossings, layer, dim)
    first, observing = chart.panels
    methods = hidden["method"].values.tolist()
    assert [line.entry for line in first.lines] == methods
    assert not first.points
    assert not any(line.faint for line in first.lines)
    assert all(line.entry.startswith(f"{line.label}, layer {layer}: ") for line in observing.lines)
    drawn = draw(chart)
    (legend,) = drawn.legends
    entries = {line.entry for line in observing.lines}
    assert {text.get_text() for text in legend.get_texts()} == entries  # of both panels, each method once
    both = interactive.draw(chart)
    shown = [trace for trace in both.data if trace.showlegend]
    assert {trace.name.replace("<br>", " ") for trace in shown} == entries
    assert {trace.legendgroup for trace in both.data} == set(methods)  # a click hides a method in both
    alone = interactive.draw(replace(chart, panels=(first,)))
    assert {trace.name for trace in alone.data if trace.showlegend} == set(methods)


def test_an_excluded_method_is_beyond_the_limit_not_merely_beyond_the_threshold(hidden, crossings):
    layer, dim = best(crossings, 1)[0]
    at = crossings.sel(layer=layer, dim=dim)
    threshold, limit, side = (float(at[name]) for name in ("threshold", "limit", "side"))
    moved = hidden.copy(deep=True)
    inside = {"layer": layer, "dim": dim, "position": slice(crossings.attrs["warm_up"], M - 1)}
    moved.loc[inside | {"method": "rerope"}] = (threshold + limit) / 2  # beyond the threshold on all of them
    moved.loc[inside | {"method": "mesa"}] = limit + side
    searched = search(moved, M, CrossingRule.scaled(M))
    chart = threshold_chart(moved, searched, layer, dim)
    texts = {line.label: line.note for line in chart.panels[1].lines}
    assert "excluded" not in texts["rerope"]
    share = f"{float(searched['inside'].sel({'method': 'mesa', 'layer': layer, 'dim': dim})):.0%}"
    span = f"{crossings.attrs['warm_up']} to {M - 1}"
    assert texts["mesa"] == f", layer {layer}: excluded, beyond the limit on {share} of positions {span}"
    assert f"mesa: excluded, beyond the limit on {share} of positions {span}" in chart.seen


def test_lines_at_the_threshold_and_the_limit_are_named(hidden, crossings):
    layer, dim = best(crossings, 1)[0]
    at = crossings.sel(layer=layer, dim=dim)
    threshold, limit = (f"{name} {float(at[name]):.3g}" for name in ("threshold", "limit"))
    chart = threshold_chart(hidden, crossings, layer, dim)
    assert chart.title.endswith(f": {threshold}, {limit}")
    written = {text.get_text() for axis in draw(chart).axes for text in axis.texts}
    notes = {note.text for note in interactive.draw(chart).layout.annotations}
    assert {threshold, limit} <= written & notes
    paper = search(hidden, M, replace(CrossingRule.scaled(M), margin=0.0))
    level, *others = threshold_chart(hidden, paper, layer, dim).panels[1].rules[1:]
    assert (level.text, others) == (f"threshold and limit {float(paper['limit'].sel(layer=layer, dim=dim)):.3g}", [])
    (picture,) = small_thresholds(hidden, crossings, [(layer, dim)])
    assert f"dashed: M, the {threshold}; dotted: the {limit}" in picture


def test_an_axis_that_leaves_values_out_says_how_many(hidden, crossings):
    layer, dim = best(crossings, 1)[0]
    high = hidden.copy(deep=True)
    high.loc[{"method": "origin", "layer": layer, "dim": dim, "position": slice(0, 2)}] = 1e4
    chart = threshold_chart(high, search(high, M, CrossingRule.scaled(M)), layer, dim)
    low, top = chart.panels[1].y_range
    values = np.concatenate([line.y for line in chart.panels[1].lines])
    count = ((values < low) | (values > top)).sum()
    text = chart.panels[1].outside
    assert text.startswith(f"outside this axis: {count} of {len(values)} values, ")
    assert text.endswith(" to 1e+04")
    assert draw(chart).axes[1].get_xlabel().endswith(f"\n{text}")
    assert interactive.draw(replace(chart, crosshair=False)).layout.xaxis2.title.text.endswith(f"<br>{text}")
    assert f" {chart.panels[1].title.capitalize()}: {text}." in chart.seen  # where panels share an x axis
    whole = replace(chart.panels[1], y_range=(float(values.min()), float(values.max())))
    assert whole.outside == ""
    assert [panel.outside for panel in curves_chart(*curves()).panels] == ["", ""]
    assert "outside this axis" in dim_chart(high, layer, dim, M).panels[0].outside


def test_curve_marks():
    scores, measured, trained, predicted = curves()
    chart = curves_chart(scores, measured, trained, predicted)
    nll, passkey = chart.panels
    assert (nll.y_title, passkey.y_title) == ("NLL (nats/token)", "passkeys found (share)")
    assert nll.rules[1].at == pytest.approx(measured.level + 0.5)
    assert passkey.rules[1].at == 0.5
    np.testing.assert_allclose(nll.lines[0].y, scores["tail_nll"].sel({"method": "origin"}).mean("window"))
    assert passkey.lines[2].y.tolist() == [1, 1, 1, 1, 1, 0.55]
    assert all(low < y < high for y, low, high in zip(nll.lines[0].y, *nll.lines[0].interval, strict=True))
    failed, *_, tick = nll.points
    assert [(point.text, point.x, point.symbol, point.ends) for point in nll.points] == [
        ("measured failure", 128, "diamond", (64, 128)),
        ("measured failure", 320, "diamond", (256, 320)),
        ("predicted failure", 96, "tick", (80, 320)),
    ]
    assert [(failure.by_nll, failure.by_passkey) for failure in measured.failures if failure.length] == [
        (128, 192),
        (320, None),
    ]
    assert passkey.points == ()  # the loss fails first, and prediction is of loss
    assert failed.y == nll.lines[0].y[2]
    between = (np.log(96) - np.log(64)) / np.log(2)  # of 64 and 128 tokens
    assert tick.y == pytest.approx((1 - between) * nll.lines[0].y[1] + between * nll.lines[0].y[2])
    assert tick.hover == "origin: failure predicted at 96 [80, 320]"
    assert (
        "Measured failure, in tokens: origin: (64, 128]; rerope, mesa: none up to 320; dynamic-ntk: (256," in chart.seen
    )
    assert [part.panels[0].title for part in parted(chart)] == ["", ""]
    early = replace(measured, failures=(replace(measured.failures[0], after=0),))
    part = curves_chart(scores.sel({"method": ["origin"]}), early, trained)
    assert part.panels[0].points[0].ends == (32, 128)
    chart = curves_chart(scores.sel({"method": ["mesa"]}), measured, trained)
    assert "in tokens: mesa: none up to 320." in chart.seen
    assert "in tokens" not in curves_chart(scores, replace(measured, failures=()), trained).seen


def test_heatmap_traces(hidden):
    panel = regions(hidden, [(32, 96), (256, 320)])
    figure = interactive.draw(heatmap_grid(panel, M))
    assert len(figure.data) == 3 * 4 * 2  # layers, methods, regions
    second = figure.data[1]
    assert (second.x[0], second.x[-1]) == (256, 319)
    expected = hidden.sel({"method": "origin", "layer": 0}).sel(position=slice(256, 319)).transpose("dim", "position")
    np.testing.assert_array_equal(second.z, expected)
    limits = layer_limits(panel).values
    assert [trace.zmax for trace in figure.data] == [limit for limit in limits for _ in range(4 * 2)]
    assert all(trace.zmin == -trace.zmax for trace in figure.data)
    assert second.colorscale[0][1] == "rgb(5,48,97)"  # blue below 0
    assert [trace.showscale for trace in figure.data] == [True] + [False] * (3 * 4 * 2 - 1)
    assert [note.text for note in figure.layout.annotations] == ["resid_post (activation)", *hidden["method"].values]
    lines = [shape.line.color for shape in figure.layout.shapes if shape.x0 == M]
    assert lines == ["white", BLACK] * 3 * 4  # only the first region holds M; on any colour
    assert tuple(figure.layout.yaxis.range) == (31.5, -0.5)


def test_static_figures_draw_the_same(hidden, crossings):
    layer, dim = best(crossings, 1)[0]
    chart = threshold_chart(hidden, crossings, layer, dim)
    axes = draw(chart).axes
    assert [axis.get_title() for axis in axes] == [panel.title for panel in chart.panels]
    wide = draw(replace(chart, panels=(replace(chart.panels[0], title="a word or two " * 5),)))
    assert [len(line) <= 50 for line in wide.axes[0].get_title().splitlines()] == [True, True]
    np.testing.assert_array_equal(axes[1].lines[0].get_ydata(), chart.panels[1].lines[0].y)
    line_styles = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes[1].lines[:4]}
    assert {(colour, marker) for colour, marker, _ in line_styles} == {
        (style(method)[0], marker) for method, marker in zip(hidden["method"].values, "os^D", strict=True)
    }
    assert draw(curves_chart(*curves())).axes[0].get_xscale() == "log"
    panel = regions(hidden, [(32, 96), (256, 320)])
    for displayed in (panel, pool(panel, 1000)):
        image = draw(heatmap_grid(displayed, M)).axes[1].images[0]
        assert tuple(image.get_extent()) == (255.5, 319.5, 31.5, -0.5)
        assert image.get_array().shape == (displayed.sizes["dim"], (displayed["region"] == 1).sum())


@pytest.mark.parametrize("kind", ["lines", pytest.param("map", marks=pytest.mark.slow)])
def test_pictures_in_several_forms_are_those_of_one_layout(kind, hidden, crossings):
    lines = kind == "lines"
    figure = threshold_chart(hidden, crossings, *best(crossings, 1)[0]) if lines else drift_map(find_drift(hidden, M))
    both = pictures(figure, ("png", "svg"), 60)
    assert list(both) == ["png", "svg"]
    assert both["png"] == picture(figure, "png", 60)
    assert both == pictures(figure, ("png", "svg"), 60)
    assert pictures(figure, ("svg", "png"), 60)["svg"] == picture(figure, "svg", 60)


def test_static_heatmaps_of_a_column_stand_one_below_the_other_each_with_its_dims(hidden):
    figure = draw(heatmap_grid(regions(hidden, [(32, 96), (256, 320)]), M))
    first, second = figure.axes[:2]
    assert len(figure.axes) == 4 * 2 + 1  # columns, and the colour scale
    ends = [image.get_extent()[2:] for image in second.images]
    assert ends[0] == [31.5, -0.5]
    assert [bottom - top for bottom, top in ends] == pytest.approx([32] * 3)
    assert 1 < ends[1][1] - ends[0][0] == pytest.approx(ends[2][1] - ends[1][0])  # what lies between
    assert second.get_ylim() == (ends[-1][0], ends[0][1])
    limits = layer_limits(regions(hidden, [(32, 96), (256, 320)])).values
    assert [image.get_clim() for image in second.images] == [(-limit, limit) for limit in limits]
    dims = [int(label.get_text()) for label in first.get_yticklabels()]
    assert dims == dims[: len(dims) // 3] * 3
    at = np.repeat([top for _, top in ends], len(dims) // 3) + 0.5 + dims
    np.testing.assert_allclose(first.get_yticks(), at)
    assert list(second.get_yticks()) == []
    lines = [(line.get_xdata()[0], *line.get_ydata()) for line in first.lines]  # M, white and dashed, in every row
    assert lines == [(M, *end) for end in ends for _ in range(2)]
    assert second.lines[:] == []
    titles = [text.get_text() for text in figure.texts]
    assert [title for title in titles if title in hidden["method"].values] == hidden["method"].values.tolist()
    assert [title.split(":")[0] for title in titles if title.startswith("layer")] == ["layer 0", "layer 1", "layer 2"]


def test_hovering_shows_every_method_at_one_position_in_all_panels(hidden, crossings):
    chart = threshold_chart(hidden, crossings, *best(crossings, 1)[0], {"origin": 100})
    drawn = interactive.draw(chart)
    assert (drawn.layout.hovermode, drawn.layout.hoversubplots) == ("x unified", "axis")
    assert {trace.xaxis for trace in drawn.data} == {"x2"}  # one axis, or plotly hovers in one panel alone
    assert {trace.yaxis for trace in drawn.data} == {"y", "y2"}
    assert (drawn.layout.yaxis.anchor, drawn.layout.yaxis2.anchor, drawn.layout.xaxis2.anchor) == ("x2", "x2", "y2")
    assert drawn.layout.xaxis == type(drawn.layout.xaxis)()
    assert drawn.layout.yaxis.domain[0] > drawn.layout.yaxis2.domain[1]
    assert {part.xref for part in drawn.layout.shapes} == {"x2", "x2 domain"}
    shapes = sorted((shape.x0, shape.yref) for shape in drawn.layout.shapes if shape.xref == "x2")
    assert shapes == [(M, "y domain"), (M, "y2 domain"), (100, "y2 domain")]
    hover = [trace.hovertemplate for trace in drawn.data if trace.mode != "markers"]
    assert hover == [
        f"{panel.title}, {line.label}: %{{y:.4g}}<extra></extra>" for panel in chart.panels for line in panel.drawn
    ]
    alone = interactive.draw(replace(chart, panels=chart.panels[:1]))
    assert {trace.xaxis for trace in alone.data} == {"x"}
    text = html_embed(chart)
    assert (text.count('class="plotly-graph-div"'), least_width(chart)) == (1, 330)


def test_a_page_has_a_plot_a_panel_as_narrow_as_a_phone(hidden, crossings):
    chart = replace(threshold_chart(hidden, crossings, *best(crossings, 1)[0]), crosshair=False)
    text = html_embed(chart)
    assert text.count('class="plotly-graph-div"') == len(chart.panels) == 2
    assert text.count("min-width: 330px") == 2
    assert text.count("<figcaption") == text.count("<figure ") == text.count('<div class="chart"') == 1
    drift = find_drift(hidden, M, reference="origin")
    assert least_width(drift_map(drift)) == 330


def test_columns_of_heatmaps_are_as_wide_as_the_names_of_their_positions(hidden):
    first = hidden["position"].values[0]
    wide = hidden.assign_coords(position=hidden["position"] - first + 100_000)
    short, long = (
        heatmap_grid(pool(regions(each, [(begin, begin + 64)])), M) for each, begin in ((hidden, 0), (wide, 100_000))
    )
    assert short.width == pytest.approx(0.8 * len(short.columns))
    assert long.width == pytest.approx(0.1 * len("100000-100063") * len(long.columns))
    assert least_width(long) > least_width(short)


def test_what_is_blank_is_grey_on_a_dark_page(hidden):
    drawn = interactive.draw(heatmap_grid(pool(regions(hidden, [(0, 64)])), M))
    red, green, blue = (int(drawn.layout.plot_bgcolor[at : at + 2], 16) for at in (1, 3, 5))
    assert red == green == blue
    assert 190 < red < 225  # neither the page's black nor the white of 0


def test_long_titles_of_panels_stand_in_lines(hidden, crossings):
    chart = threshold_chart(hidden, crossings, *best(crossings, 1)[0])
    long = replace(chart, panels=tuple(replace(panel, title="a long title, " * 8) for panel in chart.panels))
    plain, figure = interactive.draw(chart), interactive.draw(long)
    assert max(map(len, figure.layout.annotations[0].text.split("<br>"))) <= 36
    assert figure.layout.height - plain.layout.height == figure.layout.margin.t - plain.layout.margin.t > 30


def test_many_panels_stand_side_by_side():
    panels = (curves_chart(*curves()).panels[0],) * 12
    assert len({trace.xaxis for trace in interactive.draw(Chart("", panels)).data}) == 12


@pytest.mark.parametrize("at", [64.0, 128.0, 1024.0])
def test_a_rule_at_or_beyond_the_ends_of_the_lines_has_room_beside_it(at):
    line = Line("a", np.array([128.0, 1024.0]), np.array([0.0, 1.0]), "#000000", "solid", "circle")
    rule = Rule(at, "M", "#000000", vertical=True)
    panel = Panel("", "tokens", "nats", (line,), (0, 1), rules=(rule,), x_ticks=(128, 1024), log_x=True)
    low, high = interactive.draw(Chart("", (panel,))).layout.xaxis.range
    assert low < np.log10(min(at, 128)) - 0.03
    assert high > np.log10(1024) + 0.03


def test_texts_of_levels_stand_off_that_of_m_at_the_top():
    upper, lower = (Rule(at, "level", "#000000") for at in (9.5, 3.0))
    panel = Panel("", "tokens", "nats", (), (0, 10), rules=(Rule(64, "M", "#000000", vertical=True), upper, lower))
    assert (panel.is_below(upper), panel.is_below(lower)) == (True, True)
    assert not replace(panel, y_range=(0, 12)).is_below(upper)
    near = replace(lower, at=9.0)  # whose text stands where upper's would
    assert not replace(panel, rules=(panel.rules[0], upper, near)).is_below(upper)
