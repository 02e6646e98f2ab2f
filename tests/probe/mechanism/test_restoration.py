"""Gaps and shares of few items: what has no interval, what is judged by chance, and what is no share."""

import numpy as np
import pytest

from probe.mechanism.restoration import Paired


def test_one_number_has_no_interval():
    judge = Paired([[2.0]], [[1.0]])
    assert np.isnan(judge.gap.low)
    assert not judge.gap.judged
    share = judge.share([[1.5]])
    assert share.value == 0.5
    assert np.isnan(share.low)
    assert np.isnan(share.high)


@pytest.mark.parametrize("items", [2, 4])
def test_few_items_without_a_loss_are_rarely_judged(items):
    rng = np.random.default_rng(0)
    drawn = [Paired(rng.normal(0, 1, (items, 1)), np.zeros((items, 1))).gap.judged for _ in range(100)]
    assert sum(drawn) <= 6  # 2.5 of 100; by resampling alone 25 of pairs are


@pytest.mark.parametrize("items", [2, 3, 6])
def test_intervals_of_shares_of_few_items_hold_the_truth(items):
    """Items lose 1 nat give or take a third, restore 60% give or take 20, in 8 blocks of noise, most of it shared."""
    rng, held = np.random.default_rng(0), []
    while len(held) < 200:
        gap, part = rng.normal(1, 0.35, (items, 1)), rng.normal(0.6, 0.2, (items, 1))
        noise = rng.normal(0, 0.5, (items, 8))
        judge = Paired(gap + noise, 0 * noise)
        if judge.gap.judged:
            share = judge.share(gap * (1 - part) + 0.4 * noise + rng.normal(0, 0.3, (items, 8)))
            held.append(share.low <= 0.6 <= share.high)
    assert sum(held) >= 184  # 190 of 200; of resampled items alone 150, 172 and 181


def test_a_share_of_a_loss_that_may_be_none_has_no_interval():
    share = Paired([[1.0], [2.0]], [[0.0], [0.0]]).share([[0.5], [1.0]])
    assert share.value == 0.5
    assert np.isnan(share.low)


def test_a_share_of_no_loss_is_none():
    """As of the first items of a run that was cut short."""
    for broken in (0.9, 1.0, 1.005):
        assert np.isnan(Paired([[broken] * 4], [[1.0] * 4]).share([[0.5] * 4]).value)
    assert Paired([[1.5] * 4], [[1.0] * 4]).share([[1.25] * 4]).value == 0.5
