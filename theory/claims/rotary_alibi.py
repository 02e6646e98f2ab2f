"""What ALiBi's bias has and rotary embedding has not, and where the two are the same."""

from __future__ import annotations

import math

import numpy as np

from mesa.methods import YaRN
from theory.applied import measured
from theory.bounds import last_recovered
from theory.claims.base import Claim, Verdict, deviation, grid
from theory.claims.rotary_cases import NAMES, SIZES, Size, first_below, llama, origin, rerope
from theory.claims.settings import Settings
from theory.parts import Shape
from theory.rotary_bounds import yarn_scale
from theory.weave import woven_model


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


def failure_comes_back(settings: Settings) -> Claim:
    """YaRN after a failure: <bos> comes round, and o is above H again. With ALiBi's bias it cannot."""
    size, s, length = Size(16, 4, 2, 16, 16, 3.0), 2.0, 140
    sizes, method = size.rotary("count"), YaRN(trained_length=16, factor=s)
    o = measured(llama(size, "count", settings), method, length)[1] - settings.H
    told = sizes.M / sizes.denominator(np.arange(1, length + 1), factor=1 / s, grown=yarn_scale(s)) - 1
    fails = first_below(o, size.M, 0.0)
    again = [t for t in range(fails or length, length + 1) if o[t - 1] > 0]
    between = o[(fails or 1) - 1 : (again[0] if again else length) - 1]
    margin = min(-between.max(), o[again[0] - 1 : again[-1]].min()) if again else -1.0
    return Claim(
        name="rotary-again",
        statement="Beyond the crossing the hidden state stays beyond it",
        citation="figure of observed thresholds ('a failure in extrapolation after that position')",
        parameters={NAMES: tuple(size), "s": s},
        tested=f"t = 1 .. {length} under YaRN, by count",
        expected=Verdict.PRINTED,
        margin=float(margin),
        error=deviation(o, told),
        correction="for a bias that grows with distance for ever, as ALiBi's; a rotary one comes round",
        counterexample=f"below H from t = {fails}, above it again at t = {grid(again)}",
    )


CLAIMS = {
    "rotary-position": position_comes_back,
    "rotary-limit": alibi_is_a_limit,
    "rotary-again": failure_comes_back,
}
