"""The (N, M, E) table: how far weaving reaches by the closed forms, and how far the built transformer reaches."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from theory.bounds import extended_length, first_failure
from theory.claims.corollary import exact_stair_model
from theory.claims.settings import Settings
from theory.claims.theorem3 import ONE_HEAD
from theory.model import Construction
from theory.weave import woven_model

POSITIONS = 64
"""K of the weave's step MLP, which decides where it fails beyond T*."""


@dataclass(frozen=True)
class Row:
    """One (N, M, E); E None is the weave of theorem 3.3.

    ideal, measured: the first t > M that fails, by the closed form and of the built transformer (None: none up to
    `tried`). The stair's MLP tells W(t - 1) + 1 positions apart, the weave's 64.
    """

    N: int
    M: int
    E: int | None
    reach: float
    ideal: int
    measured: int | None
    tried: int


def rows(settings: Settings) -> list[tuple[int, int, int | None]]:
    """The (N, M, E) to try: the user's, or a grid; cases beyond the longest run by their T* are left out."""
    return [case for case in _grid(settings) if _fits(*case, settings)]


def left_out(settings: Settings) -> str:
    """How many cases are left out, and why; empty where none is."""
    grid = _grid(settings)
    count = sum(not _fits(*case, settings) for case in grid)
    if not count:
        return ""
    return f"{count} of {len(grid)} cases are left out: their T* exceeds the {settings.longest_run} tokens that are run"


def _grid(settings: Settings) -> list[tuple[int, int, int | None]]:
    widths = (None, 2, 3, 5) if settings.E is None else (None, settings.E)
    windows = (1, 2, 3, 4) if settings.N is None else (settings.N,)
    lengths = (4, 6, 8, 12, 16, 24) if settings.M is None else (settings.M,)
    return [(N, M, E) for E in widths for N in windows for M in lengths if N + (E is not None) < M]


def _fits(N: int, M: int, E: int | None, settings: Settings) -> bool:
    return extended_length(M, N, E) < settings.longest_run


def measure(settings: Settings) -> Iterator[Row]:
    """One row after the other."""
    for N, M, E in rows(settings):
        found, tried = measured_failure(M, N, E, settings)
        yield Row(N, M, E, extended_length(M, N, E), first_failure(M, N, E), found, tried)


def measured_failure(M: int, N: int, E: int | None, settings: Settings) -> tuple[int | None, int]:
    """The first t > M at which the built transformer fails, and how far was tried."""
    length = 0
    while length < settings.longest_run:
        length = min(max(4 * length, 256), settings.longest_run)
        o = _builder(M, N, E, settings)(length).head_output(length)
        failing = np.flatnonzero(o[M:] <= settings.H)
        if failing.size:
            return int(failing[0]) + M + 1, length
    return None, length


def _builder(M: int, N: int, E: int | None, settings: Settings) -> Callable[[int], Construction]:
    """What builds the transformer for an input of given length."""
    if E is not None:
        return lambda length: exact_stair_model(M, N, E, length, settings)
    options = settings.options(recovers=max(M, POSITIONS), recovery=settings.recovery, shape=ONE_HEAD)
    return lambda length: woven_model(M, N, settings.H, **options)


def write_csv(table: list[Row], path: Path) -> None:
    """Writes the table; empty cells are None."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) | {"reach": f"{row.reach:.6g}"} for row in table)
