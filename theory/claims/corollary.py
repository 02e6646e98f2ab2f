"""The corollary: Stair PE extends the window to T*(M, N, E)."""

from __future__ import annotations

import math

import numpy as np

from theory.bounds import denominator, extended_length, first_failure, ideal_position, stair_is_recovered
from theory.claim import IDENTITY, ClaimVerdict, Measurement, Outcome, claim, deviation, first_below, grid
from theory.claims.settings import VerifyOptions
from theory.claims.theorem3 import ONE_HEAD, woven_head_output
from theory.constructions import stair_model
from theory.model import Construction
from theory.weave import stair


def exact_stair_model(M: int, N: int, E: int, length: int, settings: VerifyOptions) -> Construction:
    """The stair's construction with K >= W(T - 1) + 1 positions for T = `length`; log steps where matrices overflow."""
    K = max(M, int(stair(length - 1, N, E)) + 1)
    return stair_model(M, N, E, settings.H, **settings.wide_mlp(K, shape=ONE_HEAD))


@claim("corollary", ClaimVerdict.LENGTH, "Corollary (Mesa Extrapolation)")
def stair_extends(settings: VerifyOptions) -> Outcome:
    """With 3.2's weights and Stair PE, N << M, still o_T > H although T > M."""
    default = [(16, 4, 2), (12, 3, 3), (16, 4, 3), (16, 4, 5), (9, 2, 3)] + ([] if settings.quick else [(64, 8, 2)])
    triples, reading = settings.triples(*default), IDENTITY
    for M, N, E in triples:
        reach = extended_length(M, N, E)
        length = int(min(1.1 * reach + 2 * E + M, settings.longest_run))
        t = np.arange(1, length + 1)
        o = exact_stair_model(M, N, E, length, settings).head_output(length)
        excess = M / denominator(t, N, E) - 1
        certain = settings.sign_is_certain(excess) & (t > M)
        inside = certain & (t < reach)
        if inside.any():
            reading &= Measurement(float((o - settings.H)[inside].min()))
        if stair_is_recovered(N, E):
            signed = (o - settings.H) * np.sign(excess)
            reading &= Measurement(float(signed[certain].min()), deviation(o, excess + settings.H))
    return Outcome(
        {"K": "W(T-1) + 1 or more", "(M, N, E)": grid(triples), "H": settings.H, "dtype": settings.dtype},
        f"M < t < T*; where positions are recovered also success or failure at every t to 1.1 T*, "
        f"t <= {settings.longest_run}",
        reading,
        correction="for M < t < T*, which is 2N + e^(N (1 - 1/E)) (M - 2 S_E) where E divides N, and E >= 2 (1 is the "
        "plain encoding); the first failure lies in T* <= t < T* + E",
        counterexample="first failures: " + ", ".join(f"{triple}: {first_failure(*triple)}" for triple in triples),
    )


@claim("corollary-position", ClaimVerdict.CORRECTED, "Corollary, proof (H^(1), third row)")
def printed_position(settings: VerifyOptions) -> Outcome:
    """Layer 1 recovers I_t = W(t) under Stair PE."""
    M, N, E, length = 16, 4, 2, 60
    position = exact_stair_model(M, N, E, length, settings).recovered_position(length)
    t = np.arange(1, length + 1)
    off, error = (np.abs(position - expected) for expected in (stair(t, N, E), ideal_position(t, N, E)))
    wrong = t[off > 0.5]
    return Outcome(
        {"(N, E)": (N, E)},
        f"t = 1 .. {length}",
        Measurement(float(off.max()), float(error.max())),
        unit="position",
        correction="it is W(t - 1) + 1",
        counterexample=f"t = {wrong[0]}: {position[wrong[0] - 1]:.0f}, printed {stair(int(wrong[0]), N, E)}",
    )


def widest_stair(N: int) -> int:
    """The largest E for which `stair_is_recovered(N, E)`."""
    return 1 + math.floor((math.sqrt(math.e) - 1) * math.exp(N + 1))


@claim("corollary-recovery", ClaimVerdict.HOLDS, "ours (corollary, proof)")
def recovery_condition(settings: VerifyOptions) -> Outcome:
    """Layer 1 recovers W(t - 1) + 1 at every t exactly where E - 1 <= (sqrt(e) - 1) e^(N + 1)."""
    windows, reading = [1, 2, 3], IDENTITY
    for N in windows:
        for E, recovered in ((widest_stair(N), True), (widest_stair(N) + 1, False)):
            length = N + 12 * E
            position = exact_stair_model(N + 2, N, E, length, settings).recovered_position(length)
            error = float(np.abs(position - ideal_position(np.arange(1, length + 1), N, E)).max())
            reading &= Measurement(1.0, error) if recovered else Measurement(error)
    widths = grid([f"{widest_stair(N)} and {widest_stair(N) + 1}" for N in windows])
    return Outcome({"N": grid(windows), "E": widths}, "t = 1 .. N + 12 E", reading, unit="position")


@claim("corollary-range", ClaimVerdict.CORRECTED, "Corollary ('apply matrices from Theorem 3.2')")
def range_matters(settings: VerifyOptions) -> Outcome:
    """The matrices of theorem 3.2 serve Stair PE."""
    M, N, E, length = 64, 16, 2, 300
    options = settings.options(recovers=M, shape=ONE_HEAD)
    o = stair_model(M, N, E, settings.H, **options).head_output(length) - settings.H
    fails = first_below(o, M, 0.0) or length
    wide = exact_stair_model(M, N, E, length, settings).head_output(length) - settings.H
    return Outcome(
        {"K": M, "(M, N, E)": (M, N, E)},
        f"t = 1 .. {length}",
        Measurement(float(min(-o[fails - 1], wide[M:].min()))),
        correction=f"K >= W(T - 1) + 1; then o > H for all M < t <= {length} and on to {extended_length(M, N, E):.0f}",
        counterexample=f"t = {fails}, soon after N + E(M - 1 - N) = {N + E * (M - 1 - N)}",
    )


@claim("corollary-order", ClaimVerdict.HOLDS, "ours (between theorem 3.3 and the corollary)")
def stair_against_weave(settings: VerifyOptions) -> Outcome:
    """For E <= N Stair PE reaches less far than the remap, by ideal recovery; a wider stair can reach further."""
    tried = [(M, N, E) for N in range(2, 9) for M in range(N + 2, 4 * N + 8) for E in range(2, N + 1)]
    worst = min(first_failure(M, N) - first_failure(M, N, E) for M, N, E in tried)
    M, N, E = 4, 2, 50
    further = first_failure(M, N, E) - first_failure(M, N)
    stairs = exact_stair_model(M, N, E, 100, settings).head_output(100) - settings.H
    weave = woven_head_output(M, N, 100, settings) - settings.H
    built = [first_below(excess, M, 0.0) or 0 for excess in (stairs, weave)]
    return Outcome(
        {"N": "2 .. 8", "M": "N + 2 .. 4N + 7", "E": "2 .. N"},
        f"first failures by the closed forms, {len(tried)} cases; up to r = N + E a stair is min(r, N + 1): "
        f"(M, N, E) = ({M}, {N}, {E}) fails first at {first_failure(M, N, E)}, the remap at {first_failure(M, N)} "
        f"(built: {built[0]} and {built[1]})",
        Measurement(float(min(worst, further, built[0] - built[1]))),
        unit="token",
    )
