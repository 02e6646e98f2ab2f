"""The repair of Mesa's corollary: woven middle chunks, which see the same pairs and reach about as far as Stair PE."""

from __future__ import annotations

import numpy as np

from mesa.methods.chunked import MIDDLES
from mesa.plan import distances
from theory.bounds import extended_length, first_failure
from theory.chunked import fails_from, mesa_denominator, mesa_exponents, mesa_method, woven_bound
from theory.claims.base import NOTHING, Claim, Reading, Verdict, grid
from theory.claims.mesa import NAMES, PAPER, SIZES, Size, enclosed, excess
from theory.claims.settings import Settings


def woven_first_failure(size: Size) -> int:
    """The first T > M at which woven middle chunks fail, by the closed form."""
    method, T = mesa_method(*size, "woven"), size[0] + 1
    while mesa_denominator(method, T) < size[0]:
        T += 1
    return T


def woven_chunks(settings: Settings) -> Claim:
    """Built at lengths where the paper's chunks fail: above H, for no pair more; where Stair PE ends, they end."""
    reading, sizes = NOTHING, SIZES[: 4 if settings.quick else None]
    for size in sizes:
        M = size[0]
        local, woven = (mesa_method(*size, middle) for middle in MIDDLES)
        for T in (fails_from(local), 2 * M + 1, 4 * M):
            reading &= Reading(o := excess(size, "woven", T, settings), max(0, M / (o + 1) / woven_bound(woven, T) - 1))
        pairs = [int((distances(method.plan(3 * M)) >= 0).sum()) for method in (local, woven)]
        reading &= Reading(1.0 - abs(pairs[0] - pairs[1]))
    ends = []
    for size in (SIZES[1], SIZES[3]):
        end = woven_first_failure(size)
        reading &= Reading(min(excess(size, "woven", end - 1, settings), -excess(size, "woven", end, settings)))
        ends.append(f"{end} ({first_failure(*size[:3])})")
    return Claim(
        name="mesa-woven",
        statement="With woven middle chunks, which see the same pairs, Mesa holds about as far as Stair PE does",
        citation="ours (corollary; mesa.MesaExtrapolation, middle='woven')",
        parameters={NAMES: grid(sizes)},
        tested=f"T where local chunks fail, 2 M + 1, 4 M; first failures (Stair PE's) where near: {', '.join(ends)}",
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
        correction="D <= D of Stair PE + 0.43 times its terms at the chunks' first tokens",
    )


def woven_papers_constants(settings: Settings) -> Claim:
    """The sum in interval arithmetic, with positions rounded down."""
    lengths, M = [8804, 12804, 16384, *([100000] if settings.full else [])], PAPER[0]
    method = mesa_method(*PAPER, "woven")
    most = [enclosed(np.ceil(mesa_exponents(method, T)).astype(int)) for T in lengths]
    reach = extended_length(*PAPER[:3])
    return Claim(
        name="mesa-woven-paper",
        statement="With the paper's constants and woven middle chunks Mesa holds where the paper's chunks fail",
        citation="ours (corollary; the appendix's constants)",
        parameters={NAMES: PAPER, "T": grid(lengths)},
        tested=f"D <= {max(float(each.b) for each in most):.4g}, interval arithmetic (mpmath), positions rounded down; "
        f"Stair PE's T* is {reach:.2g}",
        expected=Verdict.HOLDS,
        margin=min(float((M / each - 1).a) for each in most),
    )


CLAIMS = {
    "mesa-woven": woven_chunks,
    "mesa-woven-paper": woven_papers_constants,
}
