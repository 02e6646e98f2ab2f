"""The rotary constructions' closed forms: numbers by hand, and sizes without a theorem."""

from functools import partial

import numpy as np
import pytest
import torch

import theory
from theory import weave
from theory.rotary import READS, Rotary, fails_from, most, ntk_factor, woven_reach


def test_closed_forms_by_hand():
    """(M, N, K, L) = (8, 2, 8, 8), slope 0.5: T*, where ReRoPE fails first, and what bounds every method."""
    read, counted = (Rotary(M=8, reads=reads, slope=0.5) for reads in READS)
    assert (read.recovers, read.quarter, read.pair, read.exponent) == (8, 8, 1, 1.0)
    assert read.theta == pytest.approx(np.pi / 16, rel=1e-15)
    assert woven_reach(read, 2) == pytest.approx(4 + np.exp(read.amplitude * np.sin(2 * read.theta)) * 4.7836, rel=1e-4)
    assert int(woven_reach(counted, 2)) + 1 == 117
    t = np.array([116, 117])
    below = counted.denominator(t, partial(weave.rerope, window=2)) < 8
    assert below.tolist() == [True, False]
    assert counted.position(12).tolist() == pytest.approx([*range(1, 9), 8, 8, 8, 8])
    assert fails_from(counted, np.arange(100) / 4) == 35  # (t - 1) / 4 >= 7 + 6 / 4
    assert fails_from(counted, weave.rerope(np.arange(100), 2)) is None
    assert most(counted) == pytest.approx(8 * np.exp(2 * 8 / np.pi))
    assert ntk_factor(counted, 2.0, 16) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("sizes", "window", "begins"),
    [({"M": 12, "slope": 0.1}, 11, 22), ({"M": 16, "reads": "count", "recovers": 64, "slope": 0.05}, 2, 66)],
)
def test_a_slope_too_small_for_the_reach_is_refused(sizes, window, begins):
    """The line would tell 16.03 and -89.9, D reaches M at 14 and 28."""
    rotary = Rotary(**sizes)
    D = rotary.denominator(np.arange(1, begins + 1), partial(weave.rerope, window=window))
    assert (D[rotary.M :] >= rotary.M).any()
    with pytest.raises(ValueError, match=f"D reaches M={rotary.M} before t={begins}; take a larger slope"):
        woven_reach(rotary, window)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"M": 16, "reads": "touch"}, "reads='touch' is not known; take rotation or count"),
        ({"M": 16, "recovers": 15}, "recovers=15 positions are too few for M=16; take recovers >= 16"),
        ({"M": 16, "quarter": 9}, "quarter=9 is less than the 15 distances to tell apart"),
        ({"M": 16, "pair": -2}, "pair=0 turns by 1 a token whatever the base"),
    ],
)
def test_sizes_without_a_theorem_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Rotary(**sizes)


def test_positions_that_a_dtype_does_not_tell_apart_are_refused():
    """The last third's 1 / x, up to e^99, is beyond float32: these would be read as the position where it ends."""
    assert theory.construction("rotary", M=128, dtype=torch.float32).recovered_position(128)[-1] == pytest.approx(
        128, abs=0.01
    )
    with pytest.raises(ValueError, match=r"slope=1.0 over recovers=155 positions leaves them .* off in float32; take"):
        theory.construction("rotary", M=155, dtype=torch.float32)
