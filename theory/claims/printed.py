"""Statements around the theorems: what follows from alpha_1 > 1/t, thresholds from above, and the table of memory."""

from __future__ import annotations

import math

import numpy as np

import mesa
from mesa.plan import distances
from theory.bounds import extended_length
from theory.claims.base import NOTHING, Claim, Reading, Verdict, deviation, grid
from theory.claims.settings import Settings
from theory.claims.theorem3 import ONE_HEAD, ideal_denominator
from theory.nope import nope_model
from theory.parts import POSITION
from theory.weave import plain_model, woven_model


def chain_of_inequalities(settings: Settings) -> Claim:
    """Beyond T* alpha_1 is above 1/t still, and M alpha_1 below 1: the first says nothing of the second for t > M."""
    pairs, reading, seen = [(4, 2), (8, 2), (8, 3)], NOTHING, []
    for M, N in pairs:
        t = math.floor(extended_length(M, N)) + 2
        alpha = float(1 / ideal_denominator(N, t, settings)[-1])
        reading &= Reading(min(t * alpha - 1, 1 - M * alpha))
        seen.append(f"(M, N, t) = ({M}, {N}, {t}): t alpha_1 = {t * alpha:.2f}, M alpha_1 = {M * alpha:.3f}")
    return Claim(
        name="3.3-chain",
        statement="For t > M, alpha_1 > 1/t gives M alpha_1 > 1, so o_t > H",
        citation="Theorem 3.3, proof, after eq. 53; the corollary's proof",
        parameters={"(M, N)": grid(pairs)},
        tested="floor(T*) + 2, ideal recovery",
        expected=Verdict.PRINTED,
        margin=reading.margin,
        unit="ratio",
        correction="it gives M alpha_1 > M/t, which is below 1; what is needed is alpha_1 > 1/M, true up to T*",
        counterexample="; ".join(seen),
    )


def threshold_from_above(settings: Settings) -> Claim:
    """With W_O negated, o is above -H where it was below H, and the weave keeps it below -H up to T*."""
    M, N, length = 16, 3, 60
    options, t = settings.options(shape=ONE_HEAD), np.arange(1, length + 1)
    models = {
        "NoPE": nope_model(M, settings.H, **options),
        "PE": plain_model(M, settings.H, **options),
        "weave": woven_model(M, N, settings.H, **options),
    }
    reading = NOTHING
    for name, model in models.items():
        model.get_buffer(f"blocks.{0 if name == 'NoPE' else 1}.attn.W_O")[0, POSITION] *= -1
        above = model.head_output(length) + settings.H
        if name == "weave":
            reading &= Reading(float(-above[M:].max()))
        else:
            sides = min(-above[t < M].max(), above[t > M].min())
            reading &= Reading(float(sides), deviation(above, 1 - M / t))
    return Claim(
        name="threshold-above",
        statement="The threshold can be an upper bound as well as a lower one",
        citation="Theoretical analysis, the definition of the threshold",
        parameters={"(M, N)": (M, N), "H": settings.H},
        tested=f"W_O negated: o_t against -H, t = 1 .. {length} (T* = {extended_length(M, N):.0f})",
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
    )


def memory_table(settings: Settings) -> Claim:
    """Pairs of query and key that each plan computes, at n and 2n, in the paper's sizes scaled down to M = 64."""
    M, n = 64, 512
    window = M // 8
    methods = {
        "Origin": mesa.Origin(trained_length=M),
        "Dynamic-NTK": mesa.DynamicNTK(trained_length=M),
        "ReRoPE": mesa.ReRoPE(trained_length=M, window=window),
        "Leaky-ReRoPE": mesa.LeakyReRoPE(trained_length=M, window=window),
        "LM-Infinite": mesa.LMInfinite(trained_length=M),
        "StreamingLLM": mesa.StreamingLLM(trained_length=M),
        "Mesa": mesa.MesaExtrapolation(trained_length=M),
    }
    printed = {"LM-Infinite": 1 + math.sqrt(2), "StreamingLLM": 1 + math.sqrt(2), "Mesa": 2 + math.sqrt(2)}
    pairs = {
        name: [int((distances(method.plan(length)) >= 0).sum()) for length in (n, 2 * n)]
        for name, method in methods.items()
    }
    quadratic = {name: many[1] / many[0] for name, many in pairs.items()}
    slopes = {name: (pairs[name][1] - pairs[name][0]) / n for name in printed}
    as_stated = min(
        *(quadratic[name] - 3.9 for name in pairs if name not in printed), *(2.5 - quadratic[name] for name in printed)
    )
    same = all(pairs[name] == pairs["Origin"] for name in ("ReRoPE", "Leaky-ReRoPE", "Dynamic-NTK"))
    apart = min(slopes[name] - printed[name] for name in printed)
    return Claim(
        name="memory-table",
        statement="Attention takes n^2 (Origin), 2 n^2 (ReRoPE), (1 + sqrt 2) n (LM-Infinite), (2 + sqrt 2) n (Mesa)",
        citation="Appendix, theoretical speed and memory, table",
        parameters={"M": M, "n": f"{{{n}, {2 * n}}}"},
        tested="pairs that plans hold; a token more takes "
        + ", ".join(f"{slope:.0f} ({name})" for name, slope in slopes.items()),
        expected=Verdict.CORRECTED,
        margin=float(min(as_stated, apart)) if same else -1.0,
        unit="ratio",
        correction="quadratic and linear are right; ReRoPE's pairs are Origin's, each at one distance, so that 2 is of "
        "an implementation; the linear ones' factors are of the order of their windows, F + L and more, not 2 or 3",
    )


CLAIMS = {"3.3-chain": chain_of_inequalities, "threshold-above": threshold_from_above, "memory-table": memory_table}
