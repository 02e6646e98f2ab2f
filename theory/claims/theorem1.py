"""Theorem 3.1: NoPE fails beyond M."""

from __future__ import annotations

import numpy as np

from theory.claim import IDENTITY, ClaimVerdict, Measurement, Outcome, claim, crossing, deviation, grid
from theory.claims.settings import VerifyOptions
from theory.constructions import nope_model
from theory.parts import CONST, Shape


@claim("3.1", ClaimVerdict.HOLDS, "Theorem 3.1, eq. 21")
def nope_fails_beyond_M(settings: VerifyOptions) -> Outcome:
    """Without positions o_t = M/t - 1 + H: above H for t < M, below it for t > M, whatever W_Q is."""
    windows, reading = settings.windows(16, 64, 512), IDENTITY
    for M in windows:
        length = min(2 * M, settings.longest_run)
        reference = M / np.arange(1, length + 1) - 1 + settings.H
        for seed in range(settings.seed, settings.seed + 3):
            o = nope_model(M, settings.H, seed=seed, dtype=settings.torch_dtype).head_output(length, seed)
            reading &= Measurement(crossing(o, M, settings.H), deviation(o, reference))
    sizes = {"M": grid(windows), "H": settings.H, "dtype": settings.dtype, "seed": settings.seed}
    return Outcome(sizes, "t = 1 .. 2M, 3 seeds", reading)


@claim("3.1-head-size", ClaimVerdict.CORRECTED, "Theorem 3.1, proof ('for head dimensions h >= 1')")
def head_size_one(settings: VerifyOptions) -> Outcome:
    """The construction works for head sizes h >= 1."""
    M, H = 16, 0.5
    merged = nope_model(M, H, shape=Shape(head=1), seed=settings.seed, dtype=settings.torch_dtype)
    margin = crossing(merged.head_output(3 * M), M, H)
    merged.get_buffer("blocks.0.attn.W_V")[0, 0, CONST] = 0  # what is left of the printed W_V
    excess = float(merged.head_output(3 * M)[M] - H)
    return Outcome(
        {"M": M, "H": H, "h": 1},
        f"t = 1 .. {3 * M}",
        Measurement(min(margin, excess)),
        correction="the printed W_V needs h >= 2; its two rows merged into one, (H - 1, M, 0, ...), do for h = 1",
        counterexample=f"printed W_V at h = 1, t = M + 1: o - H = {excess:.3f} > 0",
    )


@claim("3.1-reading", ClaimVerdict.HOLDS, "ours (theorem 3.1, 'input sequence of length T + 1')")
def where_o_is_read(settings: VerifyOptions) -> Outcome:
    """o_T is the output at position T, <bos> at position 1: at the last of T + 1 tokens o = H where T = M - 1.

    Margin: what o is above H at t = M - 1 and below it at t = M + 1.
    """
    windows, reading = settings.windows(2, 16, 64, 512), IDENTITY
    for M in windows:
        o = nope_model(M, settings.H, seed=settings.seed, dtype=settings.torch_dtype).head_output(M + 1) - settings.H
        reading &= Measurement(float(min(o[M - 2], -o[M])), float(abs(o[M - 1])))
    inexact = sum(np.float64(1) / M * M != 1 for M in range(2, 4097))
    return Outcome(
        {"M": grid(windows), "H": settings.H, "dtype": settings.dtype},
        f"t = M - 1, M and M + 1 of the built models; at t = M no sign of o - H is asserted, for (1/M)*M != 1 in "
        f"float64 for {inexact} of the M up to 4096",
        reading,
    )
