"""The law: far keys, the curve, and planted losses that it must read back."""

from dataclasses import replace

import numpy as np
import pytest

import mesa
from mesa.plan import relative_positions
from probe.commands.predict.formula import (
    HALF,
    LOG_N,
    ONE,
    ORIGIN,
    POWERS,
    REFERENCE,
    Among,
    Calibration,
    FarKeys,
    Law,
    Moved,
    excess_curve,
    failure_length,
    far_keys,
    gap_methods,
    kind_of,
    kind_sentence,
)

M, LONGEST, TEXTS = 64, 512, 6


@pytest.mark.parametrize(
    "method",
    [
        mesa.LeakyReRoPE(trained_length=M, k=1.5),
        mesa.SelfExtend(trained_length=M, group=2),
        mesa.make("gap", M, boundary=10, gap=100),
        mesa.MesaExtrapolation(trained_length=M),
        mesa.ReRoPE(trained_length=M),
    ],
)
def test_far_keys_are_summed_as_written(method):
    plan, queries = method.plan(160), [63, 64, 100, 159]
    far = far_keys(plan, queries, M)
    matrix = mesa.distances(plan)
    for number, power in enumerate(POWERS):
        expected = [sum((d - M + 1.0) ** power for d in matrix[query] if d >= M) for query in queries]
        np.testing.assert_allclose(far.sums[number], expected, rtol=1e-9)


def test_a_factor_on_keys_scales_the_scores_as_one_on_queries_does():
    plan, factor = mesa.DCA(trained_length=M, mscale=True).plan(160), 0.05 * np.log(160 / M) + 1
    np.testing.assert_allclose(far_keys(plan, [80, 159], M).scales, factor**2)


@pytest.mark.parametrize("power", [0.0, 0.6, 2.0, 12.0])
def test_origin_is_given_its_curve(power):
    curve = excess_curve(np.linspace(-1, 3, LONGEST), M)
    queries = [M - 1, M, 100, LONGEST - 1]
    far = FarKeys.grouped([far_keys(mesa.Origin(trained_length=M).plan(LONGEST), [query], M) for query in queries])
    expected = [0, *curve[[1, 100 - M + 1, LONGEST - M]]]
    np.testing.assert_allclose(Law(M, curve, power).at(far), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("excess", "length"), [([0, 0.6, 0.7], 20), ([0.6, 0, 0.7], 30), ([0.7, 0.6, 0.5], 10), ([0.7, 0.6, 0.4], None)]
)
def test_a_failure_lasts_to_the_longest_length(excess, length):
    assert failure_length([10, 20, 30], np.array(excess)) == length


def planted(
    power: float, scale_power: float, noise: float = 0.02, steepness: float = 2.5, longest: int = LONGEST
) -> dict:
    """Losses of a calibration under a law with these powers, to `longest` tokens; masking costs nothing."""
    rng = np.random.default_rng(1)
    curve = steepness * np.linspace(0, 1, LONGEST - M + 1) ** 1.3
    law = Law(M, curve, power, scale_power)
    level = 2 + rng.normal(0, 0.3, (TEXTS, LONGEST - 1))

    def losses(method: mesa.Method, length: int, scored: int) -> np.ndarray:
        queries = np.arange(length - 1 - scored, length - 1)
        far = replace(far_keys(method.plan(length), queries, M), groups=tuple(range(scored)))
        return level[:, queries] + law.at(far) + rng.normal(0, noise, (TEXTS, scored))

    passes = {
        (ORIGIN, longest): mesa.Origin(trained_length=M),
        (REFERENCE, longest): mesa.LMInfinite(trained_length=M),
        (LOG_N, longest): mesa.Origin(trained_length=M, log_n=True),
    }
    result = {key: losses(method, key[1], key[1] - 1) for key, method in passes.items()}
    for name, method in gap_methods(M, M, longest).items():
        result[name, M] = losses(method, M, M // 4)
    return result


@pytest.mark.parametrize(("power", "scale_power"), [(0.5, 2.0), (1.2, 0.0), (0.0, 4.0)])
def test_planted_powers_are_read_back(power, scale_power):
    calibration = Calibration.of(M, M, LONGEST, planted(power, scale_power))
    law = calibration.law(np.ones(TEXTS))
    assert calibration.refusal() == ""
    assert abs(law.power - power) <= 0.15
    assert abs(law.scale_power - scale_power) <= 0.3


@pytest.mark.parametrize("longest", [128, 160, 256])
@pytest.mark.parametrize("power", [0.0, 0.5, 3.0])
def test_a_short_curve_gives_the_same_power_as_a_long_one(power, longest):
    """Gaps beyond its end would cost more than it knows, and move the power."""
    calibration = Calibration.of(M, M, longest, planted(power, 0, noise=0.004, longest=longest))
    law = calibration.law(np.ones(TEXTS))
    assert calibration.refusal() == ""
    assert power - 0.15 <= law.power <= power + max(0.15, power / 3)
    assert calibration.gap_rms(law) < 0.03


def test_the_misfit_is_the_distance_to_the_gaps_cost_in_nats():
    losses = planted(0.5, 0, noise=0)
    for name, length in losses:
        if name.startswith("gap "):
            losses[name, length] = losses[name, length] + 0.8  # whatever the distances
    calibration = Calibration.of(M, M, LONGEST, losses)
    assert calibration.gap_rms(Law(M, calibration.law(np.ones(TEXTS)).excess, 0.5)) == pytest.approx(0.8, abs=0.05)


def test_no_excess_is_nothing_to_predict():
    refusal = Calibration.of(M, M, LONGEST, planted(0.5, 0, steepness=0)).refusal()
    assert "there is no failure to predict" in refusal


def test_a_model_that_does_better_without_half_of_its_window_is_refused():
    losses = planted(0.5, 0)
    for key in losses:
        if key[0].startswith(("gap ", "no gap")):
            losses[key] = losses[key] + 0.4
    assert f"origin already fails inside M = {M}" in Calibration.of(M, M, LONGEST, losses).refusal()


def test_gaps_that_follow_the_law_ask_for_no_other_factor_and_those_that_do_not_for_one():
    losses = planted(0.5, 0, noise=0)
    calibration = Calibration.of(M, M, LONGEST, losses)
    law = calibration.law(np.ones(TEXTS))
    assert np.quantile(calibration.needed_factors(law), [0.1, 0.9]) == pytest.approx([1, 1], abs=0.3)
    assert calibration.gap_rms(law) < 0.05
    for key in losses:
        if key[0].startswith("gap "):
            losses[key] = losses["no gap", M] + 2 * (losses[key] - losses["no gap", M])
    assert np.median(Calibration.of(M, M, LONGEST, losses).needed_factors(law)) > 1.3
    assert Calibration.of(M, M, LONGEST, losses).gap_rms(law) > 0.1


@pytest.mark.parametrize("tokens", [M, M // 2])
@pytest.mark.parametrize("times", [1.5, 2, 2.9, 3, 5, 8])
def test_no_gap_gives_a_distance_beyond_the_curve(tokens, times):
    longest = round(times * M)
    for method in gap_methods(M, tokens, longest).values():
        distances = relative_positions(method.plan(tokens), np.arange(tokens), np.arange(tokens))
        assert distances.max() < longest


def test_a_model_that_does_not_read_distance_is_refused():
    losses = planted(0.5, 0)
    for name, length in losses:
        if name.startswith("gap "):
            losses[name, length] = losses["no gap", length]
    assert "no effect of distances beyond M is seen" in Calibration.of(M, M, LONGEST, losses).refusal()


def test_a_model_is_not_refused_for_one_gap_that_costs_no_more_than_masking():
    """Rotary phases may come round there to some met inside M."""
    losses = planted(0.5, 0)
    largest = max(gap for _, gap in Calibration.of(M, M, LONGEST, losses).gaps)
    for name, length in losses:
        if name.startswith("gap ") and name.endswith(f" {largest}"):
            losses[name, length] = losses["no gap", length]
    assert Calibration.of(M, M, LONGEST, losses).refusal() == ""


def test_a_gap_within_m_shows_no_effect_of_distances_beyond_it():
    losses = {key: values for key, values in planted(0.5, 0).items() if not key[0].startswith("gap ")}
    tokens = M // 2  # of the calibration's prompts
    for name in gap_methods(M, tokens, LONGEST):
        harm = 1.0 if name.startswith("gap ") and name.endswith(f" {M // 2}") else 0.0
        losses[name, tokens] = losses["no gap", M] + harm
    assert "no effect of distances beyond M is seen" in Calibration.of(M, tokens, LONGEST, losses).refusal()


def test_of_several_gaps_none_is_seen_to_harm_by_chance():
    losses = planted(0.5, 0)
    calibration, rng, passed = Calibration.of(M, M, LONGEST, losses), np.random.default_rng(3), 0
    for _ in range(400):
        for name, length in losses:
            if name.startswith(("gap ", "masked ")):
                losses[name, length] = losses["no gap", length] + rng.normal(0, 0.5, (TEXTS, M // 4))
        passed += not calibration.refusal()
    assert passed <= 0.05 * 400


def test_the_chosen_keys_alone_are_moved_and_the_first_token_where_it_is_named():
    moved = relative_positions(Moved(trained_length=16, half=4, count=2, gap=100).plan(6), np.arange(6), np.arange(6))
    assert moved[3:].tolist() == [[3, 2, 1, 0, -1, -1], [4, 103, 2, 101, 0, -1], [5, 104, 3, 102, 1, 0]]
    chosen = [
        Among(4, count, first, True)(4, np.arange(6)).nonzero()[0].tolist() for count in (1, 4) for first in (0, 1)
    ]
    assert chosen == [[2], [0], [1, 2, 3], [0, 1, 2, 3]]
    masked = relative_positions(Moved(trained_length=16, half=4, count=1, gap=-1).plan(6), np.array([5]), np.arange(6))
    assert masked.tolist() == [[5, 4, -1, 2, 1, 0]]


@pytest.mark.parametrize(
    ("one", "few", "words"), [(0.9, True, "a few far keys are enough"), (0.1, False, "add up"), (0.5, None, "told")]
)
def test_the_kind_of_a_model_is_what_one_far_key_costs_of_what_all_do(one, few, words):
    noise = np.random.default_rng(0).normal(0, 0.01, (3, M))
    losses = {("no gap", M): noise[:1], (ONE, M): one + noise[1:2], (HALF, M): 1 + noise[2:]}
    kind = kind_of(losses, M, M, LONGEST)
    assert kind.few is few
    assert words in kind_sentence(kind, 300)
    assert kind_of({}, M, M, LONGEST) is None
