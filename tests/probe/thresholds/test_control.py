"""The control of planted series: a step at M, steps elsewhere, steps at no place in particular, and noise."""

import numpy as np
import pytest
import xarray as xr

from probe.thresholds.onset import ALPHA, as_many, false_onsets, negative_control, threshold_onsets
from probe.thresholds.search import (
    CrossingRule,
    SearchWindow,
    _beyond,
    median_sizes,
    medians,
    partitioned,
    quantile,
    search,
    searches,
)

M, LENGTH = 128, 320
RULE = CrossingRule.scaled(M)  # smoothing 2, sustained 8, warm-up 32


def states(*dims, methods=("origin",), seed=0, noise=0.1):
    """Each of `dims`: by method, or for all of them, where it steps by 10; None: nowhere. One layer."""
    rng = np.random.default_rng(seed)
    data = rng.normal(0, noise, (len(methods), 1, LENGTH, len(dims)))
    for dim, steps in enumerate(dims):
        one = steps if isinstance(steps, tuple) else (steps,) * len(methods)
        for row, at in enumerate(one):
            data[row, 0, LENGTH if at is None else at :, dim] += 10
    coords = {"method": list(methods), "layer": [3], "position": np.arange(LENGTH), "dim": np.arange(len(dims))}
    return xr.DataArray(data, coords, ("method", "layer", "position", "dim"), name="resid_post")


def noise(seed, dims=64, memory=0.99):
    """Stationary first-order noise: it wanders, and nothing happens at M."""
    rng = np.random.default_rng(seed)
    values = states(*[None] * dims)
    draws = rng.normal(0, 1, (LENGTH + 1000, dims))
    for position in range(1, len(draws)):
        draws[position] += memory * draws[position - 1]
    return values.copy(data=draws[None, None, 1000:])


def test_places_lie_inside_and_each_has_a_partner_with_as_many_positions():
    control = negative_control(states(140), M, RULE)
    assert control["place"].values.tolist() == np.linspace(48, 112, 16).round().astype(int).tolist()
    assert (control["first"].values == 32).all()
    assert (control["last"].values == M).all()
    for side, name in (("first", "matched_first"), ("last", "matched_last")):
        here = control[side] - control["place"]
        np.testing.assert_array_equal(here.values, (control[name] - M).values)


def test_a_step_at_m_is_distinguished_from_steps_inside():
    at_m = negative_control(states(*[130] * 12, *[None] * 20, noise=0), M, RULE)
    assert at_m["matched"].values.tolist() == [12] * 16
    assert at_m["qualified"].values.tolist() == [0] * 16
    assert (float(as_many(at_m)), false_onsets(at_m).item()) == (0, 0)
    inside = negative_control(states(*[82] * 12, *[None] * 20, noise=0), M, RULE)
    before = inside["place"].values <= 82  # the step lies beyond these
    assert inside["qualified"].values.tolist() == (12 * before).tolist()
    assert set(inside["detected"].sel({"method": "origin"}).values[before]) == {82, 83}
    assert (float(as_many(inside)), false_onsets(inside).item()) == (9 / 16, 9 / 16)  # nothing qualifies at M


def test_fewer_dims_than_the_least_give_no_onset():
    four, five = (negative_control(states(*[82] * count, noise=0), M, RULE) for count in (4, 5))
    assert (four["qualified"].max(), five["qualified"].max()) == (4, 5)
    assert (false_onsets(four).item(), false_onsets(five).item()) == (0, 9 / 16)
    assert (
        str(threshold_onsets(search(states(*[140] * 4, noise=0), M, RULE))[0])
        == "too few threshold dims: 4, 5 are needed"
    )
    assert threshold_onsets(search(states(*[140] * 4, noise=0), M, RULE), least=4)[0].length == 140
    assert (
        threshold_onsets(search(states(*[140] * 4, noise=0), M, RULE), top=3)[0].length == 140
    )  # the three that are asked for
    assert (five.attrs["least"], negative_control(states(140), M, RULE, top=3).attrs["least"]) == (5, 3)


def test_a_method_is_called_falsely_only_where_it_moves_too():
    steps = [(82, None, 82)] * 6 + [(140, 140, None)] * 6
    control = negative_control(states(*steps, methods=["origin", "still", "moves"], noise=0), M, RULE)
    assert false_onsets(control).values.tolist() == [9 / 16, 0, 9 / 16]


def test_the_rate_on_noise_that_wanders_is_stated():
    """The rule knows white noise; noise that wanders it does not: the control must say so, and does."""
    white = [negative_control(states(*[None] * 64, seed=seed), M, RULE) for seed in range(4)]
    assert sum(int(one["qualified"].sum()) for one in white) == 0
    wandering = [negative_control(noise(seed), M, RULE) for seed in range(8)]
    assert 0.01 < np.mean([false_onsets(one).item() for one in wandering]) < 0.15
    assert all(float(as_many(one)) > ALPHA for one in wandering)  # M is told from no other place


def test_what_was_not_captured_leaves_places_out():
    short = negative_control(states(140).sel(position=slice(0, M + 20)), M, RULE)
    assert short["last"].values.tolist() == [min(int(at) + 20, M) for at in short["place"]]
    part = negative_control(states(140).sel(position=[*range(32, 70), *range(96, LENGTH)]), M, RULE)
    assert set(part["place"].values.tolist()) <= {*range(48, 70), *range(99, 113)}
    assert part.sizes["place"] < 16
    one = negative_control(states(140), M, CrossingRule(smoothing=1, sustained=24, warm_up=32))
    assert one["place"].values.tolist() == [80]  # the only one with room
    with pytest.raises(ValueError, match=r"position 48 .* was not captured, only"):
        negative_control(states(140).sel(position=slice(110, None)), M, RULE)
    with pytest.raises(ValueError, match=r"places .* lie 48 positions behind the 62 left out at the start .* no room"):
        negative_control(states(140), M, CrossingRule(smoothing=1, sustained=24, warm_up=32 + 30))


def test_bounds_leave_out_no_threshold_dim():
    """Every window's search, with bounds first, finds the threshold dims that it finds of all dims: M 1024, 5 kinds."""
    rng, length, trained = np.random.default_rng(0), 2304, 1024
    position = np.arange(length)
    kinds = [
        lambda: rng.normal(0, 1, length).cumsum() * 0.05,  # wanders
        lambda: 1 + (position > rng.integers(300, 1500)) * rng.normal(0, 1),  # steps
        lambda: rng.normal(0, 0.02) * np.sqrt(position),  # moves one way only
        lambda: rng.normal(0, 1) + rng.normal(0, 0.003) * np.maximum(0, position - 900),  # begins to rise
        lambda: 5 * np.sin(position * rng.uniform(0.001, 0.1)),
    ]
    columns = [kinds[dim % 5]() + rng.normal(0, 0.1, length) * (dim % 3 > 0) for dim in range(120)]
    data = np.stack(columns, -1)[None, None].repeat(2, 1)
    data[0, 1] = rng.normal(0, 1, (length, 120)).cumsum(0)[:, ::-1]
    coords = {"method": ["origin"], "layer": [0, 1], "position": position, "dim": np.arange(120)}
    hidden = xr.DataArray(data.astype(np.float32), coords, ("method", "layer", "position", "dim"), name="resid_post")
    rule = CrossingRule.scaled(trained)
    windows = [SearchWindow(at, 256, at + 700) for at in (500, 777, 1024)] + [SearchWindow(1024, 700, 1400)]
    whole = searches(hidden, windows, rule)
    few = searches(hidden, [], rule, likely=windows)
    counted = searches(hidden, [], rule, counted=windows)
    assert sum(int(one["qualified"]) for one in whole) > 20
    for one, other, number in zip(whole, few, counted, strict=True):
        assert int(one["qualified"]) == int(number["qualified"])
        np.testing.assert_array_equal(one["threshold_dim"], other["threshold_dim"])
        np.testing.assert_array_equal(one["rank"], other["rank"])
        chosen = one["threshold_dim"]
        for name in ("score", "crossing", "inside", "limit"):
            np.testing.assert_array_equal(one[name].where(chosen), other[name].where(chosen))


@pytest.mark.parametrize("columns", [1, 2, 7, 64])
@pytest.mark.parametrize("moved", [0.0, 0.5, 3.0, -3.0])
def test_medians_and_quantiles_are_numpys_bit_for_bit(columns, moved):
    values = np.random.default_rng(columns).normal(moved, 1, (50, columns)).astype(np.float32)
    values[:9] = values[:9].round()  # ties
    np.testing.assert_array_equal(medians(values), np.median(values, axis=1))
    shares = np.array([0, 0.05, 0.3, 0.5, 0.95, 1])
    ordered, expected = partitioned(values, *shares), np.quantile(values, shares, axis=1)
    np.testing.assert_array_equal(median_sizes(ordered), np.median(np.abs(values), axis=1))
    np.testing.assert_array_equal([quantile(ordered, share) for share in shares], expected)
    assert quantile(ordered, 0.05).dtype == expected.dtype


def test_a_line_between_two_float32_is_compared_exactly():
    x = np.float32(1) + np.arange(-2, 3, dtype=np.float32) * np.float32(2**-23)
    limit = np.array([1, 1 + 2**-30, 1 - 2**-30, 1 + 2**-23, 1e300, -1e300])
    for side in (np.ones(6, np.int8), -np.ones(6, np.int8), np.zeros(6, np.int8)):
        expected = side[:, None] * (x.astype(float) - limit[:, None]) > 0
        np.testing.assert_array_equal(_beyond(np.tile(x, (6, 1)), side, limit), expected)
