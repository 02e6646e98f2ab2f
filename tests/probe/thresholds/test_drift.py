"""The rule `drift` on planted breaks of every shape, and where there is none."""

import numpy as np
import pytest
import xarray as xr

import mesa
from mesa.plan import restarts
from probe.thresholds import drift
from probe.thresholds.drift import DriftRule, find_drift, resolution
from probe.thresholds.onset import drift_onsets, top_dims

M, LENGTH, LAYERS, DIMS = 512, 1536, 3, 40
CARRIED = slice(5, 11)  # dims that break, of layer 1


def states(shape=None, at=700, size=0.05, seed=0, methods=("origin",), white=0.002):
    """Settling states, one dim massive; in layer 1 the dims CARRIED of the first method break from `at` on."""
    rng = np.random.default_rng(seed)
    position = np.arange(LENGTH)
    levels = rng.normal(0, 4, (LAYERS, 1, DIMS))
    levels[:, :, 0] = 1000.0
    x = levels + rng.normal(0, white, (len(methods), LAYERS, LENGTH, DIMS))
    x += rng.normal(0, 1, (LAYERS, 1, DIMS)) * np.exp(-position / 8)[:, None]  # settling
    past = np.maximum(0, position - at) / (LENGTH - at)
    moves = {
        "step": (past > 0).astype(float),
        "slow": past,
        "bursts": (past > 0) * (np.sin(position / 9) > 0.8),
        None: 0 * past,
    }[shape]
    x[0, 1, :, CARRIED] += size * moves[:, None] * rng.choice([-1, 1], CARRIED.stop - CARRIED.start)
    coords = {"method": list(methods), "layer": range(LAYERS), "position": position, "dim": range(DIMS)}
    return xr.DataArray(x.astype(np.float32), coords, list(coords), name="resid_post")


@pytest.mark.parametrize(("shape", "latest"), [("step", 704), ("bursts", 776), ("slow", 1200)])
def test_a_planted_break_is_called_in_its_layer_by_its_dims(shape, latest):
    result = find_drift(states(shape), M)
    (call,) = drift_onsets(result)
    assert call.layer == 1
    assert list(call.layers) == [1]
    assert 700 - 4 < call.length <= latest
    assert 690 < call.low <= call.length <= call.high < LENGTH
    pairs = top_dims(result, 6)
    assert {layer for layer, _ in pairs} == {1}
    assert {dim for _, dim in pairs} == set(range(5, 11))
    assert float(result["share"].sel(layer=1).sum()) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_called_where_nothing_breaks(seed):
    (call,) = drift_onsets(find_drift(states(seed=seed), M))
    assert call.length is None
    assert call.layers == {}
    assert call.false_positive_rate == 0
    assert str(call) == f"none up to {LENGTH}"


@pytest.mark.parametrize("factors", [1, 4, 40])
def test_dims_that_follow_few_factors_count_as_few(factors):
    rng = np.random.default_rng(factors)
    moves, signs = rng.standard_normal((LENGTH, factors)), rng.choice([-1.0, 1.0], DIMS)
    of_dims = moves[:, np.arange(DIMS) % factors] * signs  # as many dims of each factor
    hidden = states("step").isel(layer=[1])
    result = find_drift(hidden + xr.DataArray(of_dims.astype(np.float32), dims=["position", "dim"]), M)
    assert float(result["effective_dims"].squeeze()) == pytest.approx(factors, rel=0.2)


def test_the_effective_dims_of_an_onset_are_those_of_its_layer():
    result = find_drift(states("step"), M)
    (onset,) = drift_onsets(result)
    assert onset.effective_dims == float(result["effective_dims"].sel(layer=1).squeeze())
    assert drift_onsets(find_drift(states(), M))[0].effective_dims is None


@pytest.mark.parametrize("heavy", [2, 16])
def test_values_far_out_are_no_break_but_a_shift_among_them_is(heavy):
    """Single runs beyond the limit, in layers that are not evaluated; chance: a break's many runs leave it none."""
    rng = np.random.default_rng(heavy)
    x = rng.normal(size=(12, 8 * M, 16))
    x[..., :heavy] = rng.standard_t(2, (12, 8 * M, heavy))
    coords = {"method": ["origin"], "layer": range(12), "position": range(8 * M), "dim": range(16)}
    hidden = xr.DataArray(x[None].astype(np.float32), coords, list(coords), name="x")
    call = drift_onsets(find_drift(hidden, M))[0]
    assert (call.length, call.chance) == (None, None)
    assert "no clearer than chance" in call.untrusted.values()
    broken = hidden.copy()
    broken[:, 7, 2 * M :] += 60
    call = drift_onsets(find_drift(broken, M))[0]
    assert list(call.layers) == [7]
    assert call.chance == pytest.approx(12 * drift.chance_of(768, 896, 64, 4.0), abs=0)


def test_the_chance_is_how_often_alike_runs_pass_the_limit():
    """64 runs inside and 128 beyond whose tail falls like 1 / level: many draws."""
    runs = 1 / np.random.default_rng(0).random((20000, 192))
    passed = (runs[:, 64:] > 4 * runs[:, :64].max(1, keepdims=True)).sum(1)
    for least in (1, 2, 3):
        assert (passed >= least).mean() == pytest.approx(drift.chance_of(least, 128, 64, 4.0), rel=0.1)


@pytest.mark.parametrize("seed", [0, 1])
def test_few_runs_above_0_are_chance_where_all_levels_inside_are_0(seed):
    """Rounded noise: every value of layer 0 inside the window is 0, and a few beyond are not."""
    x = np.round(0.15 * np.random.default_rng(seed).normal(size=(4, 2048, 16)))
    coords = {"method": ["origin"], "layer": range(4), "position": range(2048), "dim": range(16)}
    result = find_drift(xr.DataArray(x[None].astype(np.float32), coords, list(coords), name="x"), 256)
    assert result["doubt"].values[0, 0] == "no clearer than chance"
    assert np.isnan(result["first"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.999, 1])
def test_states_that_wander_are_not_evaluated_but_a_shift_among_them_is(share, monkeypatch):
    """Some of 40 layers leave their range, by no more than a random walk would."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 8 * 256, 32))
    x[:, 1:] *= (1 - share**2) ** 0.5 if share < 1 else 1
    for t in range(1, 8 * 256):
        x[:, t] += share * x[:, t - 1]
    coords = {"method": ["origin"], "layer": range(40), "position": range(8 * 256), "dim": range(32)}
    hidden = xr.DataArray(x[None].astype(np.float32), coords, list(coords), name="x")
    call = drift_onsets(find_drift(hidden, 256))[0]
    assert call.length is None
    with monkeypatch.context() as changed:
        changed.setattr(drift, "_walk", lambda *_: 0.0)
        wanders = set(drift_onsets(find_drift(hidden, 256))[0].layers)
    assert (
        {layer for layer, doubt in call.untrusted.items() if doubt == "no further than a random walk"}
        == wanders
        != set()
    )
    broken = hidden.copy()
    broken[:, min(wanders), 512:] += 100 if share < 1 else 1000
    assert list(drift_onsets(find_drift(broken, 256))[0].layers) == [min(wanders)]


GROWTHS = {
    **{f"t^{power}": lambda t, power=power: t**power for power in (0.1, 0.25, 0.5, 0.75, 1)},
    "log t": np.log,
    "saturating": lambda t: 1 - np.exp(-t / M),
}


@pytest.mark.quick_cases(7)
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.3])
@pytest.mark.parametrize("growth", GROWTHS)
def test_growth_that_goes_on_as_before_is_no_break_but_a_step_on_top_is(growth, noise):
    rng, length = np.random.default_rng(3), 8 * M
    time = np.arange(1.0, length + 1)
    grown = GROWTHS[growth](time)
    grown /= np.ptp(grown[M // 4 : 3 * M // 4])
    size = rng.choice([-1, 1], 24) * rng.uniform(0.3, 1, 24)
    x = grown[:, None] * size + rng.normal(0, 4, 24) + rng.normal(0, 1, (length, 24)) * noise
    coords = {"method": ["origin"], "layer": [0], "position": range(length), "dim": range(24)}
    hidden = xr.DataArray(x[None, None].astype(np.float32), coords, list(coords), name="x")
    call = drift_onsets(find_drift(hidden, M))[0]
    assert (call.length, call.reason) == (None, "")
    broken = hidden.copy()
    broken[..., M + 40 :, :] -= (10 * size).astype(np.float32)
    assert M + 36 < drift_onsets(find_drift(broken, M))[0].length <= M + 40


def test_positions_that_were_not_captured_are_no_break():
    gaps = np.r_[0:330, 352:401, 500:640, 655:1100, 1200:LENGTH]
    assert drift_onsets(find_drift(states().isel(position=gaps), M))[0].length is None
    assert drift_onsets(find_drift(states("step").isel(position=gaps), M))[0].length == 700
    missed = drift_onsets(find_drift(states("step").isel(position=np.r_[0:640, 901:LENGTH]), M))[0]
    assert (missed.low, missed.length) == (640, 901)  # it may have begun where nothing was captured
    assert missed.evaluated == LENGTH - M - (901 - 640)


@pytest.mark.parametrize("first", [0, 1])
def test_long_runs_are_read_where_they_were_captured(first):
    """Every second position: half of each run of 32, of which some are read."""
    rule = DriftRule(run=32, warm_up=64, held_out=32)
    whole = find_drift(states("step", at=704, size=0.5), M, rule)
    result = find_drift(states("step", at=704, size=0.5).isel(position=slice(first, None, 2)), M, rule)
    assert result["run"].values.tolist() == whole["run"].values.tolist()
    assert set(result["captured"].values.tolist()) == {16}
    assert drift_onsets(whole)[0].length == 704
    assert drift_onsets(result)[0].length == 704 + first


def test_float16_stores_are_evaluated_by_what_they_resolve():
    hidden = states(white=1e-6, seed=5)
    halved = hidden.astype(np.float16)
    assert drift_onsets(find_drift(halved, M))[0].length is None
    fine = DriftRule.scaled(M, resolution(None))
    assert drift_onsets(find_drift(halved, M, fine))[0].untrusted  # the last bit of a float16 passes the limit
    broken = states("step", size=0.5, white=1e-6).astype(np.float16)
    assert drift_onsets(find_drift(broken, M))[0].length == 700
    assert resolution("bfloat16", "float32") > resolution("float16") > resolution("float32", None)


def test_another_methods_range_is_at_least_the_references():
    origin = states()
    moved = origin.isel(position=400).drop_vars("position") + 1e-5 * np.sin(origin["position"] / 400)  # barely moves
    smooth = moved.transpose(*origin.dims).assign_coords(method=["smooth"])
    both = find_drift(xr.concat([origin, smooth], "method").rename("resid_post"), M)
    assert [call.length for call in drift_onsets(both)] == [None, None]
    alone = find_drift(smooth.rename("resid_post"), M)["range"]
    assert float(alone.median()) < 0.01 * float(both["range"].sel({"method": "smooth"}).median())


def test_what_settles_again_after_a_restart_is_not_evaluated():
    method = mesa.make("mesa", M)
    plan = method.plan(LENGTH)
    begins = restarts(plan)
    assert list(begins) == method.chunks(LENGTH)[2:-1]
    hidden = states(methods=("mesa",))
    for begin in begins:
        end = min(LENGTH, begin + 80)
        hidden[0, :, begin:end] += np.exp(-np.arange(end - begin) / 20)[:, None]
    unaware = drift_onsets(find_drift(hidden, M))[0]
    assert unaware.length is not None
    aware = drift_onsets(find_drift(hidden, M, plans={"mesa": plan}))[0]
    assert aware.length is None
    assert 0 < aware.evaluated < unaware.evaluated


def test_chunks_that_begin_within_a_word_are_not_evaluated():
    plans = {"origin": mesa.make("mesa", M).plan(LENGTH)}
    # words of 2 and 3 tokens begin with a chunk of 486
    assert restarts(plans["origin"]) == {498: 12, 984: 12, 1470: 93}
    for period in (1, 3, 9):
        call = drift_onsets(find_drift(states(), M, DriftRule.scaled(M, period=period), plans=plans))[0]
        assert call.length is None
        assert 0 < call.evaluated < call.beyond == LENGTH - M
        assert str(call) == f"none up to {call.until} ({call.evaluated / call.beyond:.0%} of positions evaluated)"
    call = drift_onsets(find_drift(states(), M, DriftRule.scaled(M, period=5), plans=plans))[0]
    assert (str(call), call.evaluated) == ("not evaluated: warm-up throughout", 0)


def test_what_is_not_evaluated_is_said_beside_no_call():
    hidden = states()
    whole = drift_onsets(find_drift(hidden, M))[0]
    assert (str(whole), whole.evaluated) == (f"none up to {LENGTH}", LENGTH - M)
    gap = hidden.isel(position=np.r_[: 3 * M // 2, LENGTH - M // 2 : LENGTH])
    call = drift_onsets(find_drift(gap, M))[0]
    assert str(call) == f"none up to {LENGTH} ({M / (LENGTH - M):.0%} of positions evaluated)"
    hidden[0, 1, 300:384, CARRIED] += 0.05  # false detections
    (call,) = drift_onsets(find_drift(hidden, M))
    assert str(call) == f"none up to {LENGTH}; layer 1 not evaluated"
    assert call.tried < whole.tried


def test_a_break_among_what_settles_may_have_begun_there():
    plans = {"origin": mesa.make("mesa", M).plan(LENGTH)}
    for at, low, length in ((M + 8, M, 628), (1000, 872, 1112), (700, 700, 700)):
        call = drift_onsets(find_drift(states("step", at=at), M, plans=plans))[0]
        assert (call.low, call.length) == (low, length)


def test_a_layer_that_alarms_inside_the_window_is_not_called():
    hidden = states("step")
    hidden[0, 1, 300:384, CARRIED] += 0.05  # as large a step where the model works
    result = find_drift(hidden, M)
    assert result["false_positive_rate"].sel(layer=1).item() > 0.05
    (call,) = drift_onsets(result)
    assert call.length is None
    assert call.untrusted == {1: "false detections"}
    assert call.false_positive_rate == 0
    alone = drift_onsets(find_drift(hidden.isel(layer=[1]), M))[0]
    assert str(alone) == "not evaluated: false detections"


def test_values_that_are_not_finite_are_refused():
    hidden = states()
    hidden[0, 2, 900] = np.nan
    with pytest.raises(ValueError, match="states of origin in layer 2 are not finite"):
        find_drift(hidden, M)


def test_the_mean_of_prompts_is_evaluated_where_each_alone_is_too_noisy():
    rng = np.random.default_rng(5)
    prompts = [states("step", size=3.0) + rng.normal(0, 1, (1, LAYERS, LENGTH, DIMS)) for _ in range(64)]
    many = xr.concat(prompts, "prompt").rename("resid_post").astype(np.float32)
    assert drift_onsets(find_drift(many.isel(prompt=0), M))[0].length is None
    assert 680 < drift_onsets(find_drift(many, M))[0].length < 720


def test_what_differs_by_token_is_not_position():
    hidden = states("step")
    tokens = np.random.default_rng(7).normal(0, 5, (3, LAYERS, DIMS))[np.arange(LENGTH) % 3]
    spoken = (hidden + tokens.transpose(1, 0, 2)[None]).rename("resid_post").astype(np.float32)
    assert drift_onsets(find_drift(spoken, M))[0].length is None
    assert drift_onsets(find_drift(spoken, M, DriftRule.scaled(M, period=3)))[0].length == 700
    still = (states() + tokens.transpose(1, 0, 2)[None]).rename("resid_post").astype(np.float32)
    assert drift_onsets(find_drift(still, M, DriftRule.scaled(M, period=3)))[0].length is None


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("period", [2, 3, 4, 6, 12, 16])
@pytest.mark.parametrize("trained", [512, pytest.param(2048, marks=pytest.mark.slow), 8192])
def test_every_token_of_a_word_is_read(trained, period):
    """Runs and references are thinned in long windows: by steps that meet every token of the word."""
    rng, length = np.random.default_rng(period), 3 * trained // 2
    phase = np.arange(length) % period
    x = rng.normal(0, 0.002, (1, 1, length, 8)) + rng.normal(0, 5, (period, 8))[phase]
    coords = {"method": ["origin"], "layer": [0], "position": range(length), "dim": range(8)}
    hidden, rule = xr.DataArray(x, coords, list(coords), name="x"), DriftRule.scaled(trained, period=period)
    result = find_drift(hidden, trained, rule)
    assert (result["doubt"] == "").all()
    assert result["limit"].item() == pytest.approx(4, rel=0.5)
    assert drift_onsets(result)[0].length is None
    for broken in {0, 1, period - 1}:

        def moved(at, broken=broken):
            step = np.where((phase == broken) & (np.arange(length) >= at), 1.0, 0.0)
            return find_drift((hidden + step[None, None, :, None]).rename("x"), trained, rule)

        assert trained <= drift_onsets(moved(trained))[0].length < trained + 2 * period + rule.run
        assert not (moved(trained // 2)["doubt"] == "").any()


def test_phases_without_a_reference_are_not_trusted():
    rule = DriftRule.scaled(M, period=300)
    assert str(drift_onsets(find_drift(states(), M, rule))[0]) == "not evaluated: false detections could not be tried"


def test_one_dim_of_many_is_enough_and_runs_begin_at_M():
    hidden = states()
    hidden[0, 2, M:, 17] += 3
    call = drift_onsets(find_drift(hidden, M))[0]
    assert (call.length, call.layer, call.before) == (M, 2, None)
    odd = drift_onsets(find_drift(hidden, M - 3))[0]
    assert M - 3 <= odd.length <= M
    assert odd.before is None
    early = states()
    early[0, 2, M - 40 :, 17] += 3
    assert drift_onsets(find_drift(early, M))[0].before == M - 40


def test_the_first_layer_to_break_is_called_and_its_dims_alone_carry_it():
    hidden = states("step")
    hidden[0, 2, 1000:, 17] += 3
    hidden[0, 0, 440:, 3] += 3
    hidden[0, 0, 440:480, 4] += 3
    late = find_drift(hidden.isel(layer=[1, 2]), M)
    call = drift_onsets(late)[0]
    assert (call.layer, call.layers) == (1, {1: 700, 2: 1000})
    assert {layer for layer, _ in top_dims(late, 40)} == {1}
    hidden[0, 1, 480:, 7] += 3
    call = drift_onsets(find_drift(hidden, M))[0]
    assert (call.layer, call.before) == (0, 440)  # layer 1 began at 480


def test_held_out_positions_are_no_part_of_the_reference():
    first_held_out = states()
    first_held_out[0, :, 384:388] += 3
    calm, moved = find_drift(states(), M), find_drift(first_held_out, M)
    for name in ("limit", "range", "centre"):
        xr.testing.assert_equal(calm[name], moved[name])
    assert float(moved["level"].sel(run=384).min()) > 1000 > float(calm["level"].sel(run=384).max())


def test_warm_up_written_out(monkeypatch):
    """Below M / 4; M / 4 tokens after a restart; where what follows it comes to the positions held out, 384 and on."""
    monkeypatch.setattr(drift, "restarts", lambda plan: {600: 100})
    result = find_drift(states(), M, plans={"origin": mesa.make("mesa", M).plan(LENGTH)})
    left_out = result["run"].values[result["warm_up"].sel({"method": "origin"}).values]
    assert left_out.tolist() == [*range(0, 128, 4), *range(600, 728, 4), *range(884, LENGTH, 4)]


def test_a_dim_counts_its_ranges_up_to_the_clip():
    hidden = states()
    hidden[0, 2, M:, 17] += 3000
    level = float(find_drift(hidden, M)["level"].sel(layer=2, run=slice(M, None)).max())
    assert level == pytest.approx(100**2 / DIMS, abs=1)


def test_one_dim_of_a_very_wide_model_can_be_called():
    hidden = xr.concat([states()] * 80, "dim").isel(layer=[2]).transpose(*states().dims)
    hidden = hidden.assign_coords(dim=range(80 * DIMS)).copy()
    hidden[0, 0, 700:, 17] += 3
    assert drift_onsets(find_drift(hidden, M))[0].length == 700  # at a clip of 100 ranges its level were 3 of 4


def test_layers_in_which_nothing_could_be_called_are_not_trusted(monkeypatch):
    monkeypatch.setattr(drift, "_pretended", lambda *_: (0.0, 1.0))
    hidden = states()
    hidden[0, 1, 300:302] += 30  # half a run at the clip: four times its level is beyond what any can have
    assert drift_onsets(find_drift(hidden, M))[0].untrusted == {1: "its range inside M is too wide to leave"}


def test_the_centre_is_the_nearest_median():
    position = np.arange(LENGTH, dtype=np.float32)[None, None, :, None]
    coords = {"method": ["origin"], "layer": [0], "position": range(LENGTH), "dim": [0]}
    result = find_drift(xr.DataArray(position, coords, list(coords), name="x"), M)
    assert result["centre"].item() == 256  # of 128 .. 383, the 129th of 256: round(127.5) is even


def test_the_interval_says_how_many_draws_call_nothing():
    """Of two dims in 40 one draw in eight holds neither: 95% of the draws do not all call."""
    hidden = states()
    hidden[0, 2, 700:, 17:19] += 3
    call = drift_onsets(find_drift(hidden, M))[0]
    assert (call.low, call.length, call.high) == (700, 700, None)


@pytest.mark.parametrize(("alarming", "trusted", "rate"), [(0, False, 0.0), (1, True, 1.0)])
def test_trust_and_the_rate_of_alarms_are_of_different_windows(alarming, trusted, rate, monkeypatch):
    """Layer 0 alarms in every second window; the first, third ... decide on trust, the others give the rate."""
    count = 0

    def pretended(*_):
        nonlocal count
        count += 1
        return float(count <= 16 and (count - 1) % 2 == alarming), 0.5

    monkeypatch.setattr(drift, "_pretended", pretended)
    result = find_drift(states(), M)
    assert (result["doubt"] == "").values.tolist() == [[trusted, True, True]]
    assert result["false_positive_rate"].values.tolist() == [[rate, 0, 0]]
    assert result["any_false_positive_rate"].item() == rate  # one layer is enough


def test_too_few_positions_are_refused():
    with pytest.raises(ValueError, match="a trained window of 12 leaves fewer than 8 runs of 1 positions"):
        find_drift(states(), 12)
    with pytest.raises(ValueError, match=r"0 runs of 4 positions from 512 on were captured by half or more, of 0-511"):
        find_drift(states().isel(position=slice(0, M)), M)
    with pytest.raises(ValueError, match=r"runs of 4 positions in \[128, 384\) were captured"):
        find_drift(states().isel(position=slice(370, None)), M)
