"""The corollary for Mesa-Extrapolation itself: its chunks end it early, and woven middle chunks mend that."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mpmath
import numpy as np

from mesa.methods.chunked import MIDDLES
from mesa.weave import stair
from theory.bounds import first_failure
from theory.chunked import (
    fails_from,
    hopeless,
    last_middle_chunk,
    mesa_denominator,
    mesa_exponents,
    mesa_method,
    mesa_position,
)
from theory.claims.base import NOTHING, Claim, Reading, Verdict, deviation, grid
from theory.claims.corollary import exact_stair_model
from theory.claims.settings import Settings
from theory.claims.theorem3 import ONE_HEAD
from theory.model import Construction
from theory.recovery import longest
from theory.weave import mesa_model

Size = tuple[int, int, int, int, int, int]
"""M, N, E, F, L and split_threshold."""

SIZES: list[Size] = [
    (64, 8, 2, 2, 8, 3),
    (16, 4, 2, 2, 4, 1),
    (32, 6, 2, 8, 8, 4),
    (12, 4, 3, 2, 4, 1),
    (32, 6, 3, 4, 8, 2),
    (24, 4, 4, 6, 6, 3),
    (40, 5, 4, 6, 10, 5),
    (24, 6, 4, 4, 6, 3),
]
"""The first is the example in every text."""

PAPER: Size = (4096, 512, 50, 100, 512, 200)
"""The paper's constants."""

NAMES = "(M, N, E, F, L, split)"


def exact_mesa_model(size: Size, middle: str, length: int, settings: Settings) -> Construction:
    """Mesa's construction with as many positions as `length` tokens take; log steps where matrices overflow."""
    M, N, E, first, last, threshold = size
    K = max(M, int(stair(length - 1, N, E)) + 1)
    fits = settings.recovery != "log" and longest("steps", settings.dtype) >= K
    options = settings.options(recovers=K, recovery="steps" if fits else "log", shape=ONE_HEAD)
    where: dict[str, Any] = {"first": first, "last": last, "split_threshold": threshold, "middle": middle}
    return mesa_model(M, N, E, settings.H, **where, **options)


@lru_cache(maxsize=256)
def excess(size: Size, middle: str, prompt: int, settings: Settings) -> float:
    """o - H at the last token of a prompt, of the built transformer."""
    return float(exact_mesa_model(size, middle, prompt, settings).head_output(prompt)[-1] - settings.H)


def enclosed(exponents: np.ndarray) -> Any:
    """The sum of e^n over whole exponents n, as an interval (mpmath)."""
    interval: Any = mpmath.iv
    values, counts = np.unique(exponents, return_counts=True)
    return sum(int(count) * interval.exp(int(value)) for value, count in zip(values, counts, strict=True))


def not_beyond_its_chunks(settings: Settings) -> Claim:
    """At one and the same length the chunks fail and Stair PE without chunks holds."""
    size, prompt = SIZES[0], 80
    M, N, E = size[:3]
    chunked = excess(size, "local", prompt, settings)
    whole = float(exact_stair_model(M, N, E, prompt, settings).head_output(prompt)[-1] - settings.H)
    return Claim(
        name="mesa",
        statement="Mesa-Extrapolation, chunks and all, keeps o_T > H although T > M",
        citation="Corollary (Mesa Extrapolation)",
        parameters={NAMES: size},
        tested=f"T = {prompt}, and Stair PE without chunks there",
        expected=Verdict.PRINTED,
        margin=min(-chunked, whole),
        correction="only while its last middle chunk begins before about E (F + ln M) tokens: see mesa-reach",
        counterexample=f"T = {prompt}: o - H = {chunked:.4f}, without chunks {whole:+.2f}",
    )


def closed_form(settings: Settings) -> Claim:
    """Positions and D(t); the nearest wrong ones are those of the other kind of middle chunk."""
    reading = NOTHING
    for size in SIZES:
        made = {middle: mesa_method(*size, middle) for middle in MIDDLES}
        prompt = 3 * size[0] + 1
        for middle, other in (MIDDLES, MIDDLES[::-1]):
            model = exact_mesa_model(size, middle, prompt, settings)
            position, D = model.recovered_position(prompt), 1 / model.bos_attention(prompt)[-1]
            told, wrong = (mesa_position(made[kind], prompt, prompt) for kind in (middle, other))
            value, mistake = (np.log(mesa_denominator(made[kind], prompt)) for kind in (middle, other))
            reading &= Reading(deviation(position, wrong), deviation(position, told))
            reading &= Reading(deviation(np.log(D), mistake), deviation(np.log(D), value))
    return Claim(
        name="mesa-closed-form",
        statement="Local middle chunks recover F + i - b, woven ones the larger of it and W(i-1) + 1, and "
        "D(t) = sum of e^(W(t-1) + 1 - p_i - W(t-i))",
        citation="ours (corollary; section 4.2)",
        parameters={NAMES: grid(SIZES), "middle": grid(MIDDLES)},
        tested="p_i at every i and ln D at the last token of T = 3 M + 1, three middle chunks at least",
        expected=Verdict.HOLDS,
        margin=reading.margin,
        error=reading.error,
        unit="position, ln D; relative",
    )


def reach_of_chunks(settings: Settings) -> Claim:
    """Below H from the length on that the chunks' borders give; above H at the last length before that holds."""
    reading, found = NOTHING, []
    for size in SIZES[: 4 if settings.quick else None]:
        M, method = size[0], mesa_method(*size)
        start = fails_from(method)
        held = max(T for T in range(M + 1, start) if mesa_denominator(method, T) < M)
        for T in (start, start + 1, 3 * M, 4 * M):
            reading &= Reading(-excess(size, "local", T, settings))
        reading &= Reading(excess(size, "local", held, settings))
        found.append(f"{held} / {start} / {first_failure(*size[:3])}")
    return Claim(
        name="mesa-reach",
        statement="Mesa fails at every T whose last middle chunk begins after E ceil(F + ln M) tokens, whatever N is",
        citation="ours (corollary)",
        parameters={NAMES: grid(SIZES[: 4 if settings.quick else None])},
        tested=f"last T that holds / fails from T on / Stair PE's first failure: {', '.join(found)}",
        expected=Verdict.CORRECTED,
        margin=reading.margin,
        correction="M < T and the last middle chunk begins before about E (F + ln M)",
    )


def papers_constants(settings: Settings) -> Claim:
    """Too long to be built: the closed form's sum in interval arithmetic."""
    method, M = mesa_method(*PAPER), PAPER[0]
    start = fails_from(method)
    most, least = np.ceil(mesa_exponents(method, start - 1)), np.floor(mesa_exponents(method, start))
    holds, fails = (M / enclosed(exponents) - 1 for exponents in (most, least))
    return Claim(
        name="mesa-paper",
        statement=f"With the paper's constants Mesa holds at T = {start - 1} and fails at every T >= {start}",
        citation="ours (corollary; the appendix's constants)",
        parameters={NAMES: PAPER},
        tested=f"o - H > {float(holds.a):.0f} and < {float(fails.b):.3f} there, interval arithmetic (mpmath); the "
        f"last middle chunk begins after {last_middle_chunk(method, start)} tokens, from there on never before the "
        f"{hopeless(method)} that suffice",
        expected=Verdict.HOLDS,
        margin=float(min(holds.a, -fails.b)),
    )


CLAIMS = {
    "mesa": not_beyond_its_chunks,
    "mesa-closed-form": closed_form,
    "mesa-reach": reach_of_chunks,
    "mesa-paper": papers_constants,
}
