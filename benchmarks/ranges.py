"""theory/ranges.csv: e^N enclosed by interval arithmetic, and where float64's closed form misses floor(T*) + 1.

`python benchmarks/ranges.py` writes it (two minutes). It also asks of all M <= 10^4, N <= M / 2, of which most T* have
tens to thousands of digits, whether the enclosures decide floor(T*), and how far float64 is from them.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from theory.bounds import BITS, LONGEST, MOST, TABLE, enclosed, extended_length, first_failure  # noqa: E402

COMPARED = 10**4
"""The largest M at which `first_failure` is asked, and the M up to which every N <= M / 2 is."""


def power(N: int) -> int:
    """floor(e^N 2^64): both ends of the interval have the same."""
    interval: Any = mpmath.iv
    interval.prec = 2 * N + BITS + 64
    value = interval.exp(N)
    with mpmath.workprec(interval.prec):  # else the ends are rounded to 53 bits
        low, high = (int(mpmath.floor(mpmath.ldexp(mpmath.mpf(end), BITS))) for end in (value.a, value.b))
    if low != high:
        raise RuntimeError(f"e^{N} is not enclosed; take more than {interval.prec} bits")
    return low


def undecided(N: int, least: int, most: int, powers: list[int]) -> tuple[int, float]:
    """At how many of the M from `least` to `most` floor(T*) is open, and how near to a whole number T* comes."""
    whole = 2**BITS
    M = np.arange(least, most + 1, dtype=np.uint64)
    shift = np.uint64((-2 * sum(powers[:N]) - 2 * N) % whole)
    part = M * np.uint64(powers[N - 1] % whole) + shift  # modulo 2^64
    room = np.minimum(part, ~part - np.minimum(~part, M + np.uint64(2 * N)))
    return int((room == 0).sum()), float(room.min()) / whole


def rows(powers: list[int]) -> Iterator[dict[str, Any]]:
    """One row for each N: the power, the largest M with T* < 2^53, and where float64 is wrong up to M = 10^4."""
    for N in range(1, len(powers) + 1):
        least = max(3, N + 1)
        last = min(MOST, ((LONGEST << BITS) - 1 - enclosed(0, N, tuple(powers))[1]) // (powers[N - 1] + 1))
        opened, _ = undecided(N, least, last, powers)
        if opened:
            raise RuntimeError(f"N={N}: {opened} entries are not decided; take more than {BITS} bits")
        off = {
            M: first_failure(M, N) - (enclosed(M, N, tuple(powers))[0] >> BITS) - 1
            for M in range(least, min(last, COMPARED) + 1)
        }
        wrong = [M for M, by in off.items() if by]
        yield {
            "N": N,
            "floor(e^N 2^64)": powers[N - 1],
            "largest M": last,
            "compared": len(off),
            "float64 wrong": len(wrong),
            "first wrong M": wrong[0] if wrong else "",
            "by at most": max(map(abs, off.values())),
        }


def beyond(powers: list[int]) -> str:
    """What became of all M <= 10^4, N <= M / 2, and of float64 on a geometric grid of M up to 10^6."""
    open_entries = [undecided(N, max(3, 2 * N), COMPARED, powers) for N in range(1, len(powers) + 1)]
    entries = sum(COMPARED + 1 - max(3, 2 * N) for N in range(1, len(powers) + 1))
    worst = 0.0
    for M in sorted({round(10 ** (step / 20)) for step in range(10, 121)}):
        for N in range(1, min(M // 2, 690) + 1):
            worst = max(worst, abs(extended_length(M, N) / (enclosed(M, N, tuple(powers))[0] / 2**BITS) - 1))
    return (
        f"{entries:,} entries (M <= {COMPARED}, N <= M / 2): floor(T*) open at "
        f"{sum(count for count, _ in open_entries)}, "
        f"nearest to a whole number by {min(room for _, room in open_entries):.1e}; "
        f"float64's T* off by {worst:.1e} at most, relative"
    )


def main() -> None:
    """Writes the table, and prints what was found beyond it."""
    powers = [power(N) for N in range(1, COMPARED // 2 + 1)]
    short = [N for N in range(1, 100) if enclosed(max(3, N + 1), N, tuple(powers))[1] >> BITS < LONGEST]
    table = list(rows(powers[: len(short)]))
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    compared, wrong = (sum(row[name] for row in table) for name in ("compared", "float64 wrong"))
    print(f"{TABLE}: {compared:,} entries compared, float64 wrong at {wrong:,}")
    print(beyond(powers))


if __name__ == "__main__":
    main()
