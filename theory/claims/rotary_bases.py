"""How far a changed base carries the rotary constructions: Dynamic-NTK and YaRN."""

from __future__ import annotations

import numpy as np

from mesa.methods import DynamicNTK, YaRN
from theory.applied import measured
from theory.claims.base import NOTHING, Claim, Reading, Verdict, grid
from theory.claims.rotary_cases import LONGEST, NAMES, SIZES, Size, cases, llama, read_method
from theory.claims.settings import Settings
from theory.rotary import READS
from theory.rotary_bounds import fails_from, ntk_factor, yarn_scale

FURTHEST = 250
"""Tokens up to which Dynamic-NTK is followed, length by length, in full; half of them otherwise."""

NTK_FACTORS, YARN_FACTORS = (1.0, 2.0, 4.0), (2.0, 4.0, 8.0)


def yarn_carries(settings: Settings) -> Claim:
    """YaRN: from K to about s K."""
    reading, told, factors = NOTHING, [], YARN_FACTORS[: None if settings.full else 2]
    for size, reads in cases(settings):
        row = []
        for s in factors:
            certain = fails_from(size.rotary(reads), np.arange(LONGEST) / s)
            method = YaRN(trained_length=size.M, factor=s)
            more = {"factor": 1 / s, "grown": yarn_scale(s)}
            fails, found = read_method(size, reads, method, certain or LONGEST, settings, **more)
            reading &= found
            reading &= Reading((certain or 0) - (fails or LONGEST) + 0.5)
            row.append(f"{fails} / {certain}")
        told.append(f"{size[:1] + size[3:5]} {reads}: {', '.join(row)}")
    return Claim(
        name="rotary-yarn",
        statement="YaRN with factor s carries to about s K tokens, never beyond M - 1 + s (K - 1)",
        citation="ours (theorem 3.2 under a changed base)",
        parameters={NAMES: grid([tuple(size) for size in SIZES]), "reads": grid(READS), "s": grid(factors)},
        tested="(M, K, L), first failure built / bound: " + "; ".join(told),
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
    )


def ntk_carries(settings: Settings) -> Claim:
    """Dynamic-NTK: a pass for each length that is built, since frequencies follow it."""
    reading, told = NOTHING, []
    furthest = FURTHEST if settings.full else FURTHEST // 2
    slowest = cases(settings)
    for size, reads in [(size._replace(head=6), reads) for size, reads in slowest if reads == "count"] + slowest:
        row = []
        for s in NTK_FACTORS:
            fails, found = _ntk_failure(size, reads, s, furthest, settings)
            n = np.arange(size.M + 1, furthest + 1)
            bound = n[n >= size.M - 1 + (size.K - 1) / ntk_factor(size.rotary(reads), s, n)]
            reading &= found
            if len(bound):
                reading &= Reading(float(bound[0]) - (fails or furthest + 1) + 0.5)
            row.append(f"{fails or 'none'} / {bound[0] if len(bound) else 'none'}")
        told.append(f"{size[:1] + size[3:5]} {reads}, c={size.rotary(reads).exponent}: {', '.join(row)}")
    return Claim(
        name="rotary-ntk",
        statement="Dynamic-NTK with factor s divides a pair's angle by growth^c and carries it never beyond "
        "n = M - 1 + (K - 1) growth^c: for c < 1 about K (s K / M)^(c / (1 - c)) tokens",
        citation="ours (theorem 3.2 under a changed base)",
        parameters={NAMES: grid([tuple(size) for size in SIZES]), "c": "{0.5, 1}", "s": grid(NTK_FACTORS)},
        tested=f"(M, K, L), first failure / bound up to {furthest}, that length and the one before built: "
        + "; ".join(told),
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
    )


def _ntk_failure(size: Size, reads: str, s: float, furthest: int, settings: Settings) -> tuple[int | None, Reading]:
    """The first n whose last token is below H, by the closed form; built at it and the length before."""
    sizes, method = size.rotary(reads), DynamicNTK(trained_length=size.M, factor=s)

    def excess(n: int) -> float:
        return size.M / float(sizes.denominator(np.array([n]), factor=ntk_factor(sizes, s, n))[0]) - 1

    fails = next((n for n in range(size.M + 1, furthest + 1) if excess(n) <= 0), None)
    model, reading = llama(size, reads, settings), NOTHING
    for n in {max(size.M + 1, (fails or furthest) - back) for back in range(2)}:
        o = float(measured(model, method, n)[1][-1]) - settings.H
        reading &= Reading(-o if n == fails else o, abs(o - excess(n)))
    return fails, reading


def squeezed_positions(settings: Settings) -> Claim:
    """Layer 1 reads squeezed positions where it reads them by the slowed pair: Dynamic-NTK may fail right at M + 1."""
    size, s = Size(16, 4, 2, 64, 64, 1.0), 1.0
    by = {reads: _ntk_failure(size, reads, s, FURTHEST // 2, settings) for reads in READS}
    reading = by["rotation"][1] & by["count"][1]
    later = (by["count"][0] or FURTHEST // 2) - (by["rotation"][0] or FURTHEST)
    return Claim(
        name="rotary-squeezed",
        statement="Where layer 1 reads positions by the slowed pair itself, Dynamic-NTK can fail at once: it reads "
        "squeezed positions, and the slower turn of layer 2 cancels them again",
        citation="ours (theorem 3.2 under a changed base)",
        parameters={NAMES: tuple(size), "s": s},
        tested=f"first failures up to {FURTHEST // 2}, built: by rotation {by['rotation'][0]}, by count "
        f"{by['count'][0] or 'none'}",
        expected=Verdict.HOLDS,
        margin=min(reading.margin, later),
        error=reading.error,
    )


CLAIMS = {
    "rotary-yarn": yarn_carries,
    "rotary-ntk": ntk_carries,
    "rotary-squeezed": squeezed_positions,
}
