"""Theorem 3.3: a remapped encoding extends the window to T*, not for ever."""

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from theory.bounds import denominator, extended_length, first_failure, last_recovered, step_failure
from theory.claim import IDENTITY, ClaimVerdict, Measurement, Outcome, claim, crossing, deviation, first_below, grid
from theory.claims.settings import VerifyOptions
from theory.model import Construction, plain_model, woven_model
from theory.parts import CONST, POSITION, Shape
from theory.recovery import log_denominator
from theory.weave import rerope

ONE_HEAD = Shape(heads=1)
"""Long inputs run without free heads, which cost as much as the constructed one; `3.1` and the tests have them."""


def ideal_model(M: int, N: int, settings: VerifyOptions, **more: Any) -> Construction:
    """A model that recovers ideally: an MLP that tells K = N + 1 positions apart rounds all later x to N + 1."""
    return woven_model(M, N, settings.H, **settings.options(recovers=N + 1, shape=ONE_HEAD, **more))


def ideal_denominator(N: int, length: int, settings: VerifyOptions, slope: float = 1.0) -> np.ndarray:
    """D(t) by ideal recovery; it does not depend on M, so we take the least that K = N + 1 serves."""
    return 1 / ideal_model(N + 2, N, settings, slope=slope).bos_attention(length)


def woven_head_output(M: int, N: int, length: int, settings: VerifyOptions) -> np.ndarray:
    """o_t of the weights of theorem 3.2 under the remap, t = 1 .. length."""
    return woven_model(M, N, settings.H, **settings.chosen_mlp(M, shape=ONE_HEAD)).head_output(length)


@claim("3.3", ClaimVerdict.LENGTH, "Theorem 3.3")
def weave_extends(settings: VerifyOptions) -> Outcome:
    """With 3.2's weights and the remap min(r, N), N << M, o_T > H when T > M.

    Left out: t so near T* that the dtype cannot tell (none of these in float64).
    """
    pairs = settings.pairs((8, 2), (12, 2), (16, 2), (12, 3), (16, 4))
    reading, measured = IDENTITY, []
    for M, N in pairs:
        reach = extended_length(M, N)
        length = int(min(max(3 * reach, 1500), settings.longest_run))
        t, o = np.arange(1, length + 1), woven_head_output(M, N, length, settings)
        ideal = ideal_denominator(N, length, settings)
        certain = settings.sign_is_certain(M / denominator(t, N) - 1)
        inside, beyond = certain & (t > M) & (t < reach), certain & (t > reach)
        reading &= Measurement(float(M / ideal[inside].max() - 1), deviation(ideal, denominator(t, N)))
        reading &= Measurement(float((o - settings.H)[inside].min()))
        if beyond.any():
            reading &= Measurement(float(1 - M / ideal[beyond].min()))
        measured.append(f"({M}, {N}): {first_below(o, M, settings.H) or step_failure(M, N) or 'none to 2e7'}")
    return Outcome(
        {"K": "max(M, 64)", "(M, N)": grid(pairs), "H": settings.H, "MLP": "steps", "dtype": settings.dtype},
        f"M < t < T* = 2N + e^N (M - 2 S(N)), to max(3 T*, 1500) with ideal recovery, t <= {settings.longest_run}",
        reading,
        correction="weights, once chosen, hold up to a length: it grows like e^(.6 M) with the step MLP (3.3-reach), "
        "and is T* where every t > N recovers N + 1, as the proof has it",
        counterexample="first failures by (M, N): " + ", ".join(measured),
    )


@claim("3.3-closed-form", ClaimVerdict.HOLDS, "ours (theorem 3.3, eqs. 48-53)")
def closed_form(settings: VerifyOptions) -> Outcome:
    """D(t) = t; S(t-N) + (2N+1-t) e^-(t-N-1) + S(t-N-1); 2 S(N) + (t-2N) e^-N.

    D(t) against the matrices; the nearest wrong formula takes N + 1 for N.
    """
    windows = [settings.N] if settings.N is not None else [1, 2, 3, 4, 6, 9]
    reading = IDENTITY
    for N in windows:
        t = np.arange(1, 6 * N + 60)
        measured = ideal_denominator(N, len(t), settings)
        reading &= Measurement(deviation(measured, denominator(t, N + 1)), deviation(measured, denominator(t, N)))
    tested = "t = 1 .. 6N + 59, t <= N; N < t <= 2N; t >= 2N"
    return Outcome({"N": grid(windows), "dtype": settings.dtype}, tested, reading, unit="D, relative")


@claim("3.3-recovery", ClaimVerdict.LENGTH, "Theorem 3.3, eq. 44")
def recovered_position(settings: VerifyOptions) -> Outcome:
    """Every t > N recovers N + 1."""
    windows = [settings.N] if settings.N is not None else [2, 3, 4]
    reading, last_exact, latest = IDENTITY, [last_recovered(N) for N in windows], ""
    for N, last in zip(windows, last_exact, strict=True):
        length = int(min(max(4 * last, 1000), settings.longest_run))
        position = woven_model(N + 2, N, settings.H, **settings.options(shape=ONE_HEAD)).recovered_position(length)
        exact = position[N : min(last, length)] - (N + 1)
        reading &= Measurement(1.0, float(np.abs(exact).max()))
        if last < length:
            reading &= Measurement(float(position[last] - (N + 1)))
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


@claim("3.3-eq48", ClaimVerdict.CORRECTED, "Theorem 3.3, eq. 48")
def equation_48(settings: VerifyOptions) -> Outcome:
    """For t - i < N the score is tau - (t - i)."""
    N, t, i = 4, 6, 3
    name = "blocks.1.attn.hook_attn_scores"
    scores = ideal_model(N + 2, N, settings).captured(t, name)[name][0, t - 1].double().numpy()
    score = float(scores[i - 1] - scores[t - 1])  # the query itself has tau
    return Outcome(
        {"N": N},
        f"t = {t}, i = {i}",
        Measurement(abs(score + (t - i)), abs(score + (t - N - 1))),
        unit="score",
        correction="for i > N; for i <= N and N < t <= 2N the score is tau - (t - N - 1)",
        counterexample=f"t = {t}, i = {i}: score {score:+.0f} + tau, printed {-(t - i)} + tau",
    )


@claim("3.3-reach", ClaimVerdict.HOLDS, "ours (theorem 3.3)")
def reach_of_the_steps(settings: VerifyOptions) -> Outcome:
    """With 3.2's own weights, K >= M - 1 and the step MLP, the first failure grows like e^(M / sqrt(e)), e^(.607 M).

    Margin: of the growth, to the nearest tenth, and of the built models' outputs around the first failure.
    """
    windows, N = [8, 12, 16, 20], 2
    fails, sharp = ([step_failure(M, N, M - 1, b) or 0 for M in windows] for b in (16.0, 1e9))
    growth = [math.log(later / earlier) / 4 for of in (fails, sharp) for earlier, later in pairwise(of)]
    reading = Measurement(0.05 - max(abs(rate - math.exp(-0.5)) for rate in growth))
    M, t = windows[0], fails[0]
    o = woven_model(M, N, settings.H, recovers=M - 1, shape=ONE_HEAD).head_output(t) - settings.H
    reading &= Measurement(float(min(o[M : t - 1].min(), -o[t - 1])) * M * t)
    return Outcome(
        {"K": "M - 1", "N": N, "M": grid(windows)},
        f"first failures {', '.join(map('{:,}'.format, fails))}; with steps as sharp as can be "
        f"{', '.join(map('{:,}'.format, sharp))}; by ideal recovery "
        f"{', '.join(str(first_failure(M, N)) for M in windows)}; built and run at the least M",
        reading,
        unit="growth per M",
    )


@claim("3.3-any-length", ClaimVerdict.HOLDS, "ours (theorem 3.3)")
def any_length(settings: VerifyOptions) -> Outcome:
    """For each length there are weights of 3.2 with which 3.3 holds up to it, and none hold for all T.

    Steps that begin right behind each x_k, K = M + 1 of them, and a last one to P: D stays below C, but for the
    keys that recover P, e^(1 - P) each. And for any weights p_t tends to the MLP's output at x = 0, so that D grows
    at least like t e^(1 - p).
    """
    K, N, M, P, length = 7, 2, 6, 60, 2500
    plain = plain_model(M, settings.H, **settings.options(recovers=K + 1, shape=ONE_HEAD))
    W_1, W_2 = (plain.get_buffer(f"blocks.0.mlp.{name}") for name in ("W_1", "W_2"))
    log_x, b = -log_denominator(np.arange(1.0, K + 2)), 1000.0
    gain = -b * np.exp(-0.95 * log_x[:-1] - 0.05 * log_x[1:])
    W_1[CONST, 1:-1] = torch.tensor([b, b - 1]).repeat_interleave(K)
    W_1[POSITION, 1:-1] = torch.from_numpy(np.tile(gain, 2))
    W_2[POSITION, [K, 2 * K]] *= P - K
    woven = plain.under(weave=partial(rerope, window=N))
    excess, p = woven.head_output(length)[M:] - settings.H, woven.recovered_position(length)
    C = M / (1 + float(excess.min()))
    reading = Measurement(
        min(float(excess.min()), crossing(plain.head_output(3 * M), M, settings.H)), abs(p[-1] - P) / P
    )
    reach = f"C = {C:.2f}, so for P = {P} to (M - C) e^(P - 1), {(M - C) * math.exp(P - 1):.0e} tokens"
    return Outcome({"K": K, "N": N, "M": M, "P": P}, f"3.2: t = 1 .. 3M; 3.3: t = M + 1 .. {length}; {reach}", reading)


@claim("3.3-range", ClaimVerdict.HOLDS, "ours (theorem 3.3)")
def range_of_positions(settings: VerifyOptions) -> Outcome:
    """For T* an MLP that tells K = N + 1 positions apart is enough, whatever M is, and K = N is not."""
    pairs, reading = settings.pairs((5, 4), (8, 2), (12, 11)), IDENTITY
    for M, N in pairs:
        length = int(min(3 * extended_length(M, N) + M, settings.longest_run))
        t, enough = np.arange(1, length + 1), ideal_model(M, N, settings).head_output(length)
        D = denominator(t, N)
        inside = settings.sign_is_certain(M / D - 1) & (t > M) & (t < extended_length(M, N))
        reading &= Measurement(float((enough - settings.H)[inside].min()), deviation(enough, M / D - 1 + settings.H))
    M, N = 5, 4
    distance = np.arange(7)[:, None] - np.arange(7)
    few = plain_model(M, settings.H, recovers=N, **settings.options(shape=ONE_HEAD))
    short = few.with_distances(np.where(distance < 0, -1, np.minimum(distance, N))).head_output(7) - settings.H
    return Outcome(
        {"K": "{N + 1, N}", "(M, N)": grid(pairs)},
        f"t < 3 T*, t <= {settings.longest_run}, K = N + 1; (K, N, M) = (4, 4, 5), t = 6: o - H = {short[M]:.3f}",
        Measurement(min(reading.margin, -float(short[M])), reading.error),
    )


@claim("3.3-largest", ClaimVerdict.CORRECTED, "Theorem 3.3, proof, after eq. 50; the corollary's proof")
def largest_attention(settings: VerifyOptions) -> Outcome:
    """The attention on <bos> is the largest of all keys, so above 1/t, for every t > N."""
    reading, pairs = IDENTITY, [(8, 2), (8, 3), (12, 5)]
    for M, N in pairs:
        length = 6 * N + M
        name = "blocks.1.attn.hook_pattern"
        pattern = ideal_model(M, N, settings).captured(length, name)[name][0].double().numpy()
        t = np.arange(1, length + 1)
        excess = pattern[:, 0] * t - 1
        ties = np.abs(pattern.diagonal() - pattern[:, 0]).max()
        reading &= Measurement(float(excess[t > N + 1].min()), float(max(np.abs(excess[t <= N + 1]).max(), ties)))
    return Outcome(
        {"(M, N)": grid(pairs)},
        "t = 1 .. 6N + M, ideal recovery",
        reading,
        unit="t alpha_1 - 1",
        correction="for t > N + 1; at t = N + 1 all keys get 1/t. The query's own key gets as much as <bos>",
    )


@claim("3.3-window", ClaimVerdict.HOLDS, "ours (theorem 3.3, N << M)")
def how_large_a_window(settings: VerifyOptions) -> Outcome:
    """N << M is more than is needed: T* grows like e^N for all N < M - 2.

    Margin: of the growth's logarithm, to the nearest tenth, and of the built models' reach.
    """
    windows, error = [12, 16] if settings.quick else [12, 16, 24, 64], 0.0
    reaches = [np.array([extended_length(M, N) for N in range(1, M - 2)]) for M in windows]
    factors = np.concatenate([reach[1:] / reach[:-1] for reach in reaches])
    rate = float(np.abs(np.log(factors) - 1).max())
    M, near, far, reached = 12, 2, 10, {}
    for N in (near, far):
        length = int(min(extended_length(M, N) - 1, settings.longest_run))
        D = ideal_denominator(N, length, settings)
        reached[N] = length if (D[M:] < M).all() else 0
        error = max(error, deviation(D, denominator(np.arange(1, length + 1), N)))
    return Outcome(
        {"M": grid(windows), "N": "1 .. M - 3"},
        f"T*(N + 1) / T*(N), {factors.min():.2f} to {factors.max():.2f}; built, M = {M}: o > H up to t = "
        f"{reached[near]} for N = {near}, {reached[far]} for N = {far}",
        Measurement(min(0.1 - rate, float(reached[far] > reached[near]) - 0.5), error),
        unit="growth per N",
    )
