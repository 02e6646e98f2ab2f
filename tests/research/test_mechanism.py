"""The mechanism's tables: rank correlations with what interventions restore, and what is positional in the states."""

import numpy as np
import pytest

from research.correlation import rank_correlation
from research.mechanism.head_sets import pairs, sharpest
from research.mechanism.positional_vectors import Moments

HEADS = [(layer, head) for layer in range(3) for head in range(2)]


def test_the_correlation_is_of_mid_ranks():
    assert rank_correlation([1, 2, 2, 9], [0.1, 5, 5, 6])[0] == pytest.approx(1)
    value, low, high = rank_correlation(range(30), [x + (x % 3) * 4 for x in range(30)])
    assert low < value < high < 1
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == (None, None, None)


def test_a_planted_positional_share_is_recovered():
    """Variance 4^2 / 2 along one direction against 24 dims of 1; a layer of noise alone has none."""
    rng, position = np.random.default_rng(5), np.arange(384)
    axis = rng.normal(size=24)
    ramp = 4 * np.cos(2 * np.pi * position / 128)[:, None] * (axis / np.linalg.norm(axis))
    moments = Moments.of((np.stack([ramp, 0 * ramp]) + rng.normal(size=(2, 384, 24)) for _ in range(32)), 128)
    np.testing.assert_allclose(moments.shares(), [[0.25, 0.25], [0, 0]], atol=0.02)
    np.testing.assert_allclose(moments.reliabilities()[0], 32 / 35, atol=0.03)
    assert (moments.reliabilities()[1] < 0.5).all()


def test_the_sharpest_heads_are_local_and_of_least_entropy():
    table = [(0, 0, 0.79, 0.1), (0, 1, 0.8, 3.0), (1, 0, 0.9, 1.0), (1, 1, 0.9, 2.0)]
    names = ("layer", "head", "mass_near", "entropy")
    rows = [
        {"method": "origin", "span": "inside M", "length": "96"} | dict(zip(names, row, strict=True)) for row in table
    ]
    assert sharpest(rows, 96) == [(1, 0), (1, 1)]
    assert sharpest(rows, 97) == []
    drawn = pairs(HEADS, 4)
    assert drawn == pairs(HEADS, 4)
    assert [sum(map(len, heads.values())) for heads in drawn] == [2] * 4
    assert len(pairs(HEADS[:3], 99)) == 3
