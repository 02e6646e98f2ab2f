"""Loss gaps and shares: their intervals over few items, and where there is none."""

import numpy as np
import pytest

from probe.commands.locate.run import PairedLosses


def test_one_number_and_an_insignificant_gap_have_no_interval():
    assert np.isnan(PairedLosses([[2.0]], [[1.0]]).gap.low)
    for losses, patched in (
        (PairedLosses([[2.0]], [[1.0]]), [[1.5]]),
        (PairedLosses([[1.0], [2.0]], [[0.0]] * 2), [[0.5], [1.0]]),
    ):
        share = losses.share(patched)
        assert (losses.gap.significant, share.share) == (False, 0.5)
        assert np.isnan([share.low, share.high]).all()


@pytest.mark.parametrize("items", [2, 4])
def test_few_items_without_a_gap_are_rarely_evaluated(items):
    rng = np.random.default_rng(0)
    drawn = [PairedLosses(rng.normal(0, 1, (items, 1)), np.zeros((items, 1))).gap.significant for _ in range(100)]
    assert sum(drawn) <= 6  # 2.5 of 100; by resampling alone 25 of pairs are


def test_one_item_without_a_gap_is_rarely_evaluated():
    rng = np.random.default_rng(0)
    drawn = [PairedLosses(rng.normal(0, 1, (1, 8)), np.zeros((1, 8))).gap.significant for _ in range(400)]
    assert sum(drawn) <= 14  # 10 of 400; by resampling alone 18


@pytest.mark.parametrize("items", [2, 3, 6])
def test_intervals_of_shares_of_few_items_cover_the_truth(items):
    """Items lose 1 +- 0.35 nats and restore 60 +- 20%, in 8 blocks of noise, most of it shared."""
    rng, covered = np.random.default_rng(0), []
    while len(covered) < 200:
        gap, part = rng.normal(1, 0.35, (items, 1)), rng.normal(0.6, 0.2, (items, 1))
        noise = rng.normal(0, 0.5, (items, 8))
        losses = PairedLosses(gap + noise, 0 * noise)
        if losses.gap.significant:
            share = losses.share(gap * (1 - part) + 0.4 * noise + rng.normal(0, 0.3, (items, 8)))
            covered.append(share.low <= 0.6 <= share.high)
    assert sum(covered) >= 184  # 190 of 200; of resampled items alone 150, 172 and 181


def test_a_share_of_no_gap_is_undefined():
    for baseline in (0.9, 1.0, 1.005):
        assert np.isnan(PairedLosses([[baseline] * 4], [[1.0] * 4]).share([[0.5] * 4]).share)
    assert PairedLosses([[1.5] * 4], [[1.0] * 4]).share([[1.25] * 4]).share == 0.5


def test_shares_are_paired():
    rng = np.random.default_rng(0)
    level = rng.normal(3, 2, (6, 4))  # prompts differ far more than the gap
    losses = PairedLosses(level + 1, level)
    assert losses.gap.significant
    share = losses.share(level + 0.25 + rng.normal(0, 0.05, (6, 4)))
    assert share.share == pytest.approx(0.75, abs=0.05)
    assert share.high - share.low < 0.2
    assert losses.share(level + 0.25, again=True).share == pytest.approx(0.25)
    same = PairedLosses(level + rng.normal(0, 0.5, (6, 4)), level)
    assert not same.gap.significant
    assert np.isnan(same.share(level).low)
