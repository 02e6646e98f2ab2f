"""The rotary constructions in exact arithmetic: intervals (mpmath) on their built matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np

from mesa import weave
from theory.claims.base import NOTHING, Claim, Reading, Verdict, deviation, grid
from theory.claims.rotary_cases import NAMES, SIZES, Size, own
from theory.claims.settings import Settings
from theory.enclosed import enclosed_denominators
from theory.rotary import READS

iv: Any = mpmath.iv


def enclosed_crossing(settings: Settings) -> Claim:
    """Interval arithmetic on the built matrices: D(t) on its side of M at every t, from a turn and a half."""
    size, reading = SIZES[0], NOTHING
    iv.dps = 20
    length = (3 if settings.quick else 6) * size.L + 1
    t = np.arange(1, length + 1)
    for reads in READS:
        found = enclosed_denominators(own(size, reads), range(length), t.tolist())
        low, high = (np.array([float(getattr(D, end)) for D in found]) for end in "ab")
        margin = min((size.M - high)[t < size.M].min(), (low - size.M)[t > size.M].min())
        told = size.rotary(reads).denominator(t)
        inside = max(np.abs(low - t)[: size.K].max(), np.abs(high - t)[: size.K].max())
        reading &= Reading(float(margin), max(deviation(low, told), deviation(high, told), float(inside)))
    return Claim(
        name="rotary-exact",
        statement="In exact arithmetic D(t) = t up to K but for what rounds in the weights, and D(t) > M for t > M",
        citation="ours (theorem 3.2)",
        parameters={NAMES: tuple(size), "reads": grid(READS)},
        tested=f"t = 1 .. {length}, interval arithmetic on the built matrices (mpmath)",
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
        unit="D",
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


def read_enclosed(size: Size, reads: str, way: Way, full: bool) -> tuple[int, Reading]:
    """The first failure by the closed form, and whether D, enclosed, is on its side of M there and before."""
    sizes, model = size.rotary(reads), own(size, reads)

    def excess(n: int) -> float:
        factor, grown = float(iv.mpf(way.factor(n)).mid), float(iv.mpf(way.grown).mid)
        D = sizes.denominator(np.array([n]), weave=lambda r: way.distance[r], factor=factor, grown=grown)
        return float(D[0]) - size.M

    lengths = range(size.M + 1, len(way.distance) + 1)
    fails = next((n for n in lengths if excess(n) >= 0), lengths[-1])
    looked = list(range(size.M + 1, fails + 1)) if full and not way.by_length else [fails - 1, fails]
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
            fails, found = read_enclosed(size, reads, way, settings.full)
            reading &= found
            told.append(f"{name} {reads} {fails}")
    return Claim(
        name="rotary-enclosed",
        statement="First failures of the built matrices in exact arithmetic are those measured",
        citation="ours",
        parameters={NAMES: tuple(size), "s": s, "reads": grid(READS)},
        tested="intervals (mpmath) there and at the t before (in full at every one, but for Dynamic-NTK): "
        + ", ".join(told),
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
        unit="D",
    )


CLAIMS = {
    "rotary-exact": enclosed_crossing,
    "rotary-enclosed": enclosed_failures,
}
