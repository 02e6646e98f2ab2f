"""Mesa-Extrapolation's chunks in the construction: closed forms, built models, loops over pairs, shipped executors."""

import math

import numpy as np
import oracle
import pytest
from hypothesis import given, settings, strategies as st

from mesa.methods.chunked import MIDDLES
from theory import chunked
from theory.bounds import denominator, stair_is_recovered
from theory.claims.corollary import SIZES, woven_first_failure


def distance(size, middle, prompt, t, i):
    """R of a pair by its formula, None where it is masked; t and i count from 1."""
    M, N, E, first, last, split = size
    sizes = {"window": N, "width": E, "first": first, "last": last, "split_threshold": split}
    return oracle.relative("mesa", t - 1, i - 1, trained=M, prompt=prompt, middle=middle, **sizes)


def stepped(log_a):
    """The position that the step MLP writes, a step at a time."""
    log_A = [math.log((math.exp(k) - 1) / (math.e - 1)) for k in range(1, 60)]
    steps = [16 * (1 - math.exp((log_A[k] + log_A[k + 1]) / 2 - log_a)) for k in range(58)]
    return 1 + sum(min(max(step, 0), 1) for step in steps)


def pairs_denominator(size, middle, prompt):
    """D at the prompt's end: both layers, pair by pair."""

    def seen(query):
        R = {i: distance(size, middle, prompt, query, i) for i in range(1, query + 1)}
        return {i: r for i, r in R.items() if r is not None}

    def position(query):
        R = seen(query)
        return stepped(math.log(sum(math.exp(R[1] - r) for r in R.values())))

    R = seen(prompt)
    return sum(math.exp(position(1) - position(i) + R[1] - r) for i, r in R.items())


@pytest.mark.parametrize("middle", MIDDLES)
@pytest.mark.parametrize(("size", "prompt"), [(SIZES[1], 47), (SIZES[3], 41), (SIZES[5], 70)])
def test_closed_form_is_the_sum_over_pairs(size, prompt, middle):
    value = chunked.mesa_denominator(chunked.mesa_method(*size, middle), prompt)
    assert value == pytest.approx(pairs_denominator(size, middle, prompt), rel=1e-10)
    other = MIDDLES[MIDDLES[0] == middle]
    assert abs(value / chunked.mesa_denominator(chunked.mesa_method(*size, other), prompt) - 1) > 0.1


@pytest.mark.parametrize(
    ("size", "start", "woven"), [(SIZES[1], 22, 92), (SIZES[3], 27, 102), ((12, 5, 2, 6, 4, 1), 28, 77)]
)
def test_where_chunks_fail(size, start, woven):
    method = chunked.mesa_method(*size)
    assert chunked.fails_from(method) == start
    assert all(chunked.mesa_denominator(method, T) >= size[0] for T in range(start, 6 * size[0]))
    assert woven_first_failure(size) == woven


@given(st.data())
@settings(max_examples=60)
def test_bounds_anywhere(data):
    M = data.draw(st.integers(6, 40))
    N, E = data.draw(st.integers(1, M - 4)), data.draw(st.integers(2, 6))
    first = data.draw(st.integers(1, M - 4))
    last, split = data.draw(st.integers(1, M - 1 - first)), data.draw(st.integers(1, 6))
    T = data.draw(st.integers(M + 1, 8 * M))
    local, woven = (chunked.mesa_method(M, N, E, first, last, split, middle) for middle in MIDDLES)
    if chunked.fails_from(local) <= T:
        assert chunked.last_middle_chunk(local, T) >= chunked.hopeless(local)
        assert chunked.mesa_denominator(local, T) >= M
    if stair_is_recovered(N, E):
        assert chunked.mesa_denominator(woven, T) <= chunked.woven_bound(woven, T) * (1 + 1e-12)
        assert chunked.woven_bound(woven, T) <= 1.43 * denominator(T, N, E)


def test_a_prompt_inside_the_window_is_refused():
    with pytest.raises(ValueError, match="prompt=16 is not cut into chunks; take more than M=16 tokens"):
        chunked.mesa_denominator(chunked.mesa_method(*SIZES[1]), 16)


def test_rounding_is_each_positions_own():
    log_a = np.log(np.cumsum(np.exp(np.arange(7.0))))  # A_1 .. A_7
    np.testing.assert_allclose(chunked.rounded(log_a), np.arange(1, 8), atol=1e-12)
    for just_begun in (0.97, 2.97, 5.97):
        alone, among = chunked.rounded(np.array([just_begun])), chunked.rounded(np.array([just_begun, 20.0]))
        assert alone[0] == among[0]
    assert 6.1 < chunked.rounded(np.array([5.97]))[0] < 6.3
