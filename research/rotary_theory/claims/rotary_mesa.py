"""Mesa-Extrapolation in the rotary constructions: its chunks end it early, and weaving them mends one of two ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from mesa.methods.chunked import MIDDLES, MesaExtrapolation
from research.rotary_theory.chunks import chunk_denominator, chunk_position, chunks_fail_from
from research.rotary_theory.claims.rotary import LONGEST, SIZES, TRIED, Size, llama, measured
from research.rotary_theory.rotary import READS, fails_from
from theory.chunked import mesa_method, woven_distance
from theory.claim import IDENTITY, ClaimVerdict, Measurement, Outcome, claim, deviation, grid
from theory.claims.settings import VerifyOptions

CHUNKS = [(2, 2, 1), (2, 3, 1), (2, 4, 1), (2, 4, 1), (4, 4, 1), (2, 6, 2), (2, 6, 2), (4, 8, 3), (8, 16, 4)]
"""First chunk, last chunk and split_threshold, for each of SIZES."""

Case = tuple[Size, tuple[int, int, int], str]


def cases(settings: VerifyOptions) -> list[Case]:
    """Every size, or the first four of a quick check, with both ways to read positions."""
    sizes = list(zip(SIZES, CHUNKS, strict=True))[: 4 if settings.quick else None]
    return [(size, chunks, reads) for size, chunks in sizes for reads in READS]


def method_of(case: Case, middle: str) -> MesaExtrapolation:
    """Mesa with a case's sizes."""
    size, (first, last, split), _ = case
    return mesa_method(size.M, size.N, size.E, first, last, split, middle)


def excesses(case: Case, settings: VerifyOptions) -> Callable[[str, int], float]:
    """o - H at the last token of a prompt, by the middle chunks' kind and the prompt's length, of one built model."""
    model = llama(case[0], case[2], settings)
    return lambda middle, prompt: float(measured(model, method_of(case, middle), prompt)[1][-1]) - settings.H


def closed_form_excess(case: Case, middle: str, prompt: int) -> float:
    """The same by the closed form."""
    return case[0].M / chunk_denominator(case[0].rotary(case[2]), method_of(case, middle), prompt) - 1


def last_held(case: Case, middle: str, before: int) -> int:
    """The last T below `before` that holds by the closed form; M where none beyond M does."""
    return next((T for T in range(before - 1, case[0].M, -1) if closed_form_excess(case, middle, T) > 0), case[0].M)


@lru_cache
def certain(case: Case) -> tuple[int, int]:
    """Between which lengths the paper's chunks fail for certain."""
    return chunks_fail_from(case[0].rotary(case[2]), method_of(case, "local"), LONGEST)


@claim("rotary-mesa", ClaimVerdict.HOLDS, "ours (corollary; section 4.2)")
def closed_form(settings: VerifyOptions) -> Outcome:
    """By count middle chunks recover F + i - b, woven or not; by rotation woven ones recover more; D(T) = sum of
    e^(h(v + x) - h(v)), x = W(T-1) + 1 - p_i - W(T-i), v = p_T - 1 - W(T-1).

    Wrong positions beside: by rotation those of the other kind of chunk; by count those that go on counting.
    """
    reading = IDENTITY
    for case in cases(settings):
        size, _, reads = case
        T, model = 3 * size.M + 1, llama(size, reads, settings)
        for middle, other in (MIDDLES, MIDDLES[::-1]):
            sizes, method = size.rotary(reads), method_of(case, middle)
            position, o = measured(model, method, T)
            right = chunk_position(sizes, method, T)
            wrong = chunk_position(sizes, method_of(case, other), T) if reads == "rotation" else sizes.position(T)
            reading &= Measurement(deviation(position, wrong), deviation(position, right))
            expected = np.array([closed_form_excess(case, middle, T)])
            reading &= Measurement(math.inf, deviation(o[-1:] - settings.H, expected))
    tested = "p_i at every i and o at the end of T = 3 M + 1 tokens, both ways to read, both kinds of chunk"
    return Outcome({**TRIED, "(F, L, split)": grid(CHUNKS)}, tested, reading, unit="position, o; relative")


@claim("rotary-mesa-reach", ClaimVerdict.LENGTH, "ours (corollary)")
def reach_of_chunks(settings: VerifyOptions) -> Outcome:
    """Mesa-Extrapolation, chunks and all, keeps o_T > H although T > M, in a rotary model."""
    reading, lengths = IDENTITY, []
    for case in cases(settings):
        (start, end), excess = certain(case), excesses(case, settings)
        held = last_held(case, "local", start)
        for T in {start, end, *((start + 1, (start + end) // 2) if settings.full else ())}:
            reading &= Measurement(-(o := excess("local", T)), abs(o - closed_form_excess(case, "local", T)))
        if held > case[0].M:
            reading &= Measurement(excess("local", held))
        lengths.append(f"{case[0][:3]} {case[2]}: {held} / {start} to {end}")
    return Outcome(
        {**TRIED, "(F, L, split)": grid(CHUNKS), "reads": grid(READS)},
        "last T that holds / fails for certain, built at all of these: " + "; ".join(lengths),
        reading,
        correction="while the last middle chunk's keys get less than M times what <bos> gets: it begins after b, "
        "about h(b / E - F) < ln M + ln(1 - e^(-slope (1 - 1 / E)))",
        counterexample=f"(M, N, E) = {lengths[0]}",
    )


@claim("rotary-mesa-woven", ClaimVerdict.HOLDS, "ours (corollary; mesa.MesaExtrapolation, middle='woven')")
def woven_chunks(settings: VerifyOptions) -> Outcome:
    """Woven middle chunks carry a rotary Mesa beyond the paper's where layer 1 reads by rotation, and not at all where
    it counts."""
    reading, lengths = IDENTITY, []
    for case in cases(settings):
        (start, end), excess = certain(case), excesses(case, settings)
        local = last_held(case, "local", start)
        if case[2] == "count":
            for T in (local, start):
                same = [excess(middle, T) for middle in MIDDLES]
                reading &= Measurement(1.0, abs(same[0] - same[1]))
            continue
        latest = fails_from(case[0].rotary(case[2]), woven_distance(method_of(case, "woven"), np.arange(end)))
        woven = last_held(case, "woven", latest or end)
        reading &= Measurement(woven - local - 0.5)
        held, failed = (excess(middle, woven) for middle in ("woven", "local"))
        reading &= Measurement(min(held, -failed), abs(held - closed_form_excess(case, "woven", woven)))
        lengths.append(f"{case[0][:3]}: {woven} ({local})")
    tested = f"by rotation, last T that holds (with local chunks): {', '.join(lengths)}; by count o is the same"
    return Outcome({**TRIED, "(F, L, split)": grid(CHUNKS)}, tested, reading)
