"""Theorem 3.2: a plain relative encoding fails beyond M."""

from __future__ import annotations

import math

import numpy as np

from theory.claims.base import NOTHING, Claim, Reading, Verdict, crossing, deviation, grid
from theory.claims.settings import Settings
from theory.model import Construction
from theory.parts import Shape
from theory.weave import plain_model


def read_plain(model: Construction, M: int, H: float, length: int, recovers: int) -> Reading:
    """How well a construction does what theorem 3.2 says, and what its proof says: o_t and the recovered t.

    Mutated constructions must fail here. An error in the position counts in full, since the nearest mistake is 1.
    """
    o, t = model.head_output(length), np.arange(1, length + 1)
    exact = t <= recovers
    error = deviation(o[exact], (M / t - 1 + H)[exact])
    position = np.abs(model.recovered_position(length) - t)[exact].max()
    return Reading(crossing(o, M, H), max(error, float(position) / M))


def plain_fails_beyond_M(settings: Settings) -> Claim:
    """o_t = M / t - 1 + H from recovered positions; beyond the recovered range o is lower still."""
    windows, reading = settings.windows(16, 64, 512), NOTHING
    for M in windows:
        options = settings.chosen_mlp(M)
        model = plain_model(M, settings.H, **options)
        reading &= read_plain(model, M, settings.H, min(2 * M, settings.longest_run), options["recovers"])
    return Claim(
        name="3.2",
        statement="With scores q.k - (t - i), o_t = M/t - 1 + H: above H for t < M, below it for t > M",
        citation="Theorem 3.2",
        parameters={"M": grid(windows), "H": settings.H, "MLP": settings.recovery, "dtype": settings.dtype},
        tested="t = 1 .. 2M",
        expected=Verdict.CORRECTED,
        margin=reading.margin,
        error=reading.error,
        correction="layer 2 reads the position in two coordinates: query (t, 1), key (1, -i)",
    )


def range_of_positions(settings: Settings) -> Claim:
    """K = M - 1 recovered positions are enough; with K = M - 2, D(M - 1) = M - 2 + e > M."""
    M, H = 16, settings.H
    enough = plain_model(M, H, recovers=M - 1, **settings.options()).head_output(4 * M)
    short = plain_model(M - 1, H, recovers=M - 2, **settings.options())
    denominator = 1 / short.bos_attention(4 * M)
    failing = float(denominator[M - 2] - M) / M
    reference = M - 2 + math.e
    return Claim(
        name="3.2-range",
        statement="Recovering K >= M - 1 positions is enough for theorem 3.2, and K = M - 2 is not",
        citation="Theorem 3.2, proof ('we can always let the MLP layer recover the value of t'); range ours",
        parameters={"M": M, "H": H, "K": grid([M - 1, M - 2])},
        tested=f"t = 1 .. {4 * M}",
        expected=Verdict.HOLDS,
        margin=min(crossing(enough, M, H), failing),
        error=abs(float(denominator[M - 2]) - reference) / reference,
    )


def printed_matrices(settings: Settings) -> Claim:
    """Literally built, q.k = tau - t i: D(t) = sum of e^-(t-1)(i-1) stays near 1, so o never crosses H."""
    M, H = settings.windows(64)[0] if settings.windows(64) else 16, settings.H
    options = settings.chosen_mlp(M)
    if settings.recovery == "naive":  # a hundredth of a position off, which is far beyond rounding
        options["recovery"] = "steps"
    length = min(4 * M, settings.longest_run)
    o = plain_model(M, H, printed=True, **options).head_output(length)
    t = np.arange(2, min(M, length) + 1)[:, None]
    denominator = np.exp(-(t - 1.0) * np.arange(M)).sum(1, where=np.arange(M) < t)
    lowest = float((o - H).min())
    return Claim(
        name="3.2-printed",
        statement="Layer 2's W_Q, W_K as printed give q.k = tau + (t - i)",
        citation="Theorem 3.2, proof, layer 2",
        parameters={"M": M, "H": H},
        tested=f"t = 1 .. {length}",
        expected=Verdict.PRINTED,
        margin=min(lowest, settings.rounding),
        error=deviation(o[1:M], (M / denominator - 1 + H)),
        correction="they give q.k = tau - t i; see 3.2",
        counterexample=f"o never crosses H: min over t of o - H is {lowest:.3f}; at t = M + 1 it is {o[M] - H:.3f}",
    )


def one_coordinate(settings: Settings) -> Claim:
    """Head size 1: query 1 and key -i leave -t + const for every key, and the value's two rows are one."""
    windows, reading = settings.windows(16, 64), NOTHING
    for M in windows:
        options = settings.chosen_mlp(M, shape=Shape(head=1, heads=1))
        o = plain_model(M, settings.H, **options).head_output(2 * M)
        t = np.arange(1, 2 * M + 1)
        exact = t <= options["recovers"]
        reading &= Reading(crossing(o, M, settings.H), deviation(o[exact], (M / t - 1 + settings.H)[exact]))
    return Claim(
        name="3.2-coordinate",
        statement="One coordinate is enough: key -i against a constant 1, so head size 1",
        citation="ours (theorem 3.2, proof, layer 2)",
        parameters={"M": grid(windows), "h": 1, "dtype": settings.dtype},
        tested="t = 1 .. 2M",
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
    )


CLAIMS = {
    "3.2": plain_fails_beyond_M,
    "3.2-range": range_of_positions,
    "3.2-printed": printed_matrices,
    "3.2-coordinate": one_coordinate,
}
