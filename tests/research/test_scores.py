"""Scores of synthetic lengths whose agreement is known."""

import numpy as np
import pytest
from transformers import BloomConfig, LlamaConfig

from mesa.methods import make
from mesa.plan import distances, follows_length, reach
from mesa.settings import fitting_methods
from research.thresholds_predict_failure.score import advantage, correlations, resamples, score, share
from research.thresholds_predict_failure.variants import chosen, variants

LLAMA = LlamaConfig()

NONE = 2049
THRESHOLDS = (512, 1024, 2048)


def lengths(configs=24, seeds=5, noise=0.0, seed=0):
    """Measured lengths, a third of them none, and predictions that scatter about them (nats of log length)."""
    rng = np.random.default_rng(seed)
    true = rng.uniform(np.log(256), np.log(4096), configs)[:, None] + rng.normal(0, 0.02, (configs, seeds))
    measured, predicted = (
        np.minimum(np.exp(each).round(), NONE) for each in (true, true + rng.normal(0, 1, true.shape) * noise)
    )
    return predicted, measured


def loop_spearman(x, y):
    def rank(values):
        return [sum(b < a for b in values) + (sum(b == a for b in values) + 1) / 2 for a in values]

    return np.corrcoef(rank(x), rank(y))[0, 1]


def test_a_perfect_prediction_scores_one_and_its_inverse_minus_one():
    _, measured = lengths()
    found = score(measured, measured, THRESHOLDS)
    assert (found.correlation.value, found.correlation.low, found.correlation.high) == pytest.approx((1, 1, 1))
    assert [each.value for each in found.right.values()] == [1, 1, 1]
    assert all(each.value > 0.2 for each in found.gain.values())
    assert score(-measured, measured, ()).correlation.value == pytest.approx(-1)
    shifted = score(measured / 2, measured, (512,))
    assert shifted.correlation.value == pytest.approx(1)  # early by the same factor: ranks know nothing of it
    assert shifted.right[512].value == pytest.approx(1 - np.mean((measured > 512) & (measured <= 1024)))


def test_an_unrelated_prediction_has_an_interval_about_zero():
    _, measured = lengths()
    other, _ = lengths(seed=1)
    found = score(other, measured, THRESHOLDS)
    assert found.correlation.low < 0 < found.correlation.high
    assert all(each.low < 0 for each in found.gain.values())


@pytest.mark.parametrize("seed", range(3))
def test_weighted_ranks_equal_ranks_of_the_repeated_sample(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, (2, 15)).astype(float)
    drawn = resamples(15, 4, seed)
    for row, value in zip(drawn, correlations(x, y, drawn), strict=True):
        times = row.astype(int)
        assert value == pytest.approx(loop_spearman(np.repeat(x, times), np.repeat(y, times)))


def test_the_interval_covers_and_resampling_seeds_would_not():
    """Each config's seeds agree; so 24 configs with 5 seeds hold the evidence of 24 pairs, not of 120."""
    covered, wrongly = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = np.repeat(rng.normal(size=(24, 1)), 5, 1)
        y = np.repeat(rng.normal(size=(24, 1)), 5, 1)
        right = score(x, y, (), resamples(24, 300)).correlation
        wrong = score(x.reshape(-1, 1), y.reshape(-1, 1), (), resamples(120, 300)).correlation
        covered.append(right.low <= 0 <= right.high)
        wrongly.append(wrong.low <= 0 <= wrong.high)
    assert np.mean(covered) > 0.85
    assert np.mean(wrongly) < 0.75


def test_censored_lengths_are_ties_beyond_all_others():
    measured = np.array([[256.0], [512], [NONE], [NONE]])
    tied, parted = np.array([[300.0], [600], [NONE], [NONE]]), np.array([[300.0], [600], [900], [NONE]])
    assert score(tied, measured, ()).correlation.value == pytest.approx(1)
    assert score(parted, measured, ()).correlation.value == pytest.approx(loop_spearman([1, 2, 3, 4], [1, 2, 3, 3]))
    found = score(parted, measured, (512, 2048))
    assert found.right[512].value == 0.75  # 600 is late
    assert found.right[2048].value == 0.75  # 900 is a false alarm
    assert (found.yes[512], found.yes[2048]) == (0.5, 0.5)
    assert found.gain[2048].value == 0.25


def test_no_call_leaves_a_pair_out():
    predicted, measured = lengths(noise=0.3)
    some = predicted.copy()
    some[::2] = np.nan
    found = score(some, measured, (1024,))
    assert found.called == 0.5
    assert found.correlation.value == pytest.approx(score(predicted[1::2], measured[1::2], ()).correlation.value)
    nothing = score(np.full_like(measured, np.nan), measured, (1024,))
    assert (nothing.called, str(nothing.correlation), str(nothing.right[1024])) == (0, "-", "-")


def test_a_constant_prediction_has_calls_but_no_correlation():
    _, measured = lengths()
    always = score(np.full_like(measured, 256), measured, (1024,))
    assert np.isnan(always.correlation.value)
    assert always.right[1024].value == always.yes[1024]


def test_advantage_compares_on_pairs_both_call():
    predicted, measured = lengths(noise=0.05)
    rival, _ = lengths(noise=2.0)
    other, difference = advantage(predicted, rival, measured)
    assert difference.value == pytest.approx(score(predicted, measured, ()).correlation.value - other.value)
    assert difference.low > 0
    rival[0] = np.nan
    other, _ = advantage(predicted, rival, measured)
    assert other.value == pytest.approx(score(rival, measured, ()).correlation.value)


def test_bad_lengths_are_refused():
    _, measured = lengths(configs=4)
    with pytest.raises(ValueError, match=r"predicted \(4, 4\) and measured \(4, 5\) are not both \(config, seed\)"):
        score(measured[:, 1:], measured, ())
    with pytest.raises(ValueError, match="2 method configs are too few to correlate; take at least 3"):
        score(measured[:2], measured[:2], ())


def test_pairs_that_cannot_be_judged_are_left_out():
    predicted, measured = lengths(configs=6)
    some = np.where(np.arange(6)[:, None] == 0, np.nan, measured)
    found, without = score(predicted, some, (1000,)), score(predicted[1:], measured[1:], (1000,))
    assert found.correlation.value == without.correlation.value
    assert found.right[1000].value == without.right[1000].value
    assert found.called == without.called
    assert advantage(predicted, measured, some)[0].value == pytest.approx(1)
    assert (
        share(predicted, some, predicted > some).value
        == share(predicted[1:], measured[1:], predicted[1:] > measured[1:]).value
    )
    assert score(predicted, measured * np.nan, (1000,)).called == 0


def varied(trained, config=LLAMA):
    return variants(fitting_methods("all", trained, config=config)[0], trained)


@pytest.mark.slow
def test_configs_fail_early_late_and_never_by_arithmetic():
    made = varied(256)
    assert len(made) == 33
    assert list(made)[:3] == ["origin", "nope", "rerope"]
    first = {}
    for name, method in made.items():
        beyond = np.flatnonzero(reach(method.plan(2048)) >= 256)
        first[name] = int(beyond[0]) if len(beyond) else None
    assert first["origin"] == 256
    assert first["leaky-rerope k=2"] == 32 + 2 * 224
    assert first["self-extend group=4"] == 64 + 4 * 192
    assert first["stair width=4"] == 32 + 4 * 223 + 1
    assert [first[name] for name in ("nope", "rerope", "leaky-rerope", "stair", "mesa")] == [None] * 5
    assert not any(name.startswith(("dynamic-ntk", "ntk-mixed")) for name in varied(256, BloomConfig()))


def test_chosen_configs_are_made_as_named():
    config = LlamaConfig(num_hidden_layers=4)
    made = chosen("rerope window=128,  leaky-rerope  k=1.25", 256, config)
    assert list(made) == ["origin", "rerope window=128", "leaky-rerope k=1.25"]
    assert made["rerope window=128"] == varied(256)["rerope window=128"]
    assert made["leaky-rerope k=1.25"].k == 1.25
    assert list(chosen("nope,origin", 256, config)) == ["origin", "nope"]
    _, parted, other = chosen("rerope layers=[0,1],mesa", 256, config).values()
    assert parted.layers == (0, 1)
    assert other.layers is None
    with pytest.raises(ValueError, match="layer 4 is out of range"):
        chosen("origin layers=[4]", 256, config)
    with pytest.raises(ValueError, match="dynamic-ntk cannot be attached to model type 'bloom'"):
        chosen("dynamic-ntk", 256, BloomConfig())


def test_reach_is_the_largest_distance_of_each_query():
    for method in varied(24).values():
        plan = method.plan(70)
        assert reach(plan, block=16).tolist() == distances(plan).max(axis=1).tolist()
    assert reach(make("rerope", 24, window=3).plan(6)).tolist() == [0, 1, 2, 3, 3, 3]


def test_only_dynamic_ntk_and_lampe_follow_the_prompt_length():
    made = varied(256)
    follow = {name.split()[0] for name, method in made.items() if follows_length(method.plan(2048), method.plan(512))}
    assert follow == {"dynamic-ntk", "lampe"}
    made = chosen("dca mscale=true,dca", 256, LLAMA)
    follow = [name for name, each in made.items() if follows_length(each.plan(2048), each.plan(256))]
    assert follow == ["dca mscale=true"]  # its factor on a prompt's tokens is by the prompt's length


def test_configs_that_scale_rotary_have_no_yarn():
    scaled = LlamaConfig(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
    assert {*varied(256)} - {*varied(256, scaled)} == {"yarn", "yarn factor=2"}
