"""Where the weave of theorem 3.3 first fails, as certified whole numbers: integers alone, no rounding, no torch.

T* = 2N + M e^N - 2 (e + e^2 + ... + e^N) is linear in M, so one whole number for each N, floor(e^N 2^64), encloses it
for every M: within (M + 2N) 2^-64 tokens. ranges.csv holds them, for the N that leave some T* below 2^53, made by
interval arithmetic (`python benchmarks/ranges.py`, which also compares float64's closed form).

The first t > M that fails by ideal recovery is floor(T*) + 1. No t <= 2N fails before: there
D < 3.17 + (N - 1) / e < N + 1 <= M for N > 2, and D(4) < 2.74 for N = 2.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from theory.bounds import check_window

TABLE = Path(__file__).with_name("ranges.csv")
BITS = 64
LONGEST = 2**53
"""Lengths from here on are told by their power of ten: float64 has no whole numbers there."""
MOST = 10**6
"""The largest M that all entries of the table were checked for."""


@cache
def exponentials() -> tuple[int, ...]:
    """floor(e^N 2^64) for N = 1, 2, ..., as the table has them."""
    with TABLE.open(newline="") as file:
        return tuple(int(row["floor(e^N 2^64)"]) for row in csv.DictReader(file))


def enclosed(M: int, N: int, powers: tuple[int, ...]) -> tuple[int, int]:
    """Whole numbers below and above T* 2^64, by floor(e^n 2^64) for n = 1 .. N."""
    low = (2 * N << BITS) + M * powers[N - 1] - 2 * sum(powers[:N]) - 2 * N
    return low, low + M + 2 * N


def certified_failure(M: int, N: int) -> int | None:
    """The first t > M at which the weave fails, floor(T*) + 1; None where the table does not tell.

    It tells wherever T* < 2^53 and M <= 10^6. Raises ValueError for what `check_window` refuses.
    """
    check_window(M, N)
    powers = exponentials()
    if len(powers) < N or M > MOST:
        return None
    low, high = (bound >> BITS for bound in enclosed(M, N, powers))
    return low + 1 if low == high < LONGEST else None
