"""Theorems 3.1 and 3.2: NoPE, and a plain relative encoding, fail beyond M."""

import math
from typing import Any

import mpmath
import numpy as np
import torch

from theory.claim import IDENTITY, ClaimVerdict, Measurement, Outcome, claim, crossing, deviation, grid
from theory.claims.settings import VerifyOptions
from theory.model import Construction, nope_model, plain_model
from theory.parts import CONST, POSITION, Shape
from theory.recovery import KINDS, longest, sharpness, worst_error


@claim("3.1", ClaimVerdict.HOLDS, "Theorem 3.1, eq. 21")
def nope_fails_beyond_M(settings: VerifyOptions) -> Outcome:
    """Without positions o_t = M/t - 1 + H: above H for t < M, below it for t > M, whatever W_Q is."""
    windows, reading = settings.windows(16, 64, 512), IDENTITY
    for M in windows:
        reference = M / np.arange(1, 2 * M + 1) - 1 + settings.H
        for seed in range(settings.seed, settings.seed + 3):
            o = nope_model(M, settings.H, seed=seed, dtype=settings.torch_dtype).head_output(2 * M, seed)
            reading &= Measurement(crossing(o, M, settings.H), deviation(o, reference))
    sizes = {"M": grid(windows), "H": settings.H, "dtype": settings.dtype, "seed": settings.seed}
    return Outcome(sizes, "t = 1 .. 2M, 3 seeds", reading)


@claim("3.1-head-size", ClaimVerdict.CORRECTED, "Theorem 3.1, proof ('for head dimensions h >= 1')")
def head_size_one(settings: VerifyOptions) -> Outcome:
    """The construction works for head sizes h >= 1."""
    M, H = 16, 0.5
    merged = nope_model(M, H, shape=Shape(head=1), seed=settings.seed, dtype=settings.torch_dtype)
    margin = crossing(merged.head_output(3 * M), M, H)
    merged.get_buffer("blocks.0.attn.W_V")[0, 0, CONST] = 0  # what is left of the printed W_V
    excess = float(merged.head_output(3 * M)[M] - H)
    return Outcome(
        {"M": M, "H": H, "h": 1},
        f"t = 1 .. {3 * M}",
        Measurement(min(margin, excess)),
        correction="the printed W_V needs h >= 2; its two rows merged into one, (H - 1, M, 0, ...), do for h = 1",
        counterexample=f"printed W_V at h = 1, t = M + 1: o - H = {excess:.3f} > 0",
    )


@claim("3.1-reading", ClaimVerdict.HOLDS, "ours (theorem 3.1, 'input sequence of length T + 1')")
def where_o_is_read(settings: VerifyOptions) -> Outcome:
    """o_T is the output at position T, <bos> at position 1: at the last of T + 1 tokens o = H where T = M - 1.

    Margin: what o is above H at t = M - 1 and below it at t = M + 1.
    """
    windows, reading = settings.windows(2, 16, 64, 512), IDENTITY
    for M in windows:
        o = nope_model(M, settings.H, seed=settings.seed, dtype=settings.torch_dtype).head_output(M + 1) - settings.H
        reading &= Measurement(float(min(o[M - 2], -o[M])), float(abs(o[M - 1])))
    inexact = sum(np.float64(1) / M * M != 1 for M in range(2, 4097))
    return Outcome(
        {"M": grid(windows), "H": settings.H, "dtype": settings.dtype},
        f"t = M - 1, M and M + 1 of the built models; at t = M no sign of o - H is asserted, for (1/M)*M != 1 in "
        f"float64 for {inexact} of the M up to 4096",
        reading,
    )


WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")


def read_plain(model: Construction, M: int, H: float, length: int, recovers: int) -> Measurement:
    """How well a construction does what theorem 3.2 says, and what its proof says: o_t and the recovered t.

    Mutated constructions must fail here. An error in the position counts in full, since the nearest mistake is 1.
    """
    o, t = model.head_output(length), np.arange(1, length + 1)
    exact = t <= recovers
    error = deviation(o[exact], (M / t - 1 + H)[exact])
    position = np.abs(model.recovered_position(length) - t)[exact].max()
    return Measurement(crossing(o, M, H), max(error, float(position) / M))


@claim("3.2", ClaimVerdict.HOLDS, "Theorem 3.2")
def plain_fails_beyond_M(settings: VerifyOptions) -> Outcome:
    """There are weights so that with scores q.k - (t - i) o_T > H for T < M and o_T < H for T > M.

    o_t = M/t - 1 + H.
    """
    windows, reading = settings.windows(16, 64, 512), IDENTITY
    for M in windows:
        options = settings.chosen_mlp(M)
        model = plain_model(M, settings.H, **options)
        reading &= read_plain(model, M, settings.H, 2 * M, options["recovers"])
    return Outcome(
        {"K": "max(M, 64)", "M": grid(windows), "H": settings.H, "MLP": "steps", "dtype": settings.dtype},
        "t = 1 .. 2M, the printed matrices with one entry moved (3.2-printed)",
        reading,
    )


@claim("3.2-range", ClaimVerdict.HOLDS, "ours (theorem 3.2, proof)")
def range_of_positions(settings: VerifyOptions) -> Outcome:
    """Recovering K >= M - 1 positions is enough for theorem 3.2, and K = M - 2 is not.

    K = M - 1 recovered positions are enough; with K = M - 2, D(M - 1) = M - 2 + e > M.
    """
    M, H = 16, settings.H
    enough = plain_model(M, H, recovers=M - 1, **settings.options()).head_output(4 * M)
    short = plain_model(M - 1, H, recovers=M - 2, **settings.options())
    denominator = 1 / short.bos_attention(4 * M)
    failing = float(denominator[M - 2] - M) / M
    reference = M - 2 + math.e
    reading = Measurement(min(crossing(enough, M, H), failing), abs(float(denominator[M - 2]) - reference) / reference)
    return Outcome({"K": grid([M - 1, M - 2]), "M": M, "H": H}, f"t = 1 .. {4 * M}", reading)


@claim("3.2-printed", ClaimVerdict.MISPRINT, "Theorem 3.2, proof, layer 2")
def printed_matrices(settings: VerifyOptions) -> Outcome:
    """Layer 2's W_Q, W_K as printed give q.k = tau + (t - i).

    Mended, the same numbers in the same places but one, o_t = M/t - 1 + H. Literally built, q.k = tau - t i:
    D(t) = sum of e^-(t-1)(i-1) stays near 1, so o never crosses H.
    """
    M, H = settings.windows(64)[0], settings.H
    options, length = settings.chosen_mlp(M), 2 * M
    models = [plain_model(M, H, printed=printed, **options) for printed in (True, False)]
    moved = [int(not torch.equal(*(model.get_buffer(f"blocks.1.attn.{name}") for model in models))) for name in WEIGHTS]
    entries = models[0].get_buffer("blocks.1.attn.W_Q") - models[1].get_buffer("blocks.1.attn.W_Q")
    printed, corrected = (model.head_output(length) for model in models)
    t = np.arange(2, M + 1)[:, None]
    denominator = np.exp(-(t - 1.0) * np.arange(M)).sum(1, where=np.arange(M) < t)
    known = np.arange(1, length + 1) <= options["recovers"]
    error = deviation(corrected[known], (M / np.arange(1, length + 1) - 1 + H)[known])
    lowest, is_one = float((printed - H).min()), moved == [1, 0, 0, 0] and int((entries != 0).sum()) == 2
    return Outcome(
        {"K": options["recovers"], "M": M, "H": H},
        f"t = 1 .. {length}; corrected, o_t is M/t - 1 + H within the error",
        Measurement(
            min(lowest, crossing(corrected, M, H), settings.rounding) if is_one else -1.0,
            max(error, deviation(printed[1:M], M / denominator - 1 + H)),
        ),
        correction="W_Q, row 3: the 1 moves from column 3 to column 1; then q.k = tau - i, which is tau + (t - i) but "
        "for a t that all keys of a query share and softmax drops",
        counterexample=f"q.k = tau - t i: least o - H over t is {lowest:.3f}; at t = M + 1 it is {printed[M] - H:.3f}",
    )


@claim("recovery", ClaimVerdict.HOLDS, "ours (theorem 3.2, proof)")
def recovery_ranges(settings: VerifyOptions) -> Outcome:
    """In floating point the MLP recovers t within the dtype's exponent range, if nothing cancels in it.

    Margin: what is left of half a position, beyond which another one is nearer. The naive sum fails as printed.
    """
    dtypes = "float32", "float64"
    table = {kind: {dtype: longest(kind, dtype) for dtype in dtypes} for kind in KINDS}
    table["log"] = dict.fromkeys(dtypes, 1024 if settings.quick else 4200)
    error = max(measured_error(kind, dtype, limit) for kind, row in table.items() for dtype, limit in row.items())
    short = worst_error("naive", "float64", table["naive"]["float64"] + 4)
    ranges = "; ".join(f"{kind} {row['float32']} / {row['float64']}" for kind, row in table.items())
    return Outcome(
        {"MLP": grid(list(table)), "dtype": "{float32, float64}"},
        f"largest T with every t <= T recovered to 0.01, float32 / float64: {ranges} (log: as far as "
        f"tried); naive, whose terms cancel, at T = {table['naive']['float64'] + 4}: {short:.2g} positions off",
        Measurement(min(0.5, short) - error, error),
        unit="position",
    )


def measured_error(kind: str, dtype: str, positions: int) -> float:
    """The worst position error of `kind` in the built transformer, in positions."""
    options: dict[str, Any] = {"recovers": positions, "recovery": kind, "dtype": getattr(torch, dtype)}
    model = plain_model(min(positions, 8), shape=Shape(heads=1), **options)
    return float(np.abs(model.recovered_position(positions) - np.arange(1, positions + 1)).max())


@claim("3.2-exact", ClaimVerdict.HOLDS, "Theorem 3.2, proof, layer 1")
def exact_recovery(settings: VerifyOptions) -> Outcome:
    """The MLP can always recover t from x_t = e^-(t-1)/S(t), in exact arithmetic."""
    K = 128 if settings.quick else 700
    interval: Any = mpmath.iv
    interval.dps = 30
    model = plain_model(8, recovers=K, shape=Shape(heads=1))
    W_1, W_2 = (model.get_buffer(f"blocks.0.mlp.{name}").numpy() for name in ("W_1", "W_2"))
    slack = Measurement(step_slack(W_1[[CONST, POSITION]], W_2[POSITION], interval))
    tested = f"all steps k < {K} of the built W_1 and W_2, interval arithmetic (mpmath)"
    return Outcome({"K": K, "b": sharpness()}, tested, slack, unit="step")


def step_slack(read: np.ndarray, written: np.ndarray, interval: Any) -> float:
    """By how much the least clear step of the MLP is 0 at x_k and 1 at x_(k+1), exactly; not positive where one is not.

    read: W_1's rows CONST and POSITION; written: W_2's row POSITION. Units: a constant 1, K - 1 that begin a step,
    K - 1 that end it, and one that takes x away.
    """
    (constant, *bias, no_bias), (flat, *gain, once) = read.tolist()
    steps = len(bias) // 2
    as_built = [constant, flat, no_bias, once, *written.tolist()] == [1, 0, 0, 1, 1, *[1] * steps, *[-1] * steps, -1]
    if not as_built or any(bias[k] - bias[k + steps] != 1 or gain[k] != gain[k + steps] for k in range(steps)):
        return -1.0
    slack, width = math.inf, interval.exp(1) - 1
    for k in range(1, steps + 1):
        at, following = (width / (interval.exp(t) - 1) for t in (k, k + 1))
        begins, ends = bias[k - 1] + gain[k - 1] * at, bias[k - 1 + steps] + gain[k - 1] * following
        slack = min(slack, float((-begins).a), float(ends.a))
    return slack
