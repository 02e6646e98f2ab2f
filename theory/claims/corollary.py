"""The corollary, Stair PE, and Mesa-Extrapolation itself, whose chunks it does not carry over to."""

from functools import lru_cache
from itertools import count
from typing import Any

import mpmath
import numpy as np

from mesa.methods.chunked import MIDDLES
from mesa.plan import distances
from theory import chunked
from theory.bounds import (
    denominator,
    extended_length,
    first_failure,
    ideal_position,
    stair_failure,
    stair_is_recovered,
)
from theory.claim import IDENTITY, ClaimVerdict, Measurement, Outcome, claim, deviation, first_below, grid
from theory.claims.settings import VerifyOptions
from theory.claims.theorem3 import ONE_HEAD, woven_head_output
from theory.model import Construction, mesa_model, stair_model
from theory.weave import stair


def exact_stair_model(M: int, N: int, E: int, length: int, settings: VerifyOptions) -> Construction:
    """The stair's construction with K >= W(T - 1) + 1 positions for T = `length`; log steps where matrices overflow."""
    K = max(M, int(stair(length - 1, N, E)) + 1)
    return stair_model(M, N, E, settings.H, **settings.wide_mlp(K, shape=ONE_HEAD))


@claim("corollary", ClaimVerdict.LENGTH, "Corollary (Mesa Extrapolation)")
def stair_extends(settings: VerifyOptions) -> Outcome:
    """With 3.2's weights and Stair PE, N << M, still o_T > H although T > M."""
    default = [(16, 4, 2), (12, 3, 3), (16, 4, 3), (16, 4, 5), (9, 2, 3)] + ([] if settings.quick else [(64, 8, 2)])
    triples, reading, failures = settings.triples(*default), IDENTITY, []
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
        failures.append(f"{(M, N, E)}: {first_below(o, M, settings.H) or f'none to {length}'}")
    return Outcome(
        {"K": "W(T-1) + 1 or more", "(M, N, E)": grid(triples), "H": settings.H, "dtype": settings.dtype},
        f"M < t < T*; where positions are recovered also success or failure at every t to 1.1 T*, "
        f"t <= {settings.longest_run}",
        reading,
        correction="for M < t < T*, which is 2N + e^(N (1 - 1/E)) (M - 2 S_E) where E divides N, and E >= 2 (1 is the "
        "plain encoding); the first failure lies in T* <= t < T* + E where positions are recovered",
        counterexample=f"first failures (with 3.2's own K = M - 1 sooner, corollary-range): {', '.join(failures)}",
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
    return next(E for E in count(2) if not stair_is_recovered(N, E + 1))


@claim("corollary-recovery", ClaimVerdict.HOLDS, "ours (corollary, proof)")
def recovery_condition(settings: VerifyOptions) -> Outcome:
    """Layer 1 recovers W(t - 1) + 1 at every t exactly where E - 1 <= (sqrt(e) - 1) e^(N + 1)."""
    windows, reading = [1, 2, 3], IDENTITY
    for N in windows:
        for E in (widest_stair(N), widest_stair(N) + 1):
            length = N + 12 * E
            position = exact_stair_model(N + 2, N, E, length, settings).recovered_position(length)
            error = float(np.abs(position - ideal_position(np.arange(1, length + 1), N, E)).max())
            reading &= Measurement(1.0, error) if stair_is_recovered(N, E) else Measurement(error)
    widths = grid([f"{widest_stair(N)} and {widest_stair(N) + 1}" for N in windows])
    return Outcome({"N": grid(windows), "E": widths}, "t = 1 .. N + 12 E", reading, unit="position")


@claim("corollary-range", ClaimVerdict.CORRECTED, "Corollary ('apply matrices from Theorem 3.2')")
def range_matters(settings: VerifyOptions) -> Outcome:
    """The matrices of theorem 3.2, whose MLP tells K = M - 1 positions apart, serve Stair PE."""
    triples, reading, lengths = [(64, 8, 2), (64, 16, 2), (16, 4, 3)], IDENTITY, []
    for M, N, E in triples:
        fails = stair_failure(M, N, E)
        options = settings.options(recovers=M - 1, shape=ONE_HEAD)
        o = stair_model(M, N, E, settings.H, **options).head_output(fails) - settings.H
        wide = exact_stair_model(M, N, E, fails, settings).head_output(fails) - settings.H
        reading &= Measurement(float(min(-o[-1], o[M:-1].min(), wide[M:].min())))
        lengths.append(f"{(M, N, E)}: {fails}, not {first_failure(M, N, E)}")
    return Outcome(
        {"K": "M - 1", "(M, N, E)": grid(triples)},
        "t = M + 1 .. the first failure",
        reading,
        correction="K >= W(T - 1) + 1, which grows like T / E",
        counterexample=f"first failures, soon after N + E(M - 1 - N), by (M, N, E): {'; '.join(lengths)}",
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


def exact_mesa_model(size: Size, middle: str, length: int, settings: VerifyOptions) -> Construction:
    """Mesa's construction with as many positions as `length` tokens take; log steps where matrices overflow."""
    K = max(size[0], int(stair(length - 1, *size[1:3])) + 1)
    chunks: dict[str, Any] = {"first": size[3], "last": size[4], "split_threshold": size[5], "middle": middle}
    return mesa_model(*size[:3], settings.H, **chunks, **settings.wide_mlp(K, shape=ONE_HEAD))


@lru_cache(maxsize=256)
def excess(size: Size, middle: str, prompt: int, settings: VerifyOptions) -> float:
    """o - H at the last token of a prompt, of the built transformer."""
    return float(exact_mesa_model(size, middle, prompt, settings).head_output(prompt)[-1] - settings.H)


def enclosed(exponents: np.ndarray) -> Any:
    """The sum of e^n over integer exponents n, as an interval (mpmath)."""
    interval: Any = mpmath.iv
    values, counts = np.unique(exponents, return_counts=True)
    return sum(int(count) * interval.exp(int(value)) for value, count in zip(values, counts, strict=True))


@claim("mesa-closed-form", ClaimVerdict.HOLDS, "ours (corollary; section 4.2)")
def closed_form(settings: VerifyOptions) -> Outcome:
    """Local middle chunks recover F + i - b, remapped ones the larger of it and W(i-1) + 1, and D(t) = sum of
    e^(W(t-1) + 1 - p_i - W(t-i)).

    Positions and D(t); the nearest wrong ones are those of the other kind of middle chunk.
    """
    reading = IDENTITY
    for size in SIZES:
        methods, prompt = {middle: chunked.mesa_method(*size, middle) for middle in MIDDLES}, 3 * size[0] + 1
        for middle, other in (MIDDLES, MIDDLES[::-1]):
            model = exact_mesa_model(size, middle, prompt, settings)
            position, D = model.recovered_position(prompt), 1 / model.bos_attention(prompt)[-1]
            expected, wrong = (chunked.mesa_position(methods[kind], prompt) for kind in (middle, other))
            value, mistake = (np.log(chunked.mesa_denominator(methods[kind], prompt)) for kind in (middle, other))
            reading &= Measurement(deviation(position, wrong), deviation(position, expected))
            reading &= Measurement(deviation(np.log(D), mistake), deviation(np.log(D), value))
    tested = "p_i at every i and ln D at the last token of T = 3 M + 1, three middle chunks at least"
    return Outcome({NAMES: grid(SIZES), "middle": grid(MIDDLES)}, tested, reading, unit="position, ln D; relative")


@claim("mesa", ClaimVerdict.LENGTH, "ours (the corollary is proved for Stair PE without chunks)")
def reach_of_chunks(settings: VerifyOptions) -> Outcome:
    """Mesa-Extrapolation, chunks and all, keeps o_T > H although T > M.

    It fails at every T whose last middle chunk begins after E ceil(F + ln M) tokens.
    """
    reading, lengths = IDENTITY, []
    for size in SIZES[: 4 if settings.quick else None]:
        M, method = size[0], chunked.mesa_method(*size)
        start = chunked.fails_from(method)
        held = max(T for T in range(M + 1, start) if chunked.mesa_denominator(method, T) < M)
        for T in (start, start + 1, 3 * M, 4 * M):
            reading &= Measurement(-excess(size, "local", T, settings))
        reading &= Measurement(excess(size, "local", held, settings))
        lengths.append(f"{held} / {start} / {first_failure(*size[:3])}")
    return Outcome(
        {NAMES: grid(SIZES[: 4 if settings.quick else None])},
        f"last T that holds / fails from T on / Stair PE's first failure: {', '.join(lengths)}",
        Measurement(reading.margin),
        correction="while its last middle chunk begins before about E (F + ln M) tokens, whatever N is",
    )


@claim("mesa-paper", ClaimVerdict.HOLDS, "ours (corollary; the appendix's constants)")
def papers_constants(settings: VerifyOptions) -> Outcome:
    """With the paper's constants Mesa holds at T = 8803 and fails at every T >= 8804."""
    method, M = chunked.mesa_method(*PAPER), PAPER[0]
    start = chunked.fails_from(method)
    most, least = np.ceil(chunked.mesa_exponents(method, start - 1)), np.floor(chunked.mesa_exponents(method, start))
    holds, fails = (M / enclosed(exponents) - 1 for exponents in (most, least))
    return Outcome(
        {NAMES: PAPER},
        f"o - H > {float(holds.a):.0f} and < {float(fails.b):.3f} there, interval arithmetic (mpmath); the "
        f"last middle chunk begins after {chunked.last_middle_chunk(method, start)} tokens, from there on never before "
        f"the {chunked.hopeless(method)} that suffice",
        Measurement(float(min(holds.a, -fails.b))),
    )


def woven_first_failure(size: Size) -> int:
    """The first T > M at which remapped middle chunks fail, by the closed form."""
    method, T = chunked.mesa_method(*size, "woven"), size[0] + 1
    while chunked.mesa_denominator(method, T) < size[0]:
        T += 1
    return T


@claim("mesa-woven", ClaimVerdict.HOLDS, "ours (corollary; mesa.MesaExtrapolation, middle='woven')")
def woven_chunks(settings: VerifyOptions) -> Outcome:
    """With remapped middle chunks, which see the same pairs, Mesa holds about as far as Stair PE does."""
    reading, sizes = IDENTITY, SIZES[: 4 if settings.quick else None]
    for size in sizes:
        M = size[0]
        local, woven = (chunked.mesa_method(*size, middle) for middle in MIDDLES)
        for T in (chunked.fails_from(local), 2 * M + 1, 4 * M):
            reading &= Measurement(
                o := excess(size, "woven", T, settings), max(0, M / (o + 1) / chunked.woven_bound(woven, T) - 1)
            )
        pairs = [int((distances(method.plan(3 * M)) >= 0).sum()) for method in (local, woven)]
        reading &= Measurement(1.0 - abs(pairs[0] - pairs[1]))
    ends = []
    for size in (SIZES[1], SIZES[3]):
        end = woven_first_failure(size)
        reading &= Measurement(min(excess(size, "woven", end - 1, settings), -excess(size, "woven", end, settings)))
        ends.append(f"{end} ({first_failure(*size[:3])})")
    return Outcome(
        {NAMES: grid(sizes)},
        f"T where local chunks fail, 2 M + 1, 4 M; first failures (Stair PE's) where near: {', '.join(ends)}; D <= "
        "D of Stair PE + 0.43 times its terms at the chunks' first tokens",
        reading,
    )


@claim("mesa-woven-paper", ClaimVerdict.HOLDS, "ours (corollary; the appendix's constants)")
def woven_papers_constants(settings: VerifyOptions) -> Outcome:
    """With the paper's constants and remapped middle chunks Mesa holds where the paper's chunks fail."""
    lengths, M = [8804, 12804, 16384, *([100000] if settings.full else [])], PAPER[0]
    method = chunked.mesa_method(*PAPER, "woven")
    most = [enclosed(np.ceil(chunked.mesa_exponents(method, T)).astype(int)) for T in lengths]
    reach = extended_length(*PAPER[:3])
    tested = f"D <= {max(float(bound.b) for bound in most):.4g}, interval arithmetic (mpmath), positions rounded down; "
    reading = Measurement(min(float((M / bound - 1).a) for bound in most))
    return Outcome({NAMES: PAPER, "T": grid(lengths)}, f"{tested}Stair PE's T* is {reach:.2g}", reading)
