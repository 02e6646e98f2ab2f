"""Theorem 3.1: NoPE fails beyond M."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from theory.claims.base import NOTHING, Claim, Reading, Settings, Verdict, crossing, deviation, grid
from theory.nope import nope_model
from theory.parts import CONST, Shape


def nope_fails_beyond_M(settings: Settings) -> Claim:
    """o_t = M / t - 1 + H, for three seeds of the free weights each."""
    windows, reading = settings.windows(16, 64, 512), NOTHING
    for M in windows:
        length = min(2 * M, settings.longest_run)
        reference = M / np.arange(1, length + 1) - 1 + settings.H
        for seed in range(settings.seed, settings.seed + 3):
            o = nope_model(M, settings.H, seed=seed, dtype=settings.torch_dtype).head_output(length, seed)
            reading &= Reading(crossing(o, M, settings.H), deviation(o, reference))
    return Claim(
        name="3.1",
        statement="Without positions o_t = M/t - 1 + H: above H for t < M, below it for t > M, whatever W_Q is",
        citation="Theorem 3.1, eq. 21",
        parameters={"M": grid(windows), "H": settings.H, "dtype": settings.dtype, "seed": settings.seed},
        tested="t = 1 .. 2M, 3 seeds",
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
    )


def head_size_one(settings: Settings) -> Claim:
    """With h = 1 the printed W_V loses its second row; one row that holds both does."""
    M, H = 16, 0.5
    merged = nope_model(M, H, shape=Shape(head=1), dtype=settings.torch_dtype)
    margin = crossing(merged.head_output(3 * M), M, H)
    merged.get_buffer("blocks.0.attn.W_V")[0, 0, CONST] = 0  # what is left of the printed W_V
    excess = float(merged.head_output(3 * M)[M] - H)
    return Claim(
        name="3.1-head-size",
        statement="The construction works for head sizes h >= 1",
        citation="Theorem 3.1, proof ('for head dimensions h >= 1')",
        parameters={"M": M, "H": H, "h": 1},
        tested=f"t = 1 .. {3 * M}",
        expected=Verdict.CORRECTED,
        margin=min(margin, excess),
        correction="the printed W_V needs h >= 2; its two rows merged into one, (H - 1, M, 0, ...), do for h = 1",
        counterexample=f"printed W_V at h = 1, t = M + 1: o - H = {excess:.3f} > 0",
    )


def where_o_is_read(settings: Settings) -> Claim:
    """Exact arithmetic at t = M: o_M = H, so reading o at the last token breaks T = M - 1."""
    H, windows = Fraction(1, 2), range(2, 4097)
    equal = all(M * Fraction(1, M) - 1 + H == H for M in windows)
    nearest = min(1 - M * Fraction(1, M + 1) for M in windows)  # had o been read one position later
    inexact = sum(np.float64(1) / M * M != 1 for M in windows)
    return Claim(
        name="3.1-reading",
        statement="o_T, read at the last of the T + 1 tokens, is above H for every T < M",
        citation="Theorem 3.1 ('input sequence of length T + 1')",
        parameters={"M": "2 .. 4096", "H": "1/2"},
        tested="T = M - 1, exact rationals",
        expected=Verdict.PRINTED,
        margin=float(nearest) if equal else -1.0,
        correction="o_T is the output at position T, <bos> at position 1; nothing is claimed at T = M",
        counterexample=f"T = M - 1: the last token stands at t = M, where o = H exactly (and (1/M)*M != 1 in float64 "
        f"for {inexact} of these M, so floats cannot decide it)",
    )


CLAIMS = {"3.1": nope_fails_beyond_M, "3.1-head-size": head_size_one, "3.1-reading": where_o_is_read}
