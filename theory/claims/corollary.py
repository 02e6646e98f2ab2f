"""The corollary: Stair PE extends the window to T*(M, N, E)."""

from __future__ import annotations

import math

import numpy as np

from mesa.weave import stair
from theory.bounds import denominator, extended_length, first_failure, ideal_position, stair_is_recovered
from theory.claims.base import NOTHING, Claim, Reading, Verdict, deviation, grid
from theory.claims.settings import Settings
from theory.claims.theorem3 import ONE_HEAD, woven_head_output
from theory.model import Construction
from theory.recovery import longest
from theory.weave import plain_model, stair_model


def exact_stair_model(M: int, N: int, E: int, length: int, settings: Settings) -> Construction:
    """The stair's construction with K >= W(T - 1) + 1 positions for T = `length`; log steps where matrices overflow."""
    K = max(M, int(stair(length - 1, N, E)) + 1)
    fits = settings.recovery != "log" and longest("steps", settings.dtype) >= K
    options = settings.options(recovers=K, recovery="steps" if fits else "log", shape=ONE_HEAD)
    return stair_model(M, N, E, settings.H, **options)


def stair_extends(settings: Settings) -> Claim:
    """M < t < T*: above H; where recovery is ideal, D(t) and the sign of o_t - H at every t are the closed form's."""
    default = [(16, 4, 2), (8, 3, 3), (12, 4, 3), (6, 4, 5), (9, 2, 3)] + ([] if settings.quick else [(64, 8, 2)])
    triples, reading = settings.triples(*default), NOTHING
    for M, N, E in triples:
        reach = extended_length(M, N, E)
        length = int(min(1.1 * reach + 2 * E + M, settings.longest_run))
        t = np.arange(1, length + 1)
        o = exact_stair_model(M, N, E, length, settings).head_output(length)
        excess = M / denominator(t, N, E) - 1
        told = settings.told(excess) & (t > M)
        inside = told & (t < reach)
        if inside.any():
            reading &= Reading(float((o - settings.H)[inside].min()))
        if stair_is_recovered(N, E):
            signed = (o - settings.H) * np.sign(excess)
            reading &= Reading(float(signed[told].min()), deviation(o, excess + settings.H))
    return Claim(
        name="corollary",
        statement="Stair PE keeps o_t above H for M < t < T*; E | N: T* = 2N + e^(N(1-1/E)) (M - 2 S_E)",
        citation="Corollary (Mesa Extrapolation)",
        parameters={"(M, N, E)": grid(triples), "H": settings.H, "K": ">= W(T-1) + 1", "dtype": settings.dtype},
        tested=f"M < t < T*; where positions are recovered also success or failure at every t to 1.1 T*, "
        f"t <= {settings.longest_run}",
        expected=Verdict.CORRECTED,
        margin=reading.margin,
        error=reading.error,
        correction="for M < t < T*, N <= M - 2, E >= 2; the first failure lies in T* <= t < T* + E",
    )


def not_for_every_width(settings: Settings) -> Claim:
    """E = 1 is the plain encoding; and every stair ends."""
    M, N, E = 16, 4, 2
    length = 2 * first_failure(M, N, E)
    plain = plain_model(M, settings.H, **settings.options()).head_output(length) - settings.H
    stairs = exact_stair_model(M, N, E, length, settings).head_output(length) - settings.H
    fails = first_failure(M, N, E)
    later = int(np.flatnonzero(stairs > 0)[-1]) + 1
    return Claim(
        name="corollary-printed",
        statement="'Although T > M, it still o_T > H', for any constant E",
        citation="Corollary",
        parameters={"(M, N)": (M, N), "E": "{1, 2}"},
        tested=f"t = 1 .. {length}",
        expected=Verdict.PRINTED,
        margin=float(min(-plain[M], -stairs[fails - 1], later - fails)),
        correction="see corollary",
        counterexample=f"E = 1, t = {M + 1}: o - H = {plain[M]:.3f}; E = 2, t = {fails}: {stairs[fails - 1]:.3f} "
        f"(D oscillates: t = {later} succeeds again)",
    )


def printed_position(settings: Settings) -> Claim:
    """The recovered position is W(t - 1) + 1; the paper prints I_t = W(t)."""
    M, N, E, length = 16, 4, 2, 60
    position = exact_stair_model(M, N, E, length, settings).recovered_position(length)
    t = np.arange(1, length + 1)
    wrong = t[np.abs(position - stair(t, N, E)) > 0.5]
    return Claim(
        name="corollary-position",
        statement="Layer 1 recovers I_t = W(t) under Stair PE",
        citation="Corollary, proof (H^(1), third row)",
        parameters={"(N, E)": (N, E)},
        tested=f"t = 1 .. {length}",
        expected=Verdict.PRINTED,
        margin=float(np.abs(position - stair(t, N, E)).max()),
        error=float(np.abs(position - ideal_position(t, N, E)).max()),
        unit="position",
        correction="it is W(t - 1) + 1",
        counterexample=f"t = {wrong[0]}: {position[wrong[0] - 1]:.0f}, printed {stair(int(wrong[0]), N, E)}",
    )


def widest_stair(N: int) -> int:
    """The largest E for which `stair_is_recovered(N, E)`."""
    return 1 + math.floor((math.sqrt(math.e) - 1) * math.exp(N + 1))


def recovery_condition(settings: Settings) -> Claim:
    """Recovery is ideal up to the widest stair of the condition, and not beyond it."""
    windows, reading = [1, 2, 3], NOTHING
    for N in windows:
        for E, recovered in ((widest_stair(N), True), (widest_stair(N) + 1, False)):
            length = N + 12 * E
            position = exact_stair_model(N + 2, N, E, length, settings).recovered_position(length)
            error = float(np.abs(position - ideal_position(np.arange(1, length + 1), N, E)).max())
            reading &= Reading(1.0, error) if recovered else Reading(error)
    return Claim(
        name="corollary-recovery",
        statement="Layer 1 recovers W(t - 1) + 1 at every t exactly where E - 1 <= (sqrt(e) - 1) e^(N + 1)",
        citation="ours (corollary, proof)",
        parameters={"N": grid(windows), "E": grid([f"{widest_stair(N)} and {widest_stair(N) + 1}" for N in windows])},
        tested="t = 1 .. N + 12 E",
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
        unit="position",
    )


def range_matters(settings: Settings) -> Claim:
    """With K = M the stair fails soon after its distances leave the recovered range."""
    M, N, E = 64, 16, 2
    length = 300
    options = settings.options(recovers=M, shape=ONE_HEAD)
    o = stair_model(M, N, E, settings.H, **options).head_output(length) - settings.H
    fails = int(np.flatnonzero(o[M:] <= 0)[0]) + M + 1
    wide = exact_stair_model(M, N, E, length, settings).head_output(length) - settings.H
    return Claim(
        name="corollary-range",
        statement="With theorem 3.2's MLP for M positions, Stair PE extends the window to T*",
        citation="Corollary ('apply matrices from Theorem 3.2')",
        parameters={"(M, N, E)": (M, N, E), "K": M},
        tested=f"t = 1 .. {length}",
        expected=Verdict.PRINTED,
        margin=float(min(-o[fails - 1], wide[M:].min())),
        correction=f"K >= W(T - 1) + 1; then o > H for all M < t <= {length} and on to {extended_length(M, N, E):.0f}",
        counterexample=f"t = {fails}, soon after N + E(M - 1 - N) = {N + E * (M - 1 - N)}",
    )


def stair_against_weave(settings: Settings) -> Claim:
    """For 2 <= E <= N the stair ends before the weave; a stair wider than N may reach further."""
    worst, tried = math.inf, 0
    for N in range(2, 9):
        for M in range(N + 2, 4 * N + 8):
            for E in range(2, N + 1):
                worst = min(worst, first_failure(M, N) - first_failure(M, N, E))
                tried += 1
    M, N, E = 4, 2, 50
    further = first_failure(M, N, E) - first_failure(M, N)
    stairs = exact_stair_model(M, N, E, 100, settings).head_output(100) - settings.H
    weave = woven_head_output(M, N, 100, settings) - settings.H
    built = [int(np.flatnonzero(excess[M:] <= 0)[0]) + M + 1 for excess in (stairs, weave)]
    return Claim(
        name="corollary-order",
        statement="Stair PE extends less than the weave of theorem 3.3",
        citation="ours (between theorem 3.3 and the corollary)",
        parameters={"N": "2 .. 8", "M": "N + 2 .. 4N + 7", "E": "2 .. N"},
        tested=f"first failures by the closed forms, {tried} cases",
        expected=Verdict.CORRECTED,
        margin=float(min(worst, further, built[0] - built[1])),
        unit="token",
        correction="for E <= N; a wider stair can reach further, since up to r = N + E it is min(r, N + 1)",
        counterexample=f"(M, N, E) = ({M}, {N}, {E}): stair fails first at {first_failure(M, N, E)}, "
        f"weave at {first_failure(M, N)} (built: {built[0]} and {built[1]})",
    )


CLAIMS = {
    "corollary": stair_extends,
    "corollary-printed": not_for_every_width,
    "corollary-position": printed_position,
    "corollary-recovery": recovery_condition,
    "corollary-range": range_matters,
    "corollary-order": stair_against_weave,
}
