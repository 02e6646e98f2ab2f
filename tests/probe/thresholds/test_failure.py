"""A measured failure persists, has an interval over the prompts, and is not read from a model at chance."""

import math

import numpy as np
import pytest
import xarray as xr

from probe.thresholds.failure import NLL, PASSKEY, measured_failure

M, LENGTHS = 256, (128, 256, 384, 512, 768, 1024)


def scores(above=(), hits=None, windows=20, spread=0.0, level=2.5, vocabulary=4096):
    """Of both methods: origin's mean NLL `above` the level from 256 on, `hits` of 20 by length, and the same noise."""
    nll = np.full((2, len(LENGTHS), windows), level)
    nll[0, 1 : 1 + len(above)] += np.array(above)[:, None]
    nll += np.random.default_rng(0).normal(0, spread, windows)
    answers = np.zeros((2, len(LENGTHS), 20))
    for row, counts in enumerate(hits or ((20,) * 6, (20,) * 6)):
        for column, count in enumerate(counts):
            answers[row, column, :count] = 1
    names = {"method": ["origin", "mesa"], "length": list(LENGTHS)}
    values = {"tail_nll": ((*names, "window"), nll), "passkey": ((*names, "sample"), answers)}
    return xr.Dataset(values, names, {"vocabulary": vocabulary})


def of(evaluation, method="origin"):
    return next(one for one in measured_failure(evaluation, M).failures if one.method == method)


def test_a_coin_flip_is_recognised():
    at_512 = np.random.default_rng(1).normal(0, 0.3, 20)
    evaluation = scores(above=(0, 0, 0.51, 1.2, 1.8))
    evaluation["tail_nll"][0, 3] += at_512 - at_512.mean()
    failure = of(evaluation)
    assert (failure.length, failure.low, failure.high) == (512, 512, 768)
    assert str(failure) == "(384, 768]"


def test_differences_are_paired_text_by_text():
    failure = of(scores(above=(0, 0, 0.6, 1.2, 1.8), spread=2.0))
    assert (failure.length, failure.low, failure.high) == (512, 512, 512)


def test_windows_and_passkeys_both_count():
    failure = of(scores(above=(0, 0, 0, 0, 1), hits=((20, 20, 20, 9, 0, 0), (20,) * 6)))
    assert (failure.length, failure.by_nll, failure.by_passkey) == (512, 1024, 512)
    assert (failure.low, failure.high) == (512, 768)


def test_a_failure_that_does_not_last_is_a_dip():
    failure = of(scores(above=(0, 0.8, 0, 0.8, 0.8)))
    assert (failure.length, failure.before, failure.dips) == (768, 512, (384,))
    assert str(failure) == "(512, 768]; dips at 384"
    failure = of(scores(above=(0, 0.8, 0.8)))
    assert failure.length is None
    assert failure.holds
    assert str(failure) == "none up to 1024; dips at 384, 512"


def test_none_has_an_interval_too():
    evaluation = scores(hits=((20,) * 5 + (11,), (20,) * 6))
    failure = of(evaluation)
    assert (failure.length, failure.low, failure.high) == (None, 1024, None)
    assert str(failure) == "none up to 1024, or after 768"


def test_few_answers_rule_out_little():
    three, four = (scores(above=(0, 0, 0, 0, 2)).isel(sample=slice(count)) for count in (3, 4))
    assert str(of(three)) == "by 1024"  # 3 of 3 may be found by one half: Wilson's from 0.44
    assert of(three).begins == "by 1024 tokens"
    assert str(of(three, "mesa")) == "none up to 1024 (earlier not ruled out)"
    assert str(of(four)) == "(768, 1024]"
    assert of(four).begins == "between 768 and 1024 tokens"
    some = of(scores(hits=((20, 20, 20, 20, 20, 9), (20,) * 6)).isel(sample=slice(8, 11)))  # 3, 3, ..., 1 of 3 found
    assert str(some) == "by 1024, or none"
    assert some.begins == "by 1024 tokens, if ever"


@pytest.mark.parametrize("count", [3, 8])
def test_the_interval_holds_the_length_from_which_fewer_than_half_are_answered(count):
    """Planted: 0.6 of all up to 384, 0.4 from 512 on. Intervals of resampled prompts hold that in 78% and less."""
    rng, held, shares = np.random.default_rng(0), [], np.array([0.95, 0.95, 0.6, 0.4, 0.4, 0.4])
    for _ in range(24):
        evaluation = scores().isel(sample=slice(count))
        evaluation["passkey"][:] = rng.random((1, len(LENGTHS), count)) < shares[:, None]
        measured = measured_failure(evaluation, M)
        if PASSKEY in measured.evaluated_by:
            failure = next(one for one in measured.failures if one.method == "origin")
            held.append((failure.low or np.inf) <= 512 <= (failure.high or np.inf))
    assert len(held) > 18
    assert np.mean(held) > 0.9


def test_one_prompt_has_no_interval():
    evaluation = scores(above=(0, 0, 0.8, 0.8, 0.8), windows=1)
    failure = of(evaluation)
    assert (failure.length, failure.after, failure.high, failure.sampled) == (512, 384, 512, False)
    assert str(failure) == "(384, 512] on one prompt"
    evaluation = scores(windows=1, level=math.log(4096), hits=((20, 20, 20, 3, 0, 0), (20,) * 6))
    assert str(of(evaluation)) == "(384, 512]"  # the one text says nothing, and is not count


def test_lengths_that_one_method_lacks_do_not_count_for_it():
    evaluation = scores(above=(0, 0.8, 0.8, 0.8, 0.8))
    evaluation["tail_nll"][1, [2, 5]] = evaluation["passkey"][1, [2, 5]] = np.nan
    assert of(evaluation).length == 384
    assert str(of(evaluation, "mesa")) == "none up to 768"


def test_what_some_prompts_lack_is_left_out_of_the_intervals():
    evaluation = scores(above=(0, 0, 0, 0, 0.8), spread=0.1, hits=((20, 20, 20, 9, 9, 9), (20,) * 6))
    full = of(evaluation)
    evaluation["tail_nll"][0, 3:, 0] = evaluation["passkey"][0, 3:, 0] = np.nan
    failure = of(evaluation)
    assert (full.low, full.high) == (failure.low, failure.high) == (512, 1024)


def test_passkeys_that_the_reference_lacks_are_not_evaluated():
    evaluation = scores(above=(0, 0, 0.8, 0.8, 0.8))
    evaluation["passkey"][0] = np.nan
    measured = measured_failure(evaluation, M)
    assert (measured.evaluated_by, measured.chance, measured.failures[0].length) == ((NLL,), (), 512)


def test_a_model_at_chance_never_holds():
    measured = measured_failure(scores(level=math.log(4096) - 0.05, hits=((0,) * 6,) * 2), M)
    assert (measured.evaluated_by, measured.chance) == ((), (NLL, PASSKEY))
    assert [str(one) for one in measured.failures] == ["not evaluated: at chance inside M"] * 2
    assert not any(one.holds for one in measured.failures)
    assert "not evaluated: that is chance" in measured.rule


def test_what_is_not_at_chance_still_judges():
    hits = ((0,) * 6,) * 2
    assert str(of(scores(hits=hits))) == "not evaluated by passkey; none up to 1024 by tail NLL"
    assert not of(scores(hits=hits)).holds
    assert str(of(scores(above=(0, 0, 0.8, 0.8, 0.8), hits=hits))) == "(384, 512]"
    assert str(of(scores(level=8.3))) == "not evaluated by tail NLL; none up to 1024 by passkey"
    assert of(scores(level=8.3, vocabulary=10**5)).holds


@pytest.mark.parametrize(("answers", "chance"), [(0, (PASSKEY,)), (5, (PASSKEY,)), (6, ()), (9, ())])
def test_few_passkeys_are_chance_where_wilsons_interval_ends_below_one_half(answers, chance):
    measured = measured_failure(scores(hits=((answers, answers, 0, 0, 0, 0), (20,) * 6)), M)
    assert measured.chance == chance  # 5 of 20: up to 0.469; 6: 0.519
    assert measured.evaluated_by == (NLL,)


@pytest.mark.parametrize(("count", "chance"), [(1, ()), (2, ()), (3, ()), (4, (PASSKEY,))])
def test_no_passkey_of_a_few_is_no_chance(count, chance):
    few = scores(hits=((0,) * 6,) * 2).isel(sample=slice(0, count))
    measured = measured_failure(few, M)
    assert measured.chance == chance  # 0 of 3: up to 0.56; of 4: 0.49
    assert measured.evaluated_by == (NLL,)
    one = measured.failures[0]
    assert str(one) == "not evaluated by passkey; none up to 1024 by tail NLL"
    assert not one.holds


def test_half_of_the_passkeys_inside_judge():
    half = scores(hits=((20, 10, 10, 9, 9, 9), (20,) * 6))
    assert measured_failure(half, M).evaluated_by == (NLL, PASSKEY)
    assert of(half).by_passkey == 512


def test_the_level_is_that_of_the_longest_length_within_the_window():
    evaluation = scores()
    evaluation["tail_nll"][:, 0] += 0.3  # at M/2
    measured = measured_failure(evaluation, M)
    assert (measured.level_length, measured.level) == (M, 2.5)
