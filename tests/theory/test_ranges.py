"""The certified first failures against mpmath's plain numbers of 80 digits, and against float64 where that is wrong."""

import random

import mpmath
import pytest

from theory.bounds import LONGEST, MOST, certified_failure, exponentials, extended_length, first_failure

SEEN = random.Random(6)


def reach(M: int, N: int) -> mpmath.mpf:
    """T* as theorem 3.3's closed form states it."""
    total = sum(mpmath.exp(-j) for j in range(N))
    return 2 * N + mpmath.exp(N) * (M - 2 * total)


@pytest.fixture(autouse=True)
def _digits():
    with mpmath.workdps(80):
        yield


def test_the_table_holds_the_powers_of_e():
    assert list(exponentials()) == [int(mpmath.floor(mpmath.exp(N) * 2**64)) for N in range(1, 34)]


def test_certified_failures_are_those_of_plain_arithmetic():
    told = 0
    for _ in range(400):
        N = SEEN.randint(1, 33)
        M = round(10 ** SEEN.uniform(0.5, 6))
        if N >= M or M < 3:
            continue
        expected = int(mpmath.floor(reach(M, N))) + 1
        assert certified_failure(M, N) == (expected if reach(M, N) < LONGEST else None), (M, N)
        told += reach(M, N) < LONGEST
    assert told > 200


def test_certified_failures_are_the_closed_forms_where_that_is_exact():
    for M, N in ((3, 1), (3, 2), (4, 3), (16, 3), (16, 15), (64, 8), (1000, 12)):
        assert certified_failure(M, N) == first_failure(M, N) == int(reach(M, N)) + 1


@pytest.mark.parametrize(("M", "N"), [(34, 33), (33, 32), (40, 30), (133, 29), (143, 26), (7436, 19)])
def test_float64_is_wrong_where_the_table_says_so(M, N):
    assert certified_failure(M, N) == int(reach(M, N)) + 1
    assert abs(first_failure(M, N) - int(reach(M, N)) - 1) == 1


@pytest.mark.parametrize(("M", "N"), [(45, 33), (2294, 29), (924311, 23), (MOST, 22)])
def test_the_table_ends_where_it_says(M, N):
    assert certified_failure(M, N) is not None
    assert certified_failure(M + 1, N) is None
    assert M == MOST or extended_length(M + 1, N) >= LONGEST


def test_what_the_table_does_not_tell_is_none_and_what_is_impossible_is_refused():
    assert certified_failure(4096, 512) is certified_failure(100, 34) is None
    with pytest.raises(ValueError, match="N=8 is not below M=8"):
        certified_failure(8, 8)
