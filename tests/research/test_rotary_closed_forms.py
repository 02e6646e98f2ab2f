"""The rotary constructions' closed forms: numbers by hand, and sizes without a theorem."""

from functools import partial

import numpy as np
import pytest
import torch

from mesa.plan import distances
from research.rotary_theory import chunks
from research.rotary_theory.rotary import READS, Rotary, fails_from, leaky_rerope, most, ntk_factor, woven_reach
from research.rotary_theory.rotary_model import rotary_model
from theory import weave
from theory.chunked import mesa_method


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


def test_leaky_rerope_grows_k_times_slower_beyond_the_window():
    assert leaky_rerope(np.arange(11), 4, 2).tolist() == [0, 1, 2, 3, 4, 4.5, 5, 5.5, 6, 6.5, 7]


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
    assert rotary_model(M=128, dtype=torch.float32).recovered_position(128)[-1] == pytest.approx(128, abs=0.01)
    with pytest.raises(ValueError, match=r"slope=1.0 over recovers=155 positions leaves them .* off in float32; take"):
        rotary_model(M=155, dtype=torch.float32)


CASES = {
    "16": ({"M": 16, "slope": 0.5}, (16, 4, 2, 2, 4, 1)),
    "24": ({"M": 24, "recovers": 30, "quarter": 40, "slope": 0.3}, (24, 6, 3, 9, 6, 2)),
}


def case(name, reads, middle="local"):
    sizes, method = CASES[name]
    return Rotary(reads=reads, **sizes), mesa_method(*method, middle)


def by_pairs(sizes, method, prompt):
    """Positions, and D at the end, from the plan's distances alone."""
    away = distances(method.plan(prompt))
    bias = np.where(away >= 0, -sizes.amplitude * np.sin(sizes.theta * away) if sizes.reads == "rotation" else 0, -99)
    p, w = sizes.written(np.log(np.exp(bias - bias[:, :1]).sum(1)))
    score = -sizes.amplitude * (w * w[-1].conj() * np.exp(1j * sizes.theta * away[-1])).imag
    return p, np.exp(score - score[0]).sum()


@pytest.mark.parametrize("middle", ["local", "woven"])
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("name", list(CASES))
def test_closed_forms_are_what_all_pairs_of_the_plan_say(name, reads, middle):
    sizes, method = case(name, reads, middle)
    for prompt in (sizes.M + 1, 2 * sizes.M + 3, 4 * sizes.M):
        p, D = by_pairs(sizes, method, prompt)
        np.testing.assert_allclose(chunks.chunk_position(sizes, method, prompt), p, atol=1e-9)
        np.testing.assert_allclose(chunks.chunk_denominator(sizes, method, prompt), D, rtol=1e-10)


@pytest.mark.parametrize(("name", "reads", "bounds"), [
    ("16", "rotation", (24, 45)), ("16", "count", (24, 59)), ("24", "rotation", None), ("24", "count", None),
])  # fmt: skip
def test_what_must_fail_fails(name, reads, bounds):
    sizes, method = case(name, reads)
    start, end = chunks.chunks_fail_from(sizes, method, 400)
    assert bounds in (None, (start, end))
    D = [chunks.chunk_denominator(sizes, method, T) for T in range(sizes.M + 1, end + 1)]
    phases = chunks.chunk_phases(sizes, method, end)
    share = [chunks.chunk_share(sizes, method, T, phases[T - 1]) for T in range(sizes.M + 1, end + 1)]
    assert min(D[start - sizes.M - 1 :]) >= sizes.M > min(D)
    assert all(part < whole for part, whole in zip(share, D, strict=True))
    assert share[start - sizes.M - 2] < sizes.M  # the last length that need not fail
    assert chunks.chunks_fail_from(sizes, method, start + 3) == (start, start + 3)
