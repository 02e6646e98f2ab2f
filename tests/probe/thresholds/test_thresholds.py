"""Crossings and thresholds of series short enough to check by hand."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from synthetic import DRIFTING, hidden_states

from mesa.methods import make
from mesa.plan import restarts
from probe.commands.probe.verdict import crossings_at_restarts
from probe.thresholds.onset import best, threshold_onsets
from probe.thresholds.search import CrossingRule, check_positions, search, smooth

M, LENGTH = 40, 160
RULE = CrossingRule(smoothing=1, sustained=3)
SPREAD = 0.2 / 3.29  # of values that alternate between -0.1 and 0.1


def wobble():
    """-0.1, 0.1, -0.1, ... and, at M only, 0.05, which is no neighbour's value."""
    values = np.where(np.arange(LENGTH) % 2, 0.1, -0.1)
    values[M] = 0.05
    return values


def series(*columns, methods=("origin",), positions=None):
    """One layer; column j of every method is dim j, given as one series, or as one for each method."""
    one = [[column] * len(methods) if np.ndim(column) == 1 else column for column in columns]
    data = np.array(one, dtype=float).transpose(1, 2, 0)[:, None]
    coords = {"method": list(methods), "layer": [7], "position": np.arange(LENGTH), "dim": np.arange(len(columns))}
    hidden = xr.DataArray(data, dims=("method", "layer", "position", "dim"), coords=coords, name="resid_post")
    return hidden if positions is None else hidden.sel(position=positions)


def changed(*pieces, base=None):
    """The wobble with `value` added over [start, stop), for each piece."""
    values = wobble() if base is None else base.copy()
    for start, stop, value in pieces:
        values[start:stop] += value
    return values


def at(crossings, dim=0, method="origin"):
    return crossings.sel({"method": method, "layer": 7, "dim": dim})


@pytest.mark.parametrize("sign", [1, -1])
def test_threshold_is_the_value_at_m_and_the_crossing_the_first_position_beyond(sign):
    crossings = at(search(series(sign * changed((60, LENGTH, 10))), M, RULE))
    assert crossings["threshold"] == pytest.approx(sign * 0.05)
    assert crossings["side"] == sign
    assert crossings["spread"] == pytest.approx(SPREAD, rel=1e-6)
    assert crossings["limit"] == pytest.approx(sign * (0.05 + 3 * SPREAD))
    assert crossings["crossing"] == 60
    assert crossings["threshold_dim"]
    assert crossings["rank"] == 1
    assert crossings["score"] == pytest.approx((10 - 0.05) / SPREAD, rel=0.02)


def test_a_crossing_lasts_for_exactly_the_sustained_length():
    late = (100, LENGTH, 10)
    short = changed((60, 62, 10), late)
    enough = changed((60, 63, 10), late)
    too_late, just_in_time = changed((LENGTH - 2, LENGTH, 10)), changed((LENGTH - 3, LENGTH, 10))
    crossings = search(series(short, enough, too_late, just_in_time), M, RULE)
    assert at(crossings)["crossing"].values.tolist() == 100
    assert at(crossings, 1)["crossing"].values.tolist() == 60
    assert np.isnan(at(crossings, 2)["crossing"])
    assert at(crossings, 3)["crossing"] == LENGTH - 3


def test_smoothing_looks_back_only():
    assert CrossingRule.scaled(128).smoothing == 2
    step = np.where(np.arange(LENGTH) < 60, 0.0, 8.0)
    rule = CrossingRule(smoothing=4, sustained=3, margin=0)
    assert at(search(series(step), M, rule))["crossing"] == 60  # mean of 0, 0, 0, 8 is beyond 0
    high = xr.DataArray([0.0, 8, 8, 8, 8, 2, 2], dims="position", coords={"position": [1, 2, 3, 4, 5, 9, 10]})
    assert smooth(high, 4).values.tolist() == pytest.approx([0, 4, 16 / 3, 6, 8, 2, 2])  # 9 does not see 5


@pytest.mark.parametrize("smoothing", [1, 64, 300])
@pytest.mark.parametrize("gap", [70, 255, 270, 400])
def test_smoothing_does_not_cross_a_gap_in_long_captures(smoothing, gap):
    position = np.concatenate([np.arange(gap), np.arange(gap + 50, 1000)])
    values = np.random.default_rng(0).normal(0, 1, (len(position), 2)) + 100 * (position < gap)[:, None]
    hidden = xr.DataArray(values.astype(np.float32), {"position": position}, ("position", "dim"))
    starts = [max(0 if at < gap else gap, at - smoothing + 1) for at in range(len(position))]
    expected = [hidden.values[start : at + 1].astype(float).mean(axis=0) for at, start in enumerate(starts)]
    np.testing.assert_allclose(smooth(hidden, smoothing).values, expected, rtol=1e-6, atol=1e-6)


def test_methods_are_evaluated_by_origins_threshold():
    origin, flat, later = changed((50, LENGTH, 10)), wobble(), changed((90, LENGTH, 10))
    crossings = search(series([flat, origin, later], methods=["mesa", "origin", "dynamic-ntk"]), M, RULE)
    assert at(crossings, method="origin")["crossing"] == 50
    assert at(crossings, method="dynamic-ntk")["crossing"] == 90
    assert np.isnan(at(crossings, method="mesa")["crossing"])
    other = search(series([flat, origin, later], methods=["mesa", "origin", "dynamic-ntk"]), M, RULE, "mesa")
    assert not other["threshold_dim"].any()


def test_a_trend_that_merely_goes_on_is_no_signal():
    trend = 0.05 * np.arange(LENGTH) + wobble()
    crossings = search(series(trend, trend + changed((60, LENGTH, 40), base=np.zeros(LENGTH)), -trend), M, RULE)
    scores = crossings["score"].values[0]
    assert abs(scores[0]) < 0.2
    assert abs(scores[2]) < 0.2
    assert scores[1] > 20
    assert crossings["threshold_dim"].values[0].tolist() == [False, True, False]
    assert np.isfinite(crossings["crossing"].sel({"method": "origin", "dim": 0})).all()  # it does pass the limit


def test_what_comes_back_or_was_beyond_inside_is_no_threshold():
    returns = changed((50, LENGTH, 10), (60, 70, -10))
    inside = changed((10, 20, 10), (60, LENGTH, 10))
    burnt_in = changed((0, 4, 10), (60, LENGTH, 10))
    crossings = search(series(returns, inside, burnt_in, changed((60, LENGTH, 10))), M, replace(RULE, warm_up=4))
    assert crossings["threshold_dim"].values[0].tolist() == [False, False, True, True]
    assert crossings["rank"].values[0].tolist() == [0, 0, 1, 2]
    assert int(crossings["qualified"]) == 2
    assert crossings.attrs["searched"] == 4


def test_tiny_motions_of_a_still_dim_are_no_signal():
    still = np.where(np.arange(LENGTH) < 60, 1.0, 1.001)
    large = np.where(np.arange(LENGTH) < 60, 1.0, 1.1)
    crossings = search(series(still, large, np.ones(LENGTH), np.full(LENGTH, 5.0)), M, RULE)
    assert crossings["spread"].values[0].tolist() == pytest.approx([0.01] * 4)  # of the layer's median size
    assert crossings["threshold_dim"].values[0].tolist() == [False, True, False, False]
    assert crossings["side"].values[0].tolist() == [1, 1, 0, 0]


def test_missing_evidence_is_named():
    values = series(changed((60, LENGTH, 10)))
    with pytest.raises(ValueError, match=r"position 40 .* was not captured, only 0-39, 100-139"):
        search(values.sel(position=[*range(40), *range(100, 140)]), M, RULE)
    with pytest.raises(ValueError, match=r"5 positions in \[0, 40\) were captured \(35-159\); capture at least 8"):
        search(values.sel(position=slice(35, None)), M, RULE)
    with pytest.raises(ValueError, match=r"takes 3 consecutive positions beyond 40; captured: 0-42"):
        search(values.sel(position=slice(0, 42)), M, RULE)
    assert search(values.sel(position=slice(0, 43)), M, RULE).attrs["length"] == 44
    with pytest.raises(ValueError, match=r"position 40 .* was not captured"):
        check_positions(range(41, 90), M, RULE)
    with pytest.raises(ValueError, match="reference 'rerope' was not captured; captured methods: origin"):
        search(values, M, RULE, "rerope")
    with pytest.raises(ValueError, match="sustained=0 is not at least 1"):
        CrossingRule(smoothing=1, sustained=0)
    with pytest.raises(ValueError, match="margin=nan is not at least 0"):
        replace(RULE, margin=np.nan)
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"share={share} is not in"):
            replace(RULE, share=share)


def test_known_breaks_are_detected_for_each_prompt():
    hidden = hidden_states()
    crossings = search(hidden, 64, CrossingRule.scaled(64))
    calm = crossings.sel(prompt="repeated")
    assert int(calm["qualified"]) >= DRIFTING
    assert not calm["threshold_dim"].sel(layer=0).any()
    assert not calm["threshold_dim"].sel(dim=slice(DRIFTING, None)).any()
    assert set(crossings["qualified"].dims) == {"prompt"}
    assert int(crossings["qualified"].sel(prompt="text-0")) < int(calm["qualified"])
    onsets = {one.method: one for one in threshold_onsets(calm)}
    assert 71 <= onsets["origin"].length <= 80  # leaves from 70.4 on, its limit a little later
    assert 192 <= onsets["dynamic-ntk"].length <= 202
    assert [str(onsets[name]) for name in ("rerope", "mesa")] == ["none up to 320"] * 2


def test_best_takes_each_dim_once():
    hidden = series(changed((60, LENGTH, 10)), changed((60, LENGTH, 30)), changed((60, LENGTH, 20)))
    deeper = (hidden * 1.5 + 0 * hidden).assign_coords(layer=[8])
    both = xr.concat([hidden, deeper.where(deeper["position"] < 60, deeper * 2)], dim="layer")
    crossings = search(both, M, RULE)
    assert int(crossings["qualified"]) == 6
    assert best(crossings, 10) == [(8, 1), (8, 2), (8, 0)]
    assert best(crossings, 2) == [(8, 1), (8, 2)]
    with pytest.raises(ValueError, match="choose one of the prompts"):
        best(crossings.expand_dims(prompt=["a"]), 1)


def leaving(*starts):
    """Origin leaves at 50 in every dim, the other method at the given positions (None: never)."""
    columns = [[changed((50, LENGTH, 10)), wobble() if s is None else changed((s, LENGTH, 10))] for s in starts]
    return threshold_onsets(search(series(*columns, methods=["origin", "mesa"]), M, RULE), least=1)[1]


def test_onset_is_the_median_crossing():
    assert leaving(60, 80, 110).length == 80
    assert leaving(60, 80, 110, 120).length == 95
    three_of_five = leaving(60, 80, 110, None, None)
    assert (three_of_five.length, three_of_five.crossed, three_of_five.evaluated) == (110, 3, 5)
    half = leaving(60, 80, None, None)
    assert half.length is None
    assert str(half) == "none up to 160"


def test_dims_where_a_method_is_beyond_inside_the_window_do_not_judge_it():
    for first in (0, 20):  # on all of the window, and on half of it
        always = leaving(first, 70, 80)
        assert (always.length, always.evaluated, always.chosen) == (75, 2, 3)
    assert str(leaving(0, 0)) == "beyond the limits already inside the window"


def test_too_few_evaluated_dims_give_no_onset():
    """Six dims qualify; the other method keeps inside the window to the safe side of four of them, then of five."""
    columns = [[changed((50, LENGTH, 10)), changed((s, LENGTH, 10))] for s in (0, 0, 70, 70, 70, 70)]
    four = threshold_onsets(search(series(*columns, methods=["origin", "mesa"]), M, RULE))[1]
    assert (four.length, four.evaluated, four.known) == (None, 4, False)
    assert str(four) == "cannot tell: 4 of 6 dims can be evaluated, 5 are needed"
    five = threshold_onsets(search(series(*columns[1:], columns[-1], methods=["origin", "mesa"]), M, RULE))[1]
    assert (five.length, five.evaluated, five.known) == (70, 5, True)


def test_onset_in_words():
    gap = series(changed((70, LENGTH, 10)), positions=[*range(20, 60), *range(100, 140)])
    assert str(threshold_onsets(search(gap, M, RULE), least=1)[0]) == "100 (descriptive)"
    assert str(threshold_onsets(search(series(wobble()), M, RULE))[0]) == "no threshold dim"
    assert str(leaving(60)) == "60"


def test_what_lies_before_the_reference_is_no_part_of_it():
    wild = changed((0, 7, 1e6))
    rule = CrossingRule(smoothing=4, sustained=3, warm_up=10)
    xr.testing.assert_identical(search(series(wild), M, rule), search(series(wobble()), M, rule))
    assert search(series(changed((0, 10, 1e6))), M, rule)["spread"] > 1e5  # reaches into the means at 10, 11, 12


def test_what_is_read_of_a_dim_by_hand():
    """Of t^3, I = 0 .. 39 and B = 41 .. 159: the median over B, and over pairs 20 apart."""
    crossings = at(search(series(np.arange(LENGTH) ** 3.0), M, RULE))
    assert crossings["threshold"] == M**3
    slope = 1241.5  # (t + 20)^3 - t^3 over 20, of t = 9 and 10
    assert crossings["score"] * crossings["spread"] == pytest.approx(100**3 - M**3 - slope * 60)


def test_a_trend_away_from_the_jump_adds_nothing():
    values = changed((60, LENGTH, 40)) - 0.05 * np.arange(LENGTH)
    crossings = at(search(series(values), M, RULE))
    assert crossings["side"] == 1
    assert crossings["score"] * crossings["spread"] == pytest.approx(np.median(values[M + 1 :]) - values[M])


def test_what_is_beyond_on_half_of_the_window_is_no_threshold():
    """However high its score: M happens to lie low."""
    saw = np.arange(LENGTH) % 10 / 10
    saw[M] = -0.3
    crossings = at(search(series(changed((50, LENGTH, 10), base=saw)), M, RULE))
    assert crossings["score"] > 6 * RULE.minimum_score
    assert 0.3 < crossings["inside"] < 0.7
    assert not crossings["threshold_dim"]


def test_dims_that_do_not_move_say_nothing_of_those_that_do():
    """One way only, where the others that move do not: found, however many lie still."""
    once = 1 / (1 + np.arange(LENGTH) / M)
    crossings = search(series(once, wobble(), -wobble(), *[np.zeros(LENGTH)] * 4), M, RULE)
    assert crossings["threshold_dim"].values[0].tolist() == [True, *[False] * 6]


def test_crossings_where_a_method_restarts_positions_are_counted_and_said():
    plan = make("mesa", M, first=4, last=6, split_threshold=3, window=4).plan(LENGTH)
    assert [*restarts(plan)] == [34, 64, 94, 124, 154]
    origin = changed((45, LENGTH, 1))
    others = [changed((start, LENGTH, 1)) for start in (64, 98, 99, 120)] + [wobble()]
    hidden = series(*([origin, other] for other in others), methods=("origin", "mesa"))
    searched = search(hidden, M, replace(RULE, warm_up=5))
    assert searched["threshold_dim"].values.all()
    plans = {"mesa": plan, "origin": make("origin", M).plan(LENGTH)}
    assert crossings_at_restarts(searched, plans) == [
        "mesa restarts positions at 34, 64, 94, 124, …, 154: 2 of its 4 crossings of threshold dims lie within 5 "
        "tokens of such a restart, where states settle as at the start of a prompt."
    ]
    assert crossings_at_restarts(searched, {}) == []
