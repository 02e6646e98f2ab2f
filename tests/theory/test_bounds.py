"""The closed forms against sums over pairs, written out; the nearest wrong formula is off by a factor or a token."""

import math

import numpy as np
import oracle
import pytest
from hypothesis import given, strategies as st

from mesa.errors import Refused
from theory import bounds
from theory.claim import first_below
from theory.model import stair_model
from theory.parts import Shape


def woven(distance: int, N: int, E: int | None) -> int:
    """W of theorem 3.3 (E None) or the corollary, as the paper writes them."""
    return min(distance, N) if E is None else oracle.stair(distance, N, E)


def pairs_denominator(t: int, N: int, E: int | None, slope: float = 1.0) -> float:
    """D(t): exponentials of all score differences to <bos>, with positions recovered ideally."""
    position = {i: woven(i - 1, N, E) + 1 for i in range(1, t + 1)}
    score = {i: slope * (position[t] - position[i] - woven(t - i, N, E)) for i in position}
    return sum(math.exp(score[i] - score[1]) for i in position)


def first_failure(M: int, N: int, E: int | None, slope: float = 1.0) -> int:
    t = M + 1
    while pairs_denominator(t, N, E, slope) < M:
        t += 1
    return t


@pytest.mark.parametrize("E", [None, 2, 3, 5, 8, 50])
@pytest.mark.parametrize("N", [1, 2, 3, 5, 8])
def test_denominator_on_a_grid(N, E):
    t = list(range(1, 6 * N + 20, 2))
    expected = [pairs_denominator(position, N, E) for position in t]
    np.testing.assert_allclose(bounds.denominator(t, N, E), expected, rtol=1e-12)
    assert np.abs(bounds.denominator(t, N + 1, E) / expected - 1).max() > 0.05


@given(st.integers(1, 150), st.integers(1, 14), st.sampled_from([None, 2, 3, 4, 7, 20]), st.floats(0.05, 2))
def test_denominator_anywhere(t, N, E, slope):
    assert math.isclose(bounds.denominator(t, N, E, slope), pairs_denominator(t, N, E, slope), rel_tol=1e-11)


@given(st.data())
def test_first_failure_is_the_first(data):
    M = data.draw(st.integers(3, 7))
    E = data.draw(st.sampled_from([None, 2, 3, 5]))
    N = data.draw(st.integers(1, min(3, M - 1 if E is None else M - 2)))
    expected = first_failure(M, N, E)
    assert bounds.first_failure(M, N, E) == expected
    reach = bounds.extended_length(M, N, E)
    assert reach <= expected < reach + (E or 1)
    assert all(pairs_denominator(t, N, E) < M for t in range(M + 1, math.ceil(reach)))


def test_positions_of_a_stair_may_be_far_and_are_rounded_down():
    near, far = 4.9, 1e25  # even, as 100 is, so that it lies on the line of 100 and 102
    rise = (pairs_denominator(102, 2, 2) - pairs_denominator(100, 2, 2)) / 2
    expected = [pairs_denominator(4, 2, 2), far * rise]
    np.testing.assert_allclose(bounds.denominator([near, far], 2, 2), expected)


@pytest.mark.parametrize(("M", "N", "E", "slope", "failure"), [(16, 14, None, 0.0625, 20), (8, 6, 2, 0.5, 14)])
def test_small_slopes_fail_before_or_where_the_line_begins(M, N, E, slope, failure):
    """Lines hold beyond 2N: the one that is at M from the first, in the second case, reaches it at its first t, 14."""
    assert bounds.extended_length(M, N, E, slope) == bounds.first_failure(M, N, E, slope) == failure
    assert first_failure(M, N, E, slope) == failure


@pytest.mark.parametrize("E", [None, 2])
def test_without_a_slope_the_window_is_not_extended(E):
    assert bounds.denominator([3, 7, 40], 4, E, 0.0).tolist() == [3, 7, 40]
    assert bounds.first_failure(16, 4, E, 0.0) == first_failure(16, 4, E, 0.0) == 17


def test_recovered_ranges():
    assert [bounds.last_recovered(N) for N in (2, 3, 4)] == [10, 24, 60]
    assert bounds.ideal_position([1, 2, 3, 4, 9], 2).tolist() == [1, 2, 3, 3, 3]
    assert bounds.ideal_position([1, 2, 3, 4, 5, 6, 7], 2, 2).tolist() == [1, 2, 3, 4, 4, 5, 5]
    assert [bounds.stair_is_recovered(1, E) for E in (5, 6)] == [True, False]
    assert [bounds.stair_is_recovered(3, E) for E in (36, 37)] == [True, False]


def test_reach_beyond_float64_is_infinite():
    assert bounds.extended_length(4096, 2000) == math.inf
    assert bounds.extended_length(4096, 2000, 50) == math.inf
    for M, N in ((4096, 512), (64, 34)):  # the second is 3.6e16, of which float64 has every fourth number
        with pytest.raises(ValueError, match=f"beyond exact integers; take a smaller N than {N}"):
            bounds.first_failure(M, N)


@pytest.mark.parametrize(
    ("M", "N", "E", "message"),
    [
        (2, 1, None, "M=2 is below 3: the remap has nothing to extend; take M >= 3"),
        (8, 0, None, "N=0 is below 1; take 1 <= N <= 7"),
        (8, 8, None, "N=8 is not below M=8; take N <= 7"),
        (8, 2, 1, "E=1 is below 2: a stair of width 1 is the plain encoding; take E >= 2"),
        (8, 7, 2, "N=7 leaves Stair PE no room below M=8; take N <= 6"),
    ],
)
def test_impossible_windows_are_refused(M, N, E, message):
    with pytest.raises(ValueError, match=message):
        bounds.extended_length(M, N, E)


@pytest.mark.parametrize("position", [0, math.nan, math.inf])
@pytest.mark.parametrize("E", [None, 3])
def test_positions_count_from_one(position, E):
    with pytest.raises(ValueError, match=f"position {position}[.0]* is below 1 or not finite"):
        bounds.denominator([1, position], 2, E)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"N": -3}, "N=-3 is below 1; take N >= 1"),
        ({"N": 2.5}, "N=2.5 is not an integer; take a number of tokens"),
        ({"E": 0}, "E=0 is below 1; take E >= 1"),
        ({"E": 2.0}, "E=2.0 is not an integer; take a number of tokens"),
        ({"E": 10**9}, "E=1000000000 exceeds 100000; take E <= 100000"),
        ({"slope": -1}, "slope=-1 is not a finite number from 0 on; take 1, the paper's"),
        ({"slope": math.nan}, "slope=nan is not a finite number from 0 on"),
        ({"slope": math.inf}, "slope=inf is not a finite number from 0 on"),
    ],
)
def test_what_is_no_size_is_refused_by_every_closed_form(sizes, message):
    with pytest.raises(Refused, match=message):
        bounds.denominator(5, **{"N": 2, **sizes})
    if sizes not in ({"N": -3}, {"E": 0}):  # whose range M tells
        for form in (bounds.extended_length, bounds.first_failure):
            with pytest.raises(Refused, match=message):
                form(16, **{"N": 2, **sizes})


def test_a_window_that_is_not_an_integer_is_refused():
    for M in (16.5, math.nan):
        with pytest.raises(Refused, match=f"M={M} is not an integer"):
            bounds.extended_length(M, 2)


def test_the_early_part_of_a_wide_window_is_computed_at_once(monkeypatch):
    """69,000 positions, none of them by a sum over its keys, which took an hour; so small a slope fails among them."""
    monkeypatch.setattr(bounds, "stair", None)
    M, N, E, slope = 131072, 100000, 50, 1e-6
    assert bounds.extended_length(M, N, E) == math.inf
    fails = int(bounds.extended_length(M, N, E, slope))
    assert M < fails < 2 * N
    assert pairs_denominator(fails - 1, N, E, slope) < M <= pairs_denominator(fails, N, E, slope)


@pytest.mark.parametrize("sizes", [(64, 8, 2), (16, 4, 3), (4, 2, 50), (9, 2, 3), (30, 2, 6)])
def test_a_stair_with_theorem_32s_own_range_fails_where_the_built_model_does(sizes):
    M, N, E = sizes
    fails = bounds.stair_failure(M, N, E)
    built = stair_model(M, N, E, 0.5, recovers=M - 1, shape=Shape(heads=1)).head_output(fails)
    assert first_below(built, M, 0.5) == fails


def test_no_step_is_searched_where_ideal_recovery_holds_to_the_end(monkeypatch):
    assert bounds.step_failure(8, 7, 7, longest=2000) == 871  # positions that end at N fail before ideal recovery does
    monkeypatch.setattr(bounds, "rounded", None)
    assert bounds.step_failure(128, 80) is None


def test_the_printed_matrices_take_a_stair_to_a_few_multiples_of_the_window():
    assert bounds.stair_failure(64, 8, 2) == 124
    assert bounds.first_failure(64, 8, 2) == 3172
