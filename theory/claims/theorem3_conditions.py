"""What theorem 3.3 asks for, and what its proof says on the way: the MLP's range, the largest attention, a small N."""

from __future__ import annotations

import math

import numpy as np

from theory.bounds import denominator, extended_length
from theory.claims.base import NOTHING, Claim, Reading, Verdict, deviation, grid
from theory.claims.settings import Settings
from theory.claims.theorem3 import ONE_HEAD, ideal_denominator
from theory.weave import plain_model, woven_model


def range_of_positions(settings: Settings) -> Claim:
    """K = N + 1 is enough; with K = N, which theorem 3.2 does with for M = N + 1, o_(M+1) is below H."""
    pairs, reading = settings.pairs((5, 4), (8, 2), (12, 11)), NOTHING
    for M, N in pairs:
        length = int(min(3 * extended_length(M, N) + M, settings.longest_run))
        t, options = np.arange(1, length + 1), settings.options(shape=ONE_HEAD)
        D = denominator(t, N)
        enough = woven_model(M, N, settings.H, recovers=N + 1, **options).head_output(length)
        inside = settings.told(M / D - 1) & (t > M) & (t < extended_length(M, N))
        reading &= Reading(float((enough - settings.H)[inside].min()), deviation(enough, M / D - 1 + settings.H))
    M, N = 5, 4
    distance = np.arange(7)[:, None] - np.arange(7)
    few = plain_model(M, settings.H, recovers=N, **settings.options(shape=ONE_HEAD))
    short = few.given(np.where(distance < 0, -1, np.minimum(distance, N))).head_output(7) - settings.H
    return Claim(
        name="3.3-range",
        statement="Theorem 3.2's MLP, K >= M - 1 positions, serves the weave",
        citation="Theorem 3.3 ('the same weights')",
        parameters={"(M, N)": grid(pairs), "K": "{N + 1, N}"},
        tested=f"t < 3 T*, t <= {settings.longest_run}, K = N + 1; K = N at (M, N) = (5, 4)",
        expected=Verdict.CORRECTED,
        margin=min(reading.margin, -float(short[M])),
        error=reading.error,
        correction="K >= N + 1 is needed, and enough whatever M is",
        counterexample=f"(M, N, K) = (5, 4, 4), t = 6: o - H = {short[M]:.3f}",
    )


def largest_attention(settings: Settings) -> Claim:
    """alpha_1 = 1/t up to t = N + 1, and the query's own key always gets as much as <bos>."""
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
    return Claim(
        name="3.3-largest",
        statement="The attention on <bos> is the largest of all keys, so above 1/t, for every t > N",
        citation="Theorem 3.3, proof, after eq. 50; the corollary's proof",
        parameters={"(M, N)": grid(pairs)},
        tested="t = 1 .. 6N + M, ideal recovery",
        expected=Verdict.PRINTED,
        margin=reading.margin,
        error=reading.error,
        unit="t alpha_1 - 1",
        correction="for t > N + 1 it is above 1/t, but never alone: the query's own key gets as much",
        counterexample="t = N + 1: all N + 1 keys get 1/t",
    )


def how_large_a_window(settings: Settings) -> Claim:
    """T* grows with N up to its condition, N = M - 1: by e and more a step, once N is above 1."""
    windows, factor, error = [12, 16] if settings.quick else [12, 16, 24, 64], math.inf, 0.0
    for M in windows:
        reach = np.array([extended_length(M, N) for N in range(1, M - 2)])
        factor = min(factor, float((reach[1:] / reach[:-1]).min()))
    near, far, reached = 2, 10, {}
    M = 12
    for N in (near, far):
        length = int(min(extended_length(M, N) - 1, settings.longest_run))
        D = ideal_denominator(N, length, settings)
        reached[N] = length if (D[M:] < M).all() else 0
        error = max(error, deviation(D, denominator(np.arange(1, length + 1), N)))
    return Claim(
        name="3.3-window",
        statement="The weave's window must be small, N << M",
        citation="Theorem 3.3 and its discussion",
        parameters={"M": grid(windows), "N": "1 .. M - 3"},
        tested=f"T*(N + 1) / T*(N), least {factor:.2f}; built, M = {M}: o > H up to t = {reached[near]} "
        f"for N = {near}, {reached[far]} for N = {far}",
        expected=Verdict.PRINTED,
        margin=min(factor - 1, float(reached[far] > reached[near]) - 0.5),
        error=error,
        unit="ratio",
        correction="T* grows like e^N for all N < M - 2: the larger the window, the further it reaches",
        counterexample=f"M = {M}: T* = {extended_length(M, near):.0f} for N = {near}, "
        f"{extended_length(M, far):.0f} for N = {far}",
    )


CLAIMS = {
    "3.3-range": range_of_positions,
    "3.3-largest": largest_attention,
    "3.3-window": how_large_a_window,
}
