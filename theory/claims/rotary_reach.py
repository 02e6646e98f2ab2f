"""How far weaves carry the rotary constructions: ReRoPE and Stair PE, and what bounds every method."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mpmath
import numpy as np

from mesa import weave
from mesa.methods import PI, LeakyReRoPE, Method
from theory.applied import measured
from theory.claims.base import NOTHING, Claim, Reading, Settings, Verdict, deviation, grid
from theory.claims.rotary import NAMES, SIZES, Size, cases, llama, own, rerope, stair_pe
from theory.enclosed import enclosed_denominators
from theory.rotary import READS, fails_from, most, woven_reach

iv: Any = mpmath.iv
LONGEST = 760
"""Tokens that a built model is run for here."""


def first_below(o: np.ndarray, M: int, H: float) -> int | None:
    """The first t > M with o_t <= H, o from t = 1 on."""
    found = np.flatnonzero(o[M:] <= H)
    return int(found[0]) + M + 1 if len(found) else None


def read_method(
    size: Size, reads: str, method: Method, length: int, settings: Settings, **more: Any
) -> tuple[int | None, Reading]:
    """The first failure of the built model up to `length`; how clear it is, and how far all is from the closed form."""
    sizes, H = size.rotary(reads), settings.H
    p, o = measured(llama(size, reads, settings), method, length)
    told = sizes.M / sizes.denominator(np.arange(1, length + 1), **more) - 1
    fails = first_below(o, size.M, H)
    before = (o - H)[size.M : (fails or length + 1) - 1]
    margin = min(before.min() if len(before) else math.inf, H - o[fails - 1] if fails else math.inf)
    error = max(deviation(o - H, told), deviation(p, sizes.position(length, **more)))
    return fails, Reading(float(margin) if fails == first_below(told, size.M, 0.0) else -1.0, error)


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


class Way(NamedTuple):
    """A method in exact arithmetic: effective distances by r; factors on angle and scores in a text of n tokens."""

    distance: np.ndarray
    factor: Callable[[int], Any] = lambda n: iv.mpf(1)
    grown: Any = 1.0
    by_length: bool = False


def ways(size: Size, s: int, longest: int) -> dict[str, Way]:
    """The methods that are enclosed; s: Dynamic-NTK's and YaRN's factor."""
    r = np.arange(longest)
    return {
        "rerope": Way(weave.rerope(r, size.N)),
        "stair": Way(weave.stair(r, size.N, size.E)),
        "yarn": Way(r, lambda n: iv.mpf(1) / s, (iv.log(s) / 10 + 1) ** 2),
        "ntk": Way(r, lambda n: size.M / (iv.mpf(s) * n - (s - 1) * size.M), by_length=True),
    }


def read_enclosed(size: Size, reads: str, way: Way, quick: bool) -> tuple[int, Reading]:
    """The first failure by the closed form, and whether D, enclosed, is on its side of M there and before."""
    sizes, model = size.rotary(reads), own(size, reads)

    def excess(n: int) -> float:
        factor, grown = float(iv.mpf(way.factor(n)).mid), float(iv.mpf(way.grown).mid)
        D = sizes.denominator(np.array([n]), weave=lambda r: way.distance[r], factor=factor, grown=grown)
        return float(D[0]) - size.M

    lengths = range(size.M + 1, len(way.distance) + 1)
    fails = next((n for n in lengths if excess(n) >= 0), lengths[-1])
    looked = [fails - 1, fails] if quick or way.by_length else list(range(size.M + 1, fails + 1))
    calls = [[n] for n in looked] if way.by_length else [looked]
    reading = NOTHING
    for call in calls:
        found = enclosed_denominators(model, way.distance.tolist(), call, way.factor(call[0]), way.grown)
        for n, D in zip(call, found, strict=True):
            clear = D - size.M if n == fails else size.M - D
            reading &= Reading(float(clear.a), abs(float(D.mid) - size.M - excess(n)))
    return fails, reading


def enclosed_failures(settings: Settings) -> Claim:
    """First failures by intervals on built matrices."""
    size, s, reading, told = SIZES[0], 2, NOTHING, []
    iv.dps = 20
    for reads in READS:
        for name, way in ways(size, s, 120).items():
            fails, found = read_enclosed(size, reads, way, settings.quick)
            reading &= found
            told.append(f"{name} {reads} {fails}")
    return Claim(
        name="rotary-enclosed",
        statement="First failures of the built matrices in exact arithmetic are those measured",
        citation="ours",
        parameters={NAMES: tuple(size), "s": s, "reads": grid(READS)},
        tested="intervals (mpmath) there and at every t > M before (Dynamic-NTK: at the one before): "
        + ", ".join(told),
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
        unit="D",
    )


CLAIMS = {
    "rotary-weave": weave_extends,
    "rotary-stair": stair_extends,
    "rotary-span": span_bounds,
    "rotary-bound": bounded_scores,
    "rotary-enclosed": enclosed_failures,
}
