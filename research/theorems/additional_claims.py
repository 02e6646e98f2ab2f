"""Statements next to the theorems: ALiBi's slopes, MPT's ALiBi, Self-Extend, DynamicSplit. Mostly exact integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from scipy.special import softmax
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

import mesa
from mesa.plan import distances
from theory.bounds import extended_length
from theory.claim import IDENTITY, ClaimVerdict, Measurement, Outcome, claim, crossing, deviation, grid
from theory.claims.settings import VerifyOptions
from theory.claims.theorem3 import ONE_HEAD, ideal_denominator
from theory.model import nope_model, plain_model, woven_model
from theory.parts import POSITION
from theory.weave import self_extend, stair


def _alibi_slope(heads: int) -> float:
    """Head 0's slope as transformers computes it for MPT, in float32."""
    return -float(build_mpt_alibi_tensor(heads, 2)[0, 0, 0])


@claim("alibi-constant", ClaimVerdict.CORRECTED, "Background, ALiBi")
def alibi_constant(settings: VerifyOptions) -> Outcome:
    """ALiBi's slopes are C^(m+1), C = 2^(-2^(-log2(#heads + 3))): 1/2, 1/4, ... for 8 heads."""
    heads = np.array([8, 16, 32])
    printed, corrected = 2.0 ** -(2.0 ** -np.log2(heads + 3)), 2.0 ** -(2.0 ** -(np.log2(heads) - 3))
    slopes = np.array([_alibi_slope(int(count)) for count in heads])  # of head 0; head m takes the power m + 1
    return Outcome(
        {"heads": "{8, 16, 32}"},
        "head 0 of each",
        Measurement(min(1e-5, float(abs(printed - slopes).min())), float(abs(corrected - slopes).max())),
        unit="slope",
        correction="a misplaced parenthesis: C = 2^(-2^(-(log2(#heads) - 3))) = 2^(-8/#heads)",
        counterexample=f"8 heads: {', '.join(f'{printed[0] ** m:z.2f}' for m in (1, 2, 3))}, ...",
    )


@claim("alibi-mpt", ClaimVerdict.CORRECTED, "Appendix, ALiBi on MPT-7B")
def mpt_alibi(settings: VerifyOptions) -> Outcome:
    """MPT's ALiBi is only an approximation of ALiBi.

    MPT's row -(T-1), ..., -1, 0 for all queries differs from -(t - i) by a constant in each row.

    In bfloat16 that constant is what rounds: a long row's far keys, which early queries read, are some whole steps off.
    """
    length, slope, N, E = 2048, 0.5, 8, 4
    rng, index = np.random.default_rng(settings.seed), np.arange(length)
    query = np.arange(31, length, 32)[:, None]
    content = rng.standard_normal((len(query), length))
    seen, row = index <= query, -slope * (length - 1 - index)

    def attention(scores: np.ndarray) -> np.ndarray:
        """Weights (query, key) over the keys that are seen."""
        return softmax(np.where(seen, scores, -np.inf), axis=1)

    exact = attention(content - slope * (query - index))
    error = float(np.abs(exact - attention(content + row)).max())
    rounded = torch.from_numpy(content + row).bfloat16().double().numpy()
    off = float((np.abs(exact - attention(rounded)).sum(1) / 2).max())
    woven = attention(content - slope * stair(np.maximum(query - index, 0), N, E))
    woven_row = attention(content - slope * stair(length - 1 - index, N, E))
    apart = float(np.abs(woven - woven_row).max())
    return Outcome(
        {"T": length, "slope": slope},
        "attention weights on random scores, every 32nd query",
        Measurement(min(apart, off, 1e-9), error),
        unit="attention",
        correction=f"in bfloat16, where attention is {off:z.2f} off in total variation; in exact arithmetic its rows "
        "differ by constants, which softmax drops. "
        f"Remapping that row for all queries is {apart:z.2f} off (N = {N}, E = {E})",
    )


@claim("self-extend", ClaimVerdict.HOLDS, "Appendix, Stair PE and Self-Extend")
def self_extend_and_stair(settings: VerifyOptions) -> Outcome:
    """Where W mod G = 0, Self-Extend is W + (t - i - W) // G exactly where t mod G >= i mod G: Stair PE, were the floor
    a ceiling."""
    length, wrong, shares = 512, 0, {}
    query, key = np.tril_indices(length)
    for group in (2, 3, 8):
        for window in (12, 16, 24, 25):
            far = query - key > window
            t, i = query[far], key[far]
            grouped = self_extend(t, i, window, group)
            floor = window + (t - i - window) // group
            ceil = stair(t - i, window, group)
            wrong += int(((grouped == floor) != (t % group >= i % group + window % group)).sum())
            if window % group == 0:
                wrong += int(((grouped == ceil) != (t % group <= i % group)).sum())
                wrong += int(((ceil - grouped != 0) & (ceil - grouped != 1)).sum())
                shares[group] = Fraction(int((grouped != ceil).sum()), len(t))
    limits = {group: Fraction(group - 1, 2 * group) for group in shares}
    return Outcome(
        {"G": "{2, 3, 8}", "N": "{12, 16, 24, 25}"},
        f"all pairs with r > N, T = {length}; Self-Extend differs from Stair on "
        + ", ".join(f"{float(share):.1%} (G={group})" for group, share in shares.items())
        + f"; the shares tend to (G-1)/2G: {', '.join(map(str, limits.values()))}. With its floor it is Stair PE "
        "exactly where t mod G <= i mod G, elsewhere one below",
        Measurement(1.0 if wrong == 0 else -float(wrong)),
        unit="position",
    )


def printed_split(length: int, trained: int, first: int, last: int, threshold: int) -> tuple[list[int], int]:
    """Widths of the middle chunks and of the last one by DynamicSplit and algorithm 1, literally.

    Raises ZeroDivisionError where the printed formula divides by zero.
    """
    count, rest = divmod(length - last - first, trained - first)
    width = trained - first if rest < threshold else (length - last - first) // (count + 1)
    begin, chunks = first, []
    while begin < length - 1 - width:
        chunks.append(width)
        begin += width
    return chunks, length - begin


@claim("dynamic-split", ClaimVerdict.CORRECTED, "Algorithm 1 and DynamicSplit")
def dynamic_split(settings: VerifyOptions) -> Outcome:
    """DynamicSplit splits any input of I tokens into chunks, the last one L tokens or more."""
    trained, first, last, threshold = 4096, 100, 512, 200
    zero, short = [], []
    for length in range(1, 20001):
        try:
            if printed_split(length, trained, first, last, threshold)[1] < last:
                short.append(length)
        except ZeroDivisionError:
            zero.append(length)
    failing = [*range(1, first + last)], [*range(first + last + threshold, first + 2 * last - 1)]
    return Outcome(
        {"T": trained, "F": first, "L": last, "M_max": threshold},
        "I = 1 .. 20000",
        Measurement(1.0 if (zero, short) == failing else -1.0),
        unit="token",
        correction="for I > T, beyond all that follows: none is split up to there",
        counterexample=f"division by zero for I = {zero[0]} .. {zero[-1]} (I < F + L); extra chunks and a last one "
        f"below L for I = {short[0]} .. {short[-1]} (F + L + M_max <= I <= F + 2L - 2)",
    )


@claim("3.3-chain", ClaimVerdict.LENGTH, "Theorem 3.3, proof, after eq. 53; the corollary's proof")
def chain_of_inequalities(settings: VerifyOptions) -> Outcome:
    """When t > M, due to alpha_1 > 1/t, it is possible that M alpha_1 > 1."""
    pairs, reading, seen = [(4, 2), (8, 2), (8, 3)], IDENTITY, []
    for M, N in pairs:
        t = math.floor(extended_length(M, N)) + 2
        alpha = float(1 / ideal_denominator(N, t, settings)[-1])
        reading &= Measurement(min(t * alpha - 1, 1 - M * alpha))
        seen.append(f"(M, N, t) = ({M}, {N}, {t}): t alpha_1 = {t * alpha:z.2f}, M alpha_1 = {M * alpha:z.3f}")
    return Outcome(
        {"(M, N)": grid(pairs)},
        "floor(T*) + 2, ideal recovery",
        Measurement(reading.margin),
        unit="ratio",
        correction="up to T*, where alpha_1 > 1/M; alpha_1 > 1/t goes on beyond, and alone gives M alpha_1 > M/t",
        counterexample="; ".join(seen),
    )


@claim("threshold-above", ClaimVerdict.HOLDS, "Theoretical analysis, the definition of the threshold")
def threshold_from_above(settings: VerifyOptions) -> Outcome:
    """The threshold can be an upper bound as well as a lower one."""
    M, N, length = 16, 3, 60
    options, t = settings.options(shape=ONE_HEAD), np.arange(1, length + 1)
    models = {
        "NoPE": nope_model(M, settings.H, **options),
        "PE": plain_model(M, settings.H, **options),
        "weave": woven_model(M, N, settings.H, **options),
    }
    reading = IDENTITY
    tested = f"W_O negated: o_t against -H, t = 1 .. {length} (T* = {extended_length(M, N):.0f})"
    for name, model in models.items():
        model.get_buffer(f"blocks.{0 if name == 'NoPE' else 1}.attn.W_O")[0, POSITION] *= -1
        above = model.head_output(length) + settings.H
        if name == "weave":
            reading &= Measurement(float(-above[M:].max()))
        else:
            reading &= Measurement(crossing(-above, M, 0.0), deviation(above, 1 - M / t))
    return Outcome({"(M, N)": (M, N), "H": settings.H}, tested, reading)


@claim("memory-table", ClaimVerdict.CORRECTED, "Appendix, theoretical speed and memory, table")
def memory_table(settings: VerifyOptions) -> Outcome:
    """Attention takes n^2 (Origin), 2 n^2 (ReRoPE), (1 + sqrt 2) n (LM-Infinite), (2 + sqrt 2) n (Mesa)."""
    M, n = 64, 512
    methods = {"Origin": mesa.Origin, "Dynamic-NTK": mesa.DynamicNTK, "ReRoPE": mesa.ReRoPE}
    methods |= {"Leaky-ReRoPE": mesa.LeakyReRoPE, "LM-Infinite": mesa.LMInfinite}
    methods |= {"StreamingLLM": mesa.StreamingLLM, "Mesa": mesa.MesaExtrapolation}
    printed = {"LM-Infinite": 1 + math.sqrt(2), "StreamingLLM": 1 + math.sqrt(2), "Mesa": 2 + math.sqrt(2)}
    pairs = {
        name: [int((distances(method(trained_length=M).plan(length)) >= 0).sum()) for length in (n, 2 * n)]
        for name, method in methods.items()
    }
    quadratic = {name: many[1] / many[0] for name, many in pairs.items()}
    slopes = {name: (pairs[name][1] - pairs[name][0]) / n for name in printed}
    as_stated = min(
        *(quadratic[name] - 3.9 for name in pairs if name not in printed), *(2.5 - quadratic[name] for name in printed)
    )
    same = all(pairs[name] == pairs["Origin"] for name in ("ReRoPE", "Leaky-ReRoPE", "Dynamic-NTK"))
    apart = min(slopes[name] - printed[name] for name in printed)
    return Outcome(
        {"M": M, "n": f"{{{n}, {2 * n}}}"},
        "pairs that plans hold; a token more takes "
        + ", ".join(f"{slope:.0f} ({name})" for name, slope in slopes.items()),
        Measurement(float(min(as_stated, apart)) if same else -1.0),
        unit="ratio",
        correction="quadratic and linear are right; ReRoPE's pairs are Origin's, each at one distance, so that 2 is of "
        "an implementation; the linear ones' factors are of the order of their windows, F + L and more, not 2 or 3",
    )
