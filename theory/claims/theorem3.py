"""Theorem 3.3: a woven encoding extends the window to T*, not for ever."""

from __future__ import annotations

import math

import numpy as np

from theory.bounds import denominator, extended_length, first_failure, last_recovered
from theory.claim import CORRECTED, HOLDS, NOTHING, PRINTED, Outcome, Reading, claim, deviation, first_below, grid
from theory.claims.settings import Settings
from theory.constructions import plain_model, woven_model
from theory.parts import Shape

ONE_HEAD = Shape(heads=1)
"""Long inputs run without free heads, which cost as much as the constructed one; `3.1` and the tests have them."""


def ideal_denominator(N: int, length: int, settings: Settings, slope: float = 1.0) -> np.ndarray:
    """D(t) of matrices that recover ideally: an MLP that tells K = N + 1 positions apart rounds all later x to N + 1.

    D does not depend on M, so we take the least that K = N + 1 serves.
    """
    options = settings.options(recovers=N + 1, shape=ONE_HEAD, slope=slope)
    return 1 / woven_model(N + 2, N, settings.H, **options).bos_attention(length)


def woven_head_output(M: int, N: int, length: int, settings: Settings) -> np.ndarray:
    """o_t of the weights of theorem 3.2 under the weave, t = 1 .. length."""
    return woven_model(M, N, settings.H, **settings.chosen_mlp(M, shape=ONE_HEAD)).head_output(length)


@claim("3.3", CORRECTED, "Theorem 3.3")
def weave_extends(settings: Settings) -> Outcome:
    """The weave min(r, N) keeps o_t above H for M < t < T* = 2N + e^N (M - 2 S(N)), with 3.2's weights.

    Left out: t so near T* that the dtype cannot tell (none of these in float64).
    """
    pairs = settings.pairs((4, 2), (8, 2), (5, 3), (8, 3), (6, 4), (3, 1), (12, 11))
    reading, measured = NOTHING, []
    for M, N in pairs:
        reach = extended_length(M, N)
        length = int(min(max(3 * reach, 1500), settings.longest_run))
        t, o = np.arange(1, length + 1), woven_head_output(M, N, length, settings)
        ideal = ideal_denominator(N, length, settings)
        certain = settings.sign_is_certain(M / denominator(t, N) - 1)
        inside, beyond = certain & (t > M) & (t < reach), certain & (t > reach)
        reading &= Reading(float(M / ideal[inside].max() - 1), deviation(ideal, denominator(t, N)))
        reading &= Reading(float((o - settings.H)[inside].min()))
        if beyond.any():
            reading &= Reading(float(1 - M / ideal[beyond].min()))
        measured.append(f"N={N}, M={M}: {first_below(o, M, settings.H)}")
    return Outcome(
        {"(M, N)": grid(pairs), "H": settings.H, "MLP": "steps", "dtype": settings.dtype},
        f"M < t < T* (real MLP), and up to max(3 T*, 1500) with ideal recovery, t <= {settings.longest_run}; "
        "measured first failures: " + ", ".join(measured),
        reading,
        correction="for M < t < T* and N <= M - 1, M >= 3, not for all T > M",
    )


@claim("3.3-closed-form", HOLDS, "ours (theorem 3.3, eqs. 48-53)")
def closed_form(settings: Settings) -> Outcome:
    """D(t) = t; S(t-N) + (2N+1-t) e^-(t-N-1) + S(t-N-1); 2 S(N) + (t-2N) e^-N.

    D(t) against the matrices; the nearest wrong formula takes N + 1 for N.
    """
    windows = [settings.N] if settings.N is not None else [1, 2, 3, 4, 6, 9]
    reading = NOTHING
    for N in windows:
        t = np.arange(1, 6 * N + 60)
        measured = ideal_denominator(N, len(t), settings)
        reading &= Reading(deviation(measured, denominator(t, N + 1)), deviation(measured, denominator(t, N)))
    tested = "t = 1 .. 6N + 59, t <= N; N < t <= 2N; t >= 2N"
    return Outcome({"N": grid(windows), "dtype": settings.dtype}, tested, reading, unit="D, relative")


@claim("3.3-recovery", CORRECTED, "Theorem 3.3, eq. 44")
def recovered_position(settings: Settings) -> Outcome:
    """Every t > N recovers N + 1."""
    windows = [settings.N] if settings.N is not None else [2, 3, 4]
    reading, last_exact, latest = NOTHING, [last_recovered(N) for N in windows], ""
    for N, last in zip(windows, last_exact, strict=True):
        length = int(min(max(4 * last, 1000), settings.longest_run))
        position = woven_model(N + 2, N, settings.H, **settings.options(shape=ONE_HEAD)).recovered_position(length)
        exact = position[N : min(last, length)] - (N + 1)
        reading &= Reading(1.0, float(np.abs(exact).max()))
        if last < length:
            reading &= Reading(float(position[last] - (N + 1)))
        latest = f"N = {N}: position {position[-1]:.2f} at t = {length}"
    return Outcome(
        {"N": grid(windows)},
        f"last t with N + 1 exactly: {grid(last_exact)} = N + 1 + sqrt(A_(N+1) A_(N+2)) - A_(N+1); "
        f"t <= {settings.longest_run}",
        reading,
        unit="position",
        correction="only up to that t; later the position grows like ln t, which lowers D and helps",
        counterexample=latest,
    )


@claim("3.3-eq48", PRINTED, "Theorem 3.3, eq. 48")
def equation_48(settings: Settings) -> Outcome:
    """For t - i < N the score is tau - (t - i)."""
    N, t, i = 4, 6, 3
    options = settings.options(recovers=N + 1, shape=ONE_HEAD)
    name = "blocks.1.attn.hook_attn_scores"
    scores = woven_model(N + 2, N, settings.H, **options).captured(t, name)[name][0, t - 1].double().numpy()
    score = float(scores[i - 1] - scores[t - 1])  # the query itself has tau
    return Outcome(
        {"N": N},
        f"t = {t}, i = {i}",
        Reading(abs(score + (t - i)), abs(score + (t - N - 1))),
        unit="score",
        correction="it also needs i > N; for i <= N and N < t <= 2N the score is tau - (t - N - 1)",
        counterexample=f"t = {t}, i = {i}: score {score:+.0f} + tau, printed {-(t - i)} + tau",
    )


@claim("3.3-printed", PRINTED, "Theorem 3.3")
def not_for_ever(settings: Settings) -> Outcome:
    """o_T > H for all T > M."""
    margin, seen = math.inf, []
    ideal = [first_failure(M, N) for M, N in ((4, 2), (5, 3), (8, 2))]
    for N, M, t in ((2, 4, 100), (3, 5, 400), (2, 8, 1500)):
        excess = woven_head_output(M, N, t, Settings(dtype=settings.dtype))[t - 1] - 0.5
        margin = min(margin, -excess)
        seen.append(f"(N, M, t) = ({N}, {M}, {t}): o - H = {excess:.3f}")
    return Outcome(
        {"MLP": "steps", "K": 64},
        "three counterexamples",
        Reading(float(margin)),
        correction=f"M < t < T*; first failures by ideal recovery: {ideal}",
        counterexample="; ".join(seen),
    )


@claim("3.3-range", CORRECTED, "Theorem 3.3 ('the same weights')")
def range_of_positions(settings: Settings) -> Outcome:
    """Theorem 3.2's MLP, K >= M - 1 positions, serves the weave."""
    pairs, reading = settings.pairs((5, 4), (8, 2), (12, 11)), NOTHING
    for M, N in pairs:
        length = int(min(3 * extended_length(M, N) + M, settings.longest_run))
        t, options = np.arange(1, length + 1), settings.options(shape=ONE_HEAD)
        D = denominator(t, N)
        enough = woven_model(M, N, settings.H, recovers=N + 1, **options).head_output(length)
        inside = settings.sign_is_certain(M / D - 1) & (t > M) & (t < extended_length(M, N))
        reading &= Reading(float((enough - settings.H)[inside].min()), deviation(enough, M / D - 1 + settings.H))
    M, N = 5, 4
    distance = np.arange(7)[:, None] - np.arange(7)
    few = plain_model(M, settings.H, recovers=N, **settings.options(shape=ONE_HEAD))
    short = few.with_distances(np.where(distance < 0, -1, np.minimum(distance, N))).head_output(7) - settings.H
    return Outcome(
        {"(M, N)": grid(pairs), "K": "{N + 1, N}"},
        f"t < 3 T*, t <= {settings.longest_run}, K = N + 1; K = N at (M, N) = (5, 4)",
        Reading(min(reading.margin, -float(short[M])), reading.error),
        correction="K >= N + 1 is needed, and enough whatever M is",
        counterexample=f"(M, N, K) = (5, 4, 4), t = 6: o - H = {short[M]:.3f}",
    )


@claim("3.3-largest", PRINTED, "Theorem 3.3, proof, after eq. 50; the corollary's proof")
def largest_attention(settings: Settings) -> Outcome:
    """The attention on <bos> is the largest of all keys, so above 1/t, for every t > N."""
    reading, pairs = NOTHING, [(8, 2), (8, 3), (12, 5)]
    for M, N in pairs:
        length = 6 * N + M
        name = "blocks.1.attn.hook_pattern"
        options = settings.options(recovers=N + 1, shape=ONE_HEAD)
        pattern = woven_model(M, N, settings.H, **options).captured(length, name)[name][0].double().numpy()
        t = np.arange(1, length + 1)
        excess = pattern[:, 0] * t - 1
        ties = np.abs(pattern.diagonal() - pattern[:, 0]).max()
        reading &= Reading(float(excess[t > N + 1].min()), float(max(np.abs(excess[t <= N + 1]).max(), ties)))
    return Outcome(
        {"(M, N)": grid(pairs)},
        "t = 1 .. 6N + M, ideal recovery",
        reading,
        unit="t alpha_1 - 1",
        correction="for t > N + 1 it is above 1/t, but never alone: the query's own key gets as much",
        counterexample="t = N + 1: all N + 1 keys get 1/t",
    )


@claim("3.3-window", PRINTED, "Theorem 3.3 and its discussion")
def how_large_a_window(settings: Settings) -> Outcome:
    """The weave's window must be small, N << M."""
    windows, error = [12, 16] if settings.quick else [12, 16, 24, 64], 0.0
    reaches = [np.array([extended_length(M, N) for N in range(1, M - 2)]) for M in windows]
    factor = min(float((reach[1:] / reach[:-1]).min()) for reach in reaches)
    M, near, far, reached = 12, 2, 10, {}
    for N in (near, far):
        length = int(min(extended_length(M, N) - 1, settings.longest_run))
        D = ideal_denominator(N, length, settings)
        reached[N] = length if (D[M:] < M).all() else 0
        error = max(error, deviation(D, denominator(np.arange(1, length + 1), N)))
    return Outcome(
        {"M": grid(windows), "N": "1 .. M - 3"},
        f"T*(N + 1) / T*(N), least {factor:.2f}; built, M = {M}: o > H up to t = {reached[near]} "
        f"for N = {near}, {reached[far]} for N = {far}",
        Reading(min(factor - 1, float(reached[far] > reached[near]) - 0.5), error),
        unit="ratio",
        correction="T* grows like e^N for all N < M - 2: the larger the window, the further it reaches",
        counterexample=f"M = {M}: T* = {extended_length(M, near):.0f} for N = {near}, "
        f"{extended_length(M, far):.0f} for N = {far}",
    )
