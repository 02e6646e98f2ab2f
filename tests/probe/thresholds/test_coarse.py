"""The first answer to a changed rule: what the search finds, from the means of blocks."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic import DRIFTING, hidden_states

from probe.thresholds import coarse
from probe.thresholds.coarse import STEP, first_answer
from probe.thresholds.search import CrossingRule, search

M = 1024
RULE = CrossingRule.scaled(M)


@pytest.fixture(scope="module")
def hidden():
    return hidden_states(M, windows=3, layers=2, dims=32, prompts=("repeated",)).sel(prompt="repeated")


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(coarse, "_LARGE", 0)


@pytest.mark.parametrize(
    ("change", "trained", "step"),
    [({}, M, 8), ({"smoothing": 128}, M, 16), ({"smoothing": 3}, M, 8), ({"burn_in": 100}, M, 8), ({}, M + 13, 8)],
)
def test_it_finds_the_dims_that_the_search_finds(hidden, change, trained, step):
    rule = replace(RULE, **change)
    first, whole = first_answer(hidden, trained, rule), search(hidden, trained, rule)
    planted = np.zeros((2, 32), bool)
    planted[1, :DRIFTING] = True
    both = (first["observable"] & whole["observable"]).values
    assert not (first["observable"].values & ~planted).any()
    assert both.sum() >= whole["observable"].sum() - 1 >= 5
    crossing = [found["crossing"].sel({"method": "origin"}).values[both] for found in (first, whole)]
    np.testing.assert_allclose(*crossing, rtol=0, atol=2 * step)
    if trained == M and rule.smoothing % step == 0:
        np.testing.assert_allclose(first["threshold"], whole["threshold"], rtol=1e-5)
    assert {**first.attrs, STEP: 0} == {**whole.attrs, STEP: 0}
    assert first.attrs[STEP] == step
    assert {*first.coords} == {*whole.coords}
    assert first["crossing"].sel({"method": "mesa"}).isnull().all()


def test_where_nothing_happens_nothing_is_found(hidden):
    still = hidden.sel({"method": ["mesa", "rerope"]})
    assert not first_answer(still, M, RULE, "mesa")["observable"].any()


def test_states_with_gaps_or_few_blocks_are_searched_as_they_are(hidden):
    assert first_answer(hidden.isel(position=np.r_[0:2000, 2100:3000]), M, RULE) is None
    assert first_answer(hidden, M, replace(RULE, smoothing=3, burn_in=M - 16)) is None


def test_few_states_are_searched_as_they_are(hidden, monkeypatch):
    monkeypatch.setattr(coarse, "_LARGE", hidden[0].size + 1)
    assert first_answer(hidden, M, RULE) is None


def test_what_the_search_refuses_is_refused_in_its_words(hidden):
    with pytest.raises(ValueError, match=r"position 9999 .* was not captured, only 0-3071"):
        first_answer(hidden, 9999, RULE)
