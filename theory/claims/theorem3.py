"""Theorem 3.3: a woven encoding extends the window to T*, not for ever."""

from __future__ import annotations

import math

import numpy as np

from theory.bounds import denominator, extended_length, first_failure, last_recovered
from theory.claims.base import NOTHING, Claim, Reading, Verdict, deviation, grid
from theory.claims.settings import Settings
from theory.parts import Shape
from theory.weave import woven_model

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


def weave_extends(settings: Settings) -> Claim:
    """M < t < T*: above H, by the real MLP and by ideal recovery; t > T*: below H by ideal recovery.

    Left out: t so near T* that the dtype cannot tell (none of these in float64).
    """
    pairs = settings.pairs((4, 2), (8, 2), (5, 3), (8, 3), (6, 4), (3, 1), (12, 11))
    reading, measured = NOTHING, {}
    for M, N in pairs:
        reach = extended_length(M, N)
        length = int(min(max(3 * reach, 1500), settings.longest_run))
        t, o = np.arange(1, length + 1), woven_head_output(M, N, length, settings)
        ideal = ideal_denominator(N, length, settings)
        told = settings.told(M / denominator(t, N) - 1)
        inside, beyond = told & (t > M) & (t < reach), told & (t > reach)
        reading &= Reading(float(M / ideal[inside].max() - 1), deviation(ideal, denominator(t, N)))
        reading &= Reading(float((o - settings.H)[inside].min()))
        if beyond.any():
            reading &= Reading(float(1 - M / ideal[beyond].min()))
        failing = t[(t > M) & (o <= settings.H)]
        measured[f"N={N}, M={M}"] = {"T*": reach, "first failure": int(failing[0]) if failing.size else None}
    return Claim(
        name="3.3",
        statement="The weave min(r, N) keeps o_t above H for M < t < T* = 2N + e^N (M - 2 S(N)), with 3.2's weights",
        citation="Theorem 3.3",
        parameters={"(M, N)": grid(pairs), "H": settings.H, "MLP": settings.recovery, "dtype": settings.dtype},
        tested=f"M < t < T* (real MLP), and up to max(3 T*, 1500) with ideal recovery, t <= {settings.longest_run}; "
        "measured first failures: " + ", ".join(f"{key}: {row['first failure']}" for key, row in measured.items()),
        expected=Verdict.CORRECTED,
        margin=reading.margin,
        error=reading.error,
        correction="for M < t < T* and N <= M - 1, M >= 3, not for all T > M",
        details={"measured": measured},
    )


def closed_form(settings: Settings) -> Claim:
    """D(t) against the matrices; the nearest wrong formula takes N + 1 for N."""
    windows = [settings.N] if settings.N is not None else [1, 2, 3, 4, 6, 9]
    margin, error = math.inf, 0.0
    for N in windows:
        t = np.arange(1, 6 * N + 60)
        measured = ideal_denominator(N, len(t), settings)
        error = max(error, deviation(measured, denominator(t, N)))
        margin = min(margin, deviation(measured, denominator(t, N + 1)))
    return Claim(
        name="3.3-closed-form",
        statement="D(t) = t; S(t-N) + (2N+1-t) e^-(t-N-1) + S(t-N-1); 2 S(N) + (t-2N) e^-N",
        citation="ours (theorem 3.3, eqs. 48-53)",
        parameters={"N": grid(windows), "dtype": settings.dtype},
        tested="t = 1 .. 6N + 59, t <= N; N < t <= 2N; t >= 2N",
        expected=Verdict.HOLDS,
        margin=margin,
        error=error,
        unit="D, relative",
    )


def recovered_position(settings: Settings) -> Claim:
    """The recovered position is N + 1 up to the closed form's last t, then larger: about ln t."""
    windows = [settings.N] if settings.N is not None else [2, 3, 4]
    reading, found, latest = NOTHING, [], ""
    for N in windows:
        last = last_recovered(N)
        length = int(min(max(4 * last, 1000), settings.longest_run))
        options = settings.options(shape=ONE_HEAD)
        position = woven_model(N + 2, N, settings.H, **options).recovered_position(length)
        exact = position[N : min(last, length)] - (N + 1)
        reading &= Reading(1.0, float(np.abs(exact).max()))
        if last < length:
            reading &= Reading(float(position[last] - (N + 1)))
        found.append(last)
        latest = f"N = {N}: position {position[-1]:.2f} at t = {length}"
    return Claim(
        name="3.3-recovery",
        statement="Every t > N recovers N + 1",
        citation="Theorem 3.3, eq. 44",
        parameters={"N": grid(windows)},
        tested=f"last t with N + 1 exactly: {grid(found)} = N + 1 + sqrt(A_(N+1) A_(N+2)) - A_(N+1); "
        f"t <= {settings.longest_run}",
        expected=Verdict.CORRECTED,
        margin=reading.margin,
        error=reading.error,
        unit="position",
        correction="only up to that t; later the position grows like ln t, which lowers D and helps",
        counterexample=latest,
    )


def equation_48(settings: Settings) -> Claim:
    """For N < t <= 2N and i <= N the score is tau - (t - N - 1), the printed tau - (t - i) holds for i > N."""
    N, t, i = 4, 6, 3
    options = settings.options(recovers=N + 1, shape=ONE_HEAD)
    name = "blocks.1.attn.hook_attn_scores"
    scores = woven_model(N + 2, N, settings.H, **options).captured(t, name)[name][0, t - 1].double().numpy()
    score = float(scores[i - 1] - scores[t - 1])  # the query itself has tau
    return Claim(
        name="3.3-eq48",
        statement="For t - i < N the score is tau - (t - i)",
        citation="Theorem 3.3, eq. 48",
        parameters={"N": N},
        tested=f"t = {t}, i = {i}",
        expected=Verdict.PRINTED,
        margin=abs(score + (t - i)),
        error=abs(score + (t - N - 1)),
        unit="score",
        correction="it also needs i > N; for i <= N and N < t <= 2N the score is tau - (t - N - 1)",
        counterexample=f"t = {t}, i = {i}: score {score:+.0f} + tau, printed {-(t - i)} + tau",
    )


def not_for_ever(settings: Settings) -> Claim:
    """Where the theorem's wording, all T > M, fails with the real MLP, K = 64."""
    margin, seen = math.inf, []
    ideal = [first_failure(M, N) for M, N in ((4, 2), (5, 3), (8, 2))]
    for N, M, t in ((2, 4, 100), (3, 5, 400), (2, 8, 1500)):
        excess = woven_head_output(M, N, t, Settings(dtype=settings.dtype))[t - 1] - 0.5
        margin = min(margin, -excess)
        seen.append(f"(N, M, t) = ({N}, {M}, {t}): o - H = {excess:.3f}")
    return Claim(
        name="3.3-printed",
        statement="o_T > H for all T > M",
        citation="Theorem 3.3",
        parameters={"MLP": "steps", "K": 64},
        tested="three counterexamples",
        expected=Verdict.PRINTED,
        margin=float(margin),
        correction=f"M < t < T*; first failures by ideal recovery: {ideal}",
        counterexample="; ".join(seen),
    )


CLAIMS = {
    "3.3": weave_extends,
    "3.3-closed-form": closed_form,
    "3.3-recovery": recovered_position,
    "3.3-eq48": equation_48,
    "3.3-printed": not_for_ever,
}
