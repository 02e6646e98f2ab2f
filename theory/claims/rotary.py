"""Theorems 3.1 and 3.2 under rotary embedding: built Llamas through the shipped executors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from mesa import weave
from mesa.methods import DynamicNTK, YaRN
from mesa.methods.base import Method
from theory.applied import measured, states
from theory.builders import build
from theory.claims.base import NOTHING, Claim, Reading, Verdict, crossing, deviation, grid
from theory.claims.rotary_cases import NAMES, SIZES, Size, cases, llama, origin, own, rerope, stair_pe
from theory.claims.settings import Settings
from theory.parts import POSITION, Shape
from theory.rotary import READS, Rotary
from theory.rotary_bounds import yarn_scale
from theory.rotary_model import FREE


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


def long_window(settings: Settings) -> Claim:
    """Real matrices at LLaMA2's window: 1 / t underflows nowhere, as e^-t does."""
    M = 4096 if settings.full else 1024
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


CLAIMS = {
    "rotary": fails_beyond_M,
    "rotary-oracle": agreement,
    "rotary-4096": long_window,
    "rotary-nope": no_method_mends_it,
}
