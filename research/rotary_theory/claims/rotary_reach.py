"""How far weaves carry the rotary constructions: ReRoPE and Stair PE, and what bounds every method."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from mesa.methods import PI, DynamicNTK, LeakyReRoPE, Method, YaRN
from research.rotary_theory.claims.rotary import (
    LONGEST,
    NAMES,
    SIZES,
    TRIED,
    Size,
    cases,
    llama,
    measured,
    read_method,
    woven,
)
from research.rotary_theory.rotary import READS, fails_from, leaky_rerope, most, ntk_factor, woven_reach, yarn_scale
from theory import weave
from theory.claim import IDENTITY, ClaimVerdict, Measurement, Outcome, claim, first_below, grid
from theory.claims.settings import VerifyOptions


@claim("rotary-weave", ClaimVerdict.HOLDS, "ours (theorem 3.3)")
def weave_extends(settings: VerifyOptions) -> Outcome:
    """The weave's T*, h(u) = a sin(theta u): at least 2N + e^h(N) (M - 2 S) by rotation, by count exactly K + N +
    e^(h(N) + h(K-1-N)) (M - C)."""
    reading, failures = IDENTITY, []
    for size, reads in cases(settings):
        reach = woven_reach(size.rotary(reads), size.N)
        length = LONGEST if reach < LONGEST else 3 * size.M
        window = partial(weave.rerope, window=size.N)
        fails, method_reading = read_method(size, reads, woven(size.M, size.N), length, settings, weave=window)
        reading &= method_reading
        exact = reads == "count" or size.N == size.K - 1
        if exact and reach < LONGEST:
            reading &= Measurement(0.5 if fails == math.floor(reach) + 1 else -1.0)
        reading &= Measurement(math.inf if fails is None else fails - reach)
        failures.append(f"{size[:2]} {reads}: {fails or f'none to {length}'} / {reach:.0f}")
    return Outcome({**TRIED, "reads": grid(READS)}, f"first failure built / T*: {'; '.join(failures)}", reading)


@claim("rotary-stair", ClaimVerdict.HOLDS, "ours (corollary)")
def stair_extends(settings: VerifyOptions) -> Outcome:
    """Stair PE fails from about N + E (K - 1 - N) tokens on, where it leaves the positions told apart."""
    reading, failures = IDENTITY, []
    for size, reads in cases(settings):
        stair = partial(weave.stair, window=size.N, width=size.E)
        certain = fails_from(size.rotary(reads), stair(np.arange(LONGEST)))
        fails, method_reading = read_method(size, reads, woven(*size[:3]), certain or LONGEST, settings, weave=stair)
        reading &= method_reading
        reading &= Measurement((certain or 0) - (fails or LONGEST) + 0.5)
        failures.append(f"{size[:3]} {reads}: {fails} / {certain}")
    tested = f"first failure built / from which on for certain: {'; '.join(failures)}"
    return Outcome({**TRIED, "reads": grid(READS)}, tested, reading)


@claim("rotary-span", ClaimVerdict.HOLDS, "ours (theorem 3.3 and corollary)")
def span_bounds(settings: VerifyOptions) -> Outcome:
    """Any effective distances fail where W(t-1) >= K - 1 + W(M-2), up to a quarter turn more."""
    reading = IDENTITY
    for size in SIZES[: 4 if settings.quick else None]:
        sizes, M, r = size.rotary("count"), size.M, np.arange(LONGEST)
        methods: list[tuple[Method, np.ndarray]] = [
            (woven(*size[:3]), weave.stair(r, size.N, size.E)),
            (LeakyReRoPE(trained_length=M, window=size.N, k=2.0, log_n=False), leaky_rerope(r, size.N, 2.0)),
            (PI(trained_length=M, factor=3.0), r / 3),
        ]
        for method, distance in methods:
            start = fails_from(sizes, distance) or LONGEST
            end = int(np.flatnonzero(distance <= size.K - 1 + size.L)[-1]) + 1
            o = measured(llama(size, "count", settings), method, min(end, LONGEST))[1]
            reading &= Measurement(float(settings.H - o[start - 1 :].max()))
            reading &= Measurement(float((o - settings.H)[M : M + 2].min()))  # it had held before
    tested = "every t of that range up to 760, by count; and that t = M + 1, M + 2 hold"
    return Outcome({**TRIED, "method": "{stair, leaky-rerope, pi}"}, tested, reading)


@claim("rotary-bound", ClaimVerdict.HOLDS, "ours (theorem 3.3)")
def bounded_scores(settings: VerifyOptions) -> Outcome:
    """No method carries a rotary construction of amplitude a beyond M e^(2a), since |s(t, i)| <= a."""
    M, L, H = 16, 8, settings.H
    size = Size(M, L, 2, 2 * L + 1, L, 1.5 * math.pi / (2 * L))
    sizes, length = size.rotary("count"), 300
    o = measured(llama(size, "count", settings), woven(M, L), length)[1]
    D = M / (o + 1 - H)
    rise, slowest = np.diff(D[size.K + L :]), math.exp(-2 * sizes.amplitude)
    fails, reach = first_below(o, M, H) or length, woven_reach(sizes, L)
    margin = min(most(sizes) - fails, 0.5 if fails == math.floor(reach) + 1 else -1.0, slowest)
    return Outcome(
        {NAMES: tuple(size), "a": round(sizes.amplitude, 3)},
        f"t = 1 .. {length} under ReRoPE: D rises by e^(-2a) a token, fails first at {fails}; bound {most(sizes):.0f}",
        Measurement(margin, float(np.abs(rise - slowest).max())),
        unit="D a token",
    )


FURTHEST = 250
"""Tokens up to which Dynamic-NTK is followed, length by length, in full; half of them otherwise."""

NTK_FACTORS, YARN_FACTORS = (1.0, 2.0, 4.0), (2.0, 4.0, 8.0)


@claim("rotary-yarn", ClaimVerdict.HOLDS, "ours (theorem 3.2 under a changed base)")
def yarn_carries(settings: VerifyOptions) -> Outcome:
    """YaRN with factor s carries to about s K tokens, never beyond M - 1 + s (K - 1)."""
    reading, failures, factors = IDENTITY, [], YARN_FACTORS[: None if settings.full else 2]
    for size, reads in cases(settings):
        row = []
        for s in factors:
            certain = fails_from(size.rotary(reads), np.arange(LONGEST) / s)
            method = YaRN(trained_length=size.M, factor=s)
            more = {"factor": 1 / s, "grown": yarn_scale(s)}
            fails, method_reading = read_method(size, reads, method, certain or LONGEST, settings, **more)
            reading &= method_reading
            reading &= Measurement((certain or 0) - (fails or LONGEST) + 0.5)
            row.append(f"{fails} / {certain}")
        failures.append(f"{size[:1] + size[3:5]} {reads}: {', '.join(row)}")
    tested = f"(M, K, L), first failure built / bound: {'; '.join(failures)}"
    return Outcome({**TRIED, "reads": grid(READS), "s": grid(factors)}, tested, reading)


@claim("rotary-ntk", ClaimVerdict.HOLDS, "ours (theorem 3.2 under a changed base)")
def ntk_carries(settings: VerifyOptions) -> Outcome:
    """Dynamic-NTK with factor s divides a pair's angle by growth^c and carries it never beyond n = M - 1 + (K - 1)
    growth^c: for c < 1 about K (s K / M)^(c / (1 - c)) tokens."""
    reading, failures = IDENTITY, []
    furthest = FURTHEST if settings.full else FURTHEST // 2
    wider = [(size._replace(head=6), reads) for size, reads in cases(settings) if reads == "count"]
    for size, reads in [*wider, *cases(settings)]:
        row = []
        for s in NTK_FACTORS:
            fails, method_reading = _ntk_failure(size, reads, s, furthest, settings)
            n = np.arange(size.M + 1, furthest + 1)
            bound = n[n >= size.M - 1 + (size.K - 1) / ntk_factor(size.rotary(reads), s, n)]
            reading &= method_reading
            if len(bound):
                reading &= Measurement(float(bound[0]) - (fails or furthest + 1) + 0.5)
            row.append(f"{fails or 'none'} / {bound[0] if len(bound) else 'none'}")
        failures.append(f"{size[:1] + size[3:5]} {reads}, c={size.rotary(reads).exponent}: {', '.join(row)}")
    tested = f"(M, K, L), first failure / bound up to {furthest}, that length and the one before built: "
    return Outcome({**TRIED, "c": "{0.5, 1}", "s": grid(NTK_FACTORS)}, tested + "; ".join(failures), reading)


def _ntk_failure(
    size: Size, reads: str, s: float, furthest: int, settings: VerifyOptions
) -> tuple[int | None, Measurement]:
    """The first n whose last token is below H, by the closed form; built at it and the length before."""
    sizes, method = size.rotary(reads), DynamicNTK(trained_length=size.M, factor=s)

    def excess(n: int) -> float:
        return size.M / float(sizes.denominator(np.array([n]), factor=ntk_factor(sizes, s, n))[0]) - 1

    fails = next((n for n in range(size.M + 1, furthest + 1) if excess(n) <= 0), None)
    model, reading = llama(size, reads, settings), IDENTITY
    for n in {max(size.M + 1, (fails or furthest) - back) for back in range(2)}:
        o = float(measured(model, method, n)[1][-1]) - settings.H
        reading &= Measurement(-o if n == fails else o, abs(o - excess(n)))
    return fails, reading


@claim("rotary-squeezed", ClaimVerdict.HOLDS, "ours (theorem 3.2 under a changed base)")
def squeezed_positions(settings: VerifyOptions) -> Outcome:
    """Where layer 1 reads positions by the slowed pair itself, Dynamic-NTK can fail at once: it reads squeezed
    positions, and the slower turn of layer 2 cancels them again."""
    size, s = Size(16, 4, 2, 64, 64, 1.0), 1.0
    by = {reads: _ntk_failure(size, reads, s, FURTHEST // 2, settings) for reads in READS}
    reading = by["rotation"][1] & by["count"][1]
    later = (by["count"][0] or FURTHEST // 2) - (by["rotation"][0] or FURTHEST)
    tested = f"first failures up to {FURTHEST // 2}, built: by rotation {by['rotation'][0]}, by count "
    reading &= Measurement(later)
    return Outcome({NAMES: tuple(size), "s": s}, f"{tested}{by['count'][0] or 'none'}", reading)
