"""Statements beside the theorems: ALiBi's slopes, MPT's ALiBi, Self-Extend, DynamicSplit. Mostly exact integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from mesa.weave import self_extend, stair
from theory.claims.base import Claim, Verdict
from theory.claims.settings import Settings


def _alibi_slope(heads: int) -> float:
    """Head 0's slope as transformers computes it for MPT, in float32."""
    return -float(build_mpt_alibi_tensor(heads, 2)[0, 0, 0])


def alibi_constant(settings: Settings) -> Claim:
    """The printed C gives .94, .88, ... for 8 heads, where the paper's own example says 1/2, 1/4, ..."""
    heads = (8, 16, 32)
    printed, mended = {}, {}
    for count in heads:
        printed[count] = 2.0 ** -(2.0 ** -math.log2(count + 3))
        mended[count] = 2.0 ** -(2.0 ** -(math.log2(count) - 3))
    slopes = {count: _alibi_slope(count) for count in heads}  # of head 0; head m takes the power m + 1
    return Claim(
        name="alibi-constant",
        statement="ALiBi's slopes are C^(m+1), C = 2^(-2^(-log2(#heads + 3))): 1/2, 1/4, ... for 8 heads",
        citation="Background, ALiBi",
        parameters={"heads": "{8, 16, 32}"},
        tested="head 0 of each",
        expected=Verdict.PRINTED,
        margin=min(1e-5, *(abs(printed[count] - slopes[count]) for count in heads)),
        error=max(abs(mended[count] - slopes[count]) for count in heads),
        unit="slope",
        correction="a misplaced parenthesis: C = 2^(-2^(-(log2(#heads) - 3))) = 2^(-8/#heads)",
        counterexample=f"8 heads: {', '.join(f'{printed[8] ** m:.2f}' for m in (1, 2, 3))}, ...",
    )


def _softmax(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Softmax of (query, key) scores over the keys that are seen."""
    most = np.max(scores, axis=1, keepdims=True, where=seen, initial=-np.inf)
    exponent = np.where(seen, np.exp(np.minimum(scores - most, 0)), 0)
    return exponent / exponent.sum(1, keepdims=True)


def mpt_alibi(settings: Settings) -> Claim:
    """MPT's row -(T-1), ..., -1, 0 for all queries differs from -(t - i) by a constant in each row.

    In bfloat16 that constant is what rounds: a long row's far keys, which early queries read, are some whole steps off.
    """
    length, slope, N, E = 2048, 0.5, 8, 4
    rng, index = np.random.default_rng(settings.seed), np.arange(length)
    query = np.arange(31, length, 32)[:, None]
    content = rng.standard_normal((len(query), length))
    seen, row = index <= query, -slope * (length - 1 - index)
    exact = _softmax(content - slope * (query - index), seen)
    error = float(np.abs(exact - _softmax(content + row, seen)).max())
    rounded = torch.from_numpy(content + row).bfloat16().double().numpy()
    off = float((np.abs(exact - _softmax(rounded, seen)).sum(1) / 2).max())
    woven = _softmax(content - slope * stair(np.maximum(query - index, 0), N, E), seen)
    woven_row = _softmax(content - slope * stair(length - 1 - index, N, E), seen)
    apart = float(np.abs(woven - woven_row).max())
    return Claim(
        name="alibi-mpt",
        statement="MPT's ALiBi is only an approximation of ALiBi",
        citation="Appendix, ALiBi on MPT-7B",
        parameters={"T": length, "slope": slope},
        tested="attention weights on random scores, every 32nd query",
        expected=Verdict.PRINTED,
        margin=min(apart, off, 1e-9),
        error=error,
        unit="attention",
        correction="its rows differ from the exact ones by constants, which softmax drops: the attention is the same, "
        f"but for rounding; scores in bfloat16 are off by up to {off:.2f} in total variation",
        counterexample=f"but weaving that one row for all queries is wrong: by up to {apart:.2f} (N = {N}, E = {E})",
    )


def self_extend_and_stair(settings: Settings) -> Claim:
    """The exact conditions under which Self-Extend is floor-Stair and (ceil-)Stair PE, on every far pair."""
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
                wrong += int((np.abs(grouped - ceil) > 1).sum())
                shares[group] = Fraction(int((grouped != ceil).sum()), len(t))
    limits = {group: Fraction(group - 1, 2 * group) for group in shares}
    return Claim(
        name="self-extend",
        statement="Self-Extend with ceiling is Stair PE where t mod G >= i mod G and W mod G = 0",
        citation="Appendix, Stair PE and Self-Extend",
        parameters={"G": "{2, 3, 8}", "N": "{12, 16, 24, 25}"},
        tested=f"all pairs with r > N, T = {length}; Self-Extend differs from Stair on "
        + ", ".join(f"{float(share):.1%} (G={group})" for group, share in shares.items()),
        expected=Verdict.CORRECTED,
        margin=1.0 if wrong == 0 else -float(wrong),
        error=0.0,
        unit="position",
        correction="it is floor-Stair exactly where t mod G >= i mod G + N mod G, and (N mod G = 0) Stair PE exactly "
        "where t mod G <= i mod G; elsewhere it is one below Stair; the shares tend to (G-1)/2G: "
        + ", ".join(str(limit) for limit in limits.values()),
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


def dynamic_split(settings: Settings) -> Claim:
    """Where the printed split divides by zero or leaves a last chunk shorter than L: two ranges, by their formulas."""
    trained, first, last, threshold = 4096, 100, 512, 200
    zero, short = [], []
    for length in range(1, 20001):
        try:
            if printed_split(length, trained, first, last, threshold)[1] < last:
                short.append(length)
        except ZeroDivisionError:
            zero.append(length)
    as_stated = zero == list(range(1, first + last)) and short == list(
        range(first + last + threshold, first + 2 * last - 1)
    )
    return Claim(
        name="dynamic-split",
        statement="DynamicSplit splits any input of I tokens into chunks, the last one L tokens or more",
        citation="Algorithm 1 and DynamicSplit",
        parameters={"T": trained, "F": first, "L": last, "M_max": threshold},
        tested="I = 1 .. 20000",
        expected=Verdict.PRINTED,
        margin=1.0 if as_stated else -1.0,
        unit="token",
        correction="no split for I <= T, where all these lie, and no last chunk below min(L, I - F)",
        counterexample=f"division by zero for I = {zero[0]} .. {zero[-1]} (I < F + L); extra chunks and a last one "
        f"below L for I = {short[0]} .. {short[-1]} (F + L + M_max <= I <= F + 2L - 2)",
    )


CLAIMS = {
    "alibi-constant": alibi_constant,
    "alibi-mpt": mpt_alibi,
    "self-extend": self_extend_and_stair,
    "dynamic-split": dynamic_split,
}
