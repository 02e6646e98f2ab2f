"""How far weaves carry the rotary constructions: ReRoPE and Stair PE, and what bounds every method."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from mesa import weave
from mesa.methods import PI, LeakyReRoPE, Method
from theory.applied import measured
from theory.claims.base import NOTHING, Claim, Reading, Verdict, grid
from theory.claims.rotary_cases import (
    LONGEST,
    NAMES,
    SIZES,
    Size,
    cases,
    first_below,
    llama,
    read_method,
    rerope,
    stair_pe,
)
from theory.claims.settings import Settings
from theory.rotary import READS
from theory.rotary_bounds import fails_from, most, woven_reach


def weave_extends(settings: Settings) -> Claim:
    """ReRoPE: at T* exactly where positions are counted, later where they are read by rotation."""
    reading, told = NOTHING, []
    for size, reads in cases(settings):
        reach = woven_reach(size.rotary(reads), size.N)
        length = LONGEST if reach < LONGEST else 3 * size.M
        window = partial(weave.rerope, window=size.N)
        fails, found = read_method(size, reads, rerope(size.M, size.N), length, settings, weave=window)
        reading &= found
        exact = reads == "count" or size.N == size.K - 1
        if exact and reach < LONGEST:
            reading &= Reading(0.5 if fails == math.floor(reach) + 1 else -1.0)
        reading &= Reading(math.inf if fails is None else fails - reach)
        told.append(f"{size[:2]} {reads}: {fails or f'none to {length}'} / {reach:.0f}")
    return Claim(
        name="rotary-weave",
        statement="The weave's T*, h(u) = a sin(theta u): at least 2N + e^h(N) (M - 2 S) by rotation, by count "
        "exactly K + N + e^(h(N) + h(K-1-N)) (M - C)",
        citation="ours (theorem 3.3)",
        parameters={NAMES: grid([tuple(size) for size in SIZES]), "reads": grid(READS)},
        tested="first failure built / T*: " + "; ".join(told),
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
    )


def stair_extends(settings: Settings) -> Claim:
    """Stair PE: not T*, but the span of positions told apart, ends it."""
    reading, told = NOTHING, []
    for size, reads in cases(settings):
        stair = partial(weave.stair, window=size.N, width=size.E)
        certain = fails_from(size.rotary(reads), stair(np.arange(LONGEST)))
        fails, found = read_method(size, reads, stair_pe(*size[:3]), certain or LONGEST, settings, weave=stair)
        reading &= found
        reading &= Reading((certain or 0) - (fails or LONGEST) + 0.5)
        told.append(f"{size[:3]} {reads}: {fails} / {certain}")
    return Claim(
        name="rotary-stair",
        statement="Stair PE fails from about N + E (K - 1 - N) tokens on, where it leaves the positions told apart",
        citation="ours (corollary)",
        parameters={NAMES: grid([tuple(size) for size in SIZES]), "reads": grid(READS)},
        tested="first failure built / from which on for certain: " + "; ".join(told),
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
    )


def span_bounds(settings: Settings) -> Claim:
    """One bound for whatever moves distances: fails where W(t-1) >= K - 1 + W(M-2)."""
    reading = NOTHING
    for size in SIZES[: 4 if settings.quick else None]:
        sizes, M = size.rotary("count"), size.M
        r = np.arange(LONGEST)
        woven: list[tuple[Method, np.ndarray]] = [
            (stair_pe(*size[:3]), weave.stair(r, size.N, size.E)),
            (LeakyReRoPE(trained_length=M, window=size.N, k=2.0, log_n=False), weave.leaky_rerope(r, size.N, 2.0)),
            (PI(trained_length=M, factor=3.0), r / 3),
        ]
        for method, distance in woven:
            start = fails_from(sizes, distance) or LONGEST
            end = int(np.flatnonzero(distance <= size.K - 1 + size.L)[-1]) + 1
            o = measured(llama(size, "count", settings), method, min(end, LONGEST))[1]
            reading &= Reading(float(settings.H - o[start - 1 :].max()))
            reading &= Reading(float((o - settings.H)[M : M + 2].min()))  # it had held before
    return Claim(
        name="rotary-span",
        statement="Any effective distances fail where W(t-1) >= K - 1 + W(M-2), up to a quarter turn more",
        citation="ours (theorem 3.3 and corollary)",
        parameters={NAMES: grid([tuple(size) for size in SIZES]), "method": "{stair, leaky-rerope, pi}"},
        tested="every t of that range up to 760, by count; and that t = M + 1, M + 2 hold",
        expected=Verdict.HOLDS,
        margin=reading.margin,
    )


def bounded_scores(settings: Settings) -> Claim:
    """D(t) >= t e^(-2a): reached, token by token, by ReRoPE with N = L and K = 2L + 1."""
    M, L, H = 16, 8, settings.H
    size = Size(M, L, 2, 2 * L + 1, L, 1.5 * math.pi / (2 * L))
    sizes, length = size.rotary("count"), 300
    o = measured(llama(size, "count", settings), rerope(M, L), length)[1]
    D = M / (o + 1 - H)
    rise, slowest = np.diff(D[size.K + L :]), math.exp(-2 * sizes.amplitude)
    fails, reach = first_below(o, M, H) or length, woven_reach(sizes, L)
    return Claim(
        name="rotary-bound",
        statement="No method carries a rotary construction of amplitude a beyond M e^(2a), since |s(t, i)| <= a",
        citation="ours (theorem 3.3)",
        parameters={NAMES: tuple(size), "a": round(sizes.amplitude, 3)},
        tested=f"t = 1 .. {length} under ReRoPE: D rises by e^(-2a) a token, fails first at {fails}; "
        f"bound {most(sizes):.0f}",
        expected=Verdict.HOLDS,
        margin=min(most(sizes) - fails, 0.5 if fails == math.floor(reach) + 1 else -1.0, slowest),
        error=float(np.abs(rise - slowest).max()),
        unit="D a token",
    )


CLAIMS = {
    "rotary-weave": weave_extends,
    "rotary-stair": stair_extends,
    "rotary-span": span_bounds,
    "rotary-bound": bounded_scores,
}
