"""Theorems 3.1 and 3.2 under rotary embedding: built Llamas through the shipped executors, and what ALiBi alone has."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import mpmath
import numpy as np
from transformers import PreTrainedModel

from mesa import weave
from mesa.methods import DynamicNTK, Origin, ReRoPE, StairPE, YaRN
from mesa.methods.base import Method
from theory.applied import measured, states
from theory.bounds import last_recovered
from theory.builders import build, construction
from theory.claims.base import NOTHING, Claim, Reading, Settings, Verdict, crossing, deviation, grid
from theory.enclosed import enclosed_denominators
from theory.model import Construction
from theory.parts import POSITION, Shape
from theory.rotary import READS, Rotary, yarn_scale
from theory.rotary_model import FREE
from theory.weave import woven_model


class Size(NamedTuple):
    """M, N, E; K positions told apart, L tokens to a quarter turn, slope; the head's size, whose pair 1 is used."""

    M: int
    N: int
    E: int
    K: int
    L: int
    slope: float
    head: int = 4

    def rotary(self, reads: str) -> Rotary:
        """The closed forms' sizes."""
        return Rotary(M=self.M, pairs=self.head // 2, pair=1, **self.options(reads))

    def options(self, reads: str) -> dict[str, Any]:
        """The builder's, beside M, H, pair and shape."""
        return {"reads": reads, "recovers": self.K, "quarter": self.L, "slope": self.slope}


SIZES = [
    Size(8, 2, 2, 8, 8, 0.5),
    Size(8, 3, 3, 8, 16, 1.0),
    Size(12, 4, 2, 12, 12, 0.4),
    Size(16, 4, 2, 16, 16, 0.5),
    Size(16, 4, 4, 24, 24, 0.4),
    Size(16, 8, 2, 16, 32, 0.25),
    Size(24, 6, 3, 24, 24, 0.3),
    Size(32, 8, 4, 32, 32, 0.25),
    Size(64, 16, 4, 64, 64, 0.15),
]
"""The first is small enough to enclose at every t."""

NAMES = "(M, N, E, K, L, slope, head)"


def cases(settings: Settings) -> list[tuple[Size, str]]:
    """Every size, or the first four of a quick check, with both ways to read positions."""
    return [(size, reads) for size in SIZES[: 4 if settings.quick else None] for reads in READS]


def llama(size: Size, reads: str, settings: Settings, **more: Any) -> PreTrainedModel:
    """The built Llama, float64 unless `more` says otherwise."""
    shape = Shape(model=FREE + 1, head=size.head, heads=1)
    options = {"shape": shape, "seed": settings.seed, "pair": 1, **size.options(reads), **more}
    return build("rotary", M=size.M, H=settings.H, **options)


def own(size: Size, reads: str, **more: Any) -> Construction:
    """The same weights as theory's own model."""
    shape = Shape(model=FREE + 1, head=size.head, heads=1)
    return construction("rotary", M=size.M, shape=shape, pair=1, **size.options(reads), **more)


def origin(M: int) -> Method:
    """As trained."""
    return Origin(trained_length=M)


def rerope(M: int, N: int) -> Method:
    """The weave of theorem 3.3."""
    return ReRoPE(trained_length=M, window=N, log_n=False)


def stair_pe(M: int, N: int, E: int) -> Method:
    """The corollary's."""
    return StairPE(trained_length=M, window=N, width=E, log_n=False)


def read_rotary(model: PreTrainedModel, sizes: Rotary, H: float, length: int) -> Reading:
    """How well a Llama does what theorem 3.2 says: the crossing, o_t by the closed form, and the recovered t."""
    p, o = measured(model, origin(sizes.M), length)
    t = np.arange(1, length + 1)
    inside = t <= sizes.recovers
    error = deviation(o, sizes.M / sizes.denominator(t) - 1 + H)
    plain = deviation(o[inside], (sizes.M / t - 1 + H)[inside])
    return Reading(crossing(o, sizes.M, H), max(error, plain, float(np.abs(p - t)[inside].max()) / sizes.M))


def fails_beyond_M(settings: Settings) -> Claim:
    """Far beyond a whole turn, where layer 1 reads no position any more."""
    reading = NOTHING
    for size, reads in cases(settings):
        model = llama(size, reads, settings, dtype=settings.torch_dtype)
        reading &= read_rotary(model, size.rotary(reads), settings.H, 6 * size.L + 1)
    return Claim(
        name="rotary",
        statement="With rotary embedding alone, o_t = M/t - 1 + H up to K, and o_t < H for every t > M",
        citation="ours (theorem 3.2)",
        parameters={NAMES: grid([tuple(size) for size in SIZES]), "reads": grid(READS), "dtype": settings.dtype},
        tested="t = 1 .. 6 L + 1, one and a half turns, by the fused executor",
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
    )


def enclosed_crossing(settings: Settings) -> Claim:
    """Interval arithmetic on the built matrices: D(t) on its side of M at every t, from a turn and a half."""
    size, reading = SIZES[0], NOTHING
    mpmath.iv.dps = 20
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


def agreement(settings: Settings) -> Claim:
    """All named directions; the nearest wrong thing is another method's output."""
    reading, told = NOTHING, []
    for size, reads in [(SIZES[3], reads) for reads in READS] + [(SIZES[1]._replace(head=6), READS[0])]:
        M, N, E, length = size.M, size.N, size.E, 50
        grown = yarn_scale(4)
        factors = {"ntk": (4 * length / M - 3) ** (-np.arange(size.head // 2) / (size.head // 2 - 1))}
        factors["yarn"] = np.append(1.0, np.full(size.head // 2 - 1, 1 / 4))
        methods: dict[str, tuple[Method, dict[str, Any]]] = {
            "origin": (origin(M), {}),
            "rerope": (rerope(M, N), {"weave": partial(weave.rerope, window=N)}),
            "stair": (
                stair_pe(M, N, E),
                {"weave": partial(weave.stair, window=N, width=E)},
            ),
            "ntk": (DynamicNTK(trained_length=M, factor=4), {"factors": tuple(factors["ntk"])}),
            "yarn": (YaRN(trained_length=M, factor=4), {"factors": tuple(factors["yarn"]), "grown": grown}),
        }
        model = llama(size, reads, settings)
        slow = {
            name: own(size, reads, seed=settings.seed, H=settings.H, **more).head_output(length)
            for name, (_, more) in methods.items()
        }
        for name, (method, _) in methods.items():
            for executor in ("dense", "fused"):
                o = measured(model, method, length, executor)[1]
                others = min(deviation(o, slow[other]) for other in methods if other != name)
                reading &= Reading(others, deviation(o, slow[name]))
        told = list(methods)
    return Claim(
        name="rotary-oracle",
        statement="The shipped executors give what attention does that turns every pair by itself",
        citation="ours",
        parameters={"method": grid(told), "reads": grid(READS), "executor": "{dense, fused}"},
        tested="o_t at t = 1 .. 50; margin: the nearest other method's",
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
    )


def position_comes_back(settings: Settings) -> Claim:
    """x_t falls for a quarter turn only: from then on positions are read that were read before."""
    margin, told = math.inf, ""
    for size in SIZES:
        sizes, length = size.rotary("rotation"), 5 * size.L
        p = measured(llama(size, "rotation", settings), origin(size.M), length)[0]
        right = np.abs(p - np.arange(1, length + 1))[: size.K].max()
        lowest = int(p[size.K :].argmin()) + size.K + 1
        margin = min(margin, (size.K - float(p[lowest - 1])) - 0.5, 0.5 - float(right))
        margin = min(margin, 0.5 - float(np.abs(p - sizes.position(length)).max()))
        told = told or f"{tuple(size)}: at t = {lowest} it reads {p[lowest - 1]:.2f}"
    return Claim(
        name="rotary-position",
        statement="x_t falls in t, so the MLP can always recover t from it",
        citation="Theorem 3.2, proof, layer 1",
        parameters={NAMES: grid([tuple(size) for size in SIZES])},
        tested="t = 1 .. 5 L",
        expected=Verdict.PRINTED,
        margin=margin,
        unit="position",
        correction="up to a quarter turn of the head's pair; a head whose scores are all alike reads 1 / t for ever",
        counterexample=told,
    )


def long_window(settings: Settings) -> Claim:
    """Real matrices at LLaMA2's window: 1 / t underflows nowhere, as e^-t does."""
    M = 1024 if settings.quick else 4096
    size = Size(M, 8, 2, M, M, 0.02)
    p, o = measured(llama(size, "count", settings), origin(M), M + 64)
    t = np.arange(1, M + 65)
    inside = t <= M
    return Claim(
        name="rotary-4096",
        statement="A rotary head with keys of 0 recovers every position of a real model's window, in real matrices",
        citation="ours (theorem 3.2)",
        parameters={"M": M, "K": M},
        tested=f"t = 1 .. {M + 64}, by the fused executor",
        expected=Verdict.HOLDS,
        margin=crossing(o, M, settings.H),
        error=max(deviation(o[inside], (M / t - 1 + settings.H)[inside]), float(np.abs(p - t)[inside].max()) / M),
    )


def no_method_mends_it(settings: Settings) -> Claim:
    """Theorem 3.1's head in a Llama: what turns by no angle is mended by no angle."""
    M, length = 16, 64
    model = build("rotary_nope", M=M, H=settings.H, seed=settings.seed, shape=Shape(model=FREE + 1, heads=1))
    methods = [
        origin(M),
        rerope(M, 4),
        stair_pe(M, 4, 2),
        DynamicNTK(trained_length=M),
        YaRN(trained_length=M),
    ]
    expected = M / np.arange(1, length + 1) - 1 + settings.H
    reading = NOTHING
    for method in methods:
        o = states(model, method, length)[1][:, POSITION].numpy()
        reading &= Reading(crossing(o, M, settings.H), deviation(o, expected))
    return Claim(
        name="rotary-nope",
        statement="Keys of 0 are turned into 0: o_t = M/t - 1 + H under every method, so that no weave mends it",
        citation="ours (theorem 3.1)",
        parameters={"M": M, "method": grid([method.name for method in methods])},
        tested=f"t = 1 .. {length}",
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
    )


def alibi_is_a_limit(settings: Settings) -> Claim:
    """a sin(theta u) is slope * u but for a (theta u)^3 / 6: with a slow pair the weave's D is ALiBi's."""
    M, N, K, length = 16, 4, 64, last_recovered(4)
    alibi = woven_model(M, N, settings.H, recovers=K, shape=Shape(heads=1)).head_output(length)
    slow, fast = (Size(M, N, 2, K, L, 1.0) for L in (4096, K))
    apart = []
    for size in (slow, fast):
        o = measured(llama(size, "rotation", settings), rerope(M, N), length)[1]
        apart.append(float(np.abs(np.log((o + 1 - settings.H) / (alibi + 1 - settings.H))).max()))
    sizes = slow.rotary("rotation")
    bound = sizes.amplitude * (sizes.theta * N) ** 3 / 3
    return Claim(
        name="rotary-limit",
        statement="A slow enough pair is ALiBi with one slope: |ln D - ln D of ALiBi| <= a (theta N)^3 / 3",
        citation="ours (theorem 3.3)",
        parameters={"(M, N)": (M, N), "K": K, "L": slow.L},
        tested=f"t = 1 .. {length} under ReRoPE: {apart[0]:.1g} apart, bound {bound:.1g}; {apart[1]:.1g} for L = {K}",
        expected=Verdict.HOLDS,
        margin=min(bound - apart[0], apart[1] - bound),
        unit="ln D",
    )


CLAIMS = {
    "rotary": fails_beyond_M,
    "rotary-exact": enclosed_crossing,
    "rotary-oracle": agreement,
    "rotary-position": position_comes_back,
    "rotary-4096": long_window,
    "rotary-nope": no_method_mends_it,
    "rotary-limit": alibi_is_a_limit,
}
