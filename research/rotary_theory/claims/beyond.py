"""Beyond the paper: other slopes, LLaMA2's window, and mutated constructions that the verification must notice."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor

from research.rotary_theory.rotary import leaky_rerope
from theory.bounds import bos_denominator, denominator, extended_length
from theory.claim import IDENTITY, ClaimVerdict, Measurement, Outcome, claim, crossing, deviation, first_below, grid
from theory.claims.settings import VerifyOptions
from theory.claims.theorem3 import ONE_HEAD, ideal_denominator
from theory.claims.without_remap import read_plain
from theory.model import Construction, plain_model, woven_model
from theory.parts import BOS, POSITION
from theory.weave import self_extend


@claim("slopes", ClaimVerdict.HOLDS, "ours (ALiBi's slopes; theorems 3.2 and 3.3 take 1)")
def other_slopes(settings: VerifyOptions) -> Outcome:
    """The same for additive encodings with slope m: x_t, D(t), T* = 2N + e^(mN) (M - 2 S_m(N))."""
    slopes, M, N, reading, reached = (2.0, 0.7, 0.5, 0.25, 0.0625), 16, 4, IDENTITY, []
    for slope in slopes:
        options = settings.options(slope=slope, shape=ONE_HEAD)
        if settings.dtype == "float32":
            options["recovers"] = 40  # at slope 2, what float32's exponents allow
        o = plain_model(M, settings.H, **options).head_output(M * 2)
        t = np.arange(1, M * 2 + 1)
        reading &= Measurement(crossing(o, M, settings.H), deviation(o, M / t - 1 + settings.H))
        reach = extended_length(M, N, slope=slope)
        length = int(min(1.5 * reach + 2 * M, settings.longest_run))
        t = np.arange(1, length + 1)
        ideal = ideal_denominator(N, length, settings, slope)
        reading &= Measurement(math.inf, deviation(ideal, denominator(t, N, slope=slope)))
        o = woven_model(M, N, settings.H, **options).head_output(length)
        inside = (t > M) & (t < reach)
        if inside.any():
            reading &= Measurement(float((o - settings.H)[inside].min()))
        reached.append(f"{slope:g}: {reach:z.1f}")
    tested = f"t = 1 .. 2M plain; to 1.5 T* woven; T* = {', '.join(reached)}"
    return Outcome({"m": grid(slopes), "(M, N)": (M, N)}, tested, reading)


def by_pairs(distances: np.ndarray, recovers: int) -> np.ndarray:
    """D(t), t = 1 .. T, of theorem 3.2's weights under any effective distances (T, T), summed pair by pair.

    1 / x_t is the sum of e^(W(t, 1) - W(t, i)); the MLP's steps are ramps of a sixteenth of their place; each key then
    adds e^(p_1 - p_i + W(t, 1) - W(t, i)).
    """
    seen = np.tril(np.ones_like(distances, dtype=bool))
    weights = np.where(seen, np.exp(distances[:, :1] - np.where(seen, distances, 0)), 0)
    A = bos_denominator(np.arange(1, recovers + 1))
    begins = 1 / np.sqrt(A[:-1] * A[1:])
    ramps = 16 * (1 - 1 / weights.sum(1)[:, None] / begins)
    position = 1 + np.clip(ramps, 0, 1).sum(1)
    return (weights * np.exp(1 - position)).sum(1)


@claim("other-weaves", ClaimVerdict.HOLDS, "ours (theorem 3.3 for the methods beside it)")
def other_weaves(settings: VerifyOptions) -> Outcome:
    """Leaky-ReRoPE and Self-Extend extend the window, too, as far as a sum over pairs says."""
    M, N, K, reading, failures = 16, 4, 64, IDENTITY, []
    length = 600 if settings.quick else 1200
    t = np.arange(length)
    away = np.maximum(t[:, None] - t, 0)
    weaves = {
        "Leaky-ReRoPE, k = 2": leaky_rerope(away, N, 2.0),
        "Leaky-ReRoPE, k = 16": leaky_rerope(away, N, 16.0),
        "Self-Extend, G = 2": np.maximum(self_extend(t[:, None], t, N, 2), 0),
    }
    model = plain_model(M, settings.H, **settings.options(recovers=K, shape=ONE_HEAD))
    for name, woven in weaves.items():
        D = by_pairs(woven.astype(float), K)
        excess = model.with_distances(np.where(t[:, None] < t, -1.0, woven)).head_output(length) - settings.H
        fails = first_below(excess, M, 0.0)
        held = excess[M : fails - 1 if fails else length]
        beyond = float(held.min()) if len(held) else -1.0
        ends = -float(excess[fails - 1]) if fails else math.inf
        reading &= Measurement(min(beyond, ends), deviation(excess, M / D - 1))
        failures.append(f"{name}: {fails or f'none up to {length}'}")
    tested = f"t = 1 .. {length}; first failures: {', '.join(failures)}"
    return Outcome({"(M, N)": (M, N), "K": K, "H": settings.H}, tested, reading)


@claim("M4096", ClaimVerdict.HOLDS, "ours (theorem 3.2)")
def llama2_window(settings: VerifyOptions) -> Outcome:
    """Theorem 3.2 at LLaMA2's window: o crosses H between 4095 and 4097."""
    M, length = 4096, 4200
    options = VerifyOptions(seed=settings.seed).options(recovers=length, recovery="log", shape=ONE_HEAD)
    o = plain_model(M, settings.H, **options).head_output(length)
    t = np.arange(1, length + 1)
    above, below = t[o > settings.H], t[o < settings.H]
    tested = f"t = 1 .. {length}; last above H: {above[-1]}, first below: {below[0]}"
    reading = Measurement(crossing(o, M, settings.H), deviation(o, M / t - 1 + settings.H))
    return Outcome({"M": M, "H": settings.H, "MLP": "log", "dtype": "float64"}, tested, reading)


MUTATIONS: dict[str, Callable[[Construction], Tensor]] = {
    "wrong sign of W_K": lambda model: model.get_buffer("blocks.1.attn.W_K")[0].mul_(-1),  # scores grow like t + i
    "one step of the MLP missing": lambda model: model.get_buffer("blocks.0.mlp.W_2")[POSITION, 8::63].zero_(),
    "positions shifted by one": lambda model: model.get_buffer("blocks.0.mlp.W_2")[POSITION, 0].add_(1),
    "M + 1 in W_V": lambda model: model.get_buffer("blocks.1.attn.W_V")[0, 0, BOS].add_(1),
}
"""Mistakes, each made in place in the construction of theorem 3.2; the printed W_K is one of the builders' options.

The step is that from 8 to 9, of 63 with two hidden units each. Shifted positions do not show in o, a difference's.
"""


def mutated(name: str, M: int, settings: VerifyOptions) -> Measurement:
    """What theorem 3.2's check reads off a mutated construction. `name` is in MUTATIONS or 'printed W_Q, W_K'."""
    printed = name not in MUTATIONS
    model = plain_model(M, settings.H, printed=printed, **settings.options())
    if not printed:
        MUTATIONS[name](model)
    return read_plain(model, M, settings.H, 2 * M, max(M, 64))


@claim("mutations", ClaimVerdict.HOLDS, "ours")
def mutations_are_noticed(settings: VerifyOptions) -> Outcome:
    """The check of theorem 3.2 notices each mistake put into its construction."""
    M, names = 16, [*MUTATIONS, "printed W_Q, W_K"]
    readings = {name: mutated(name, M, settings) for name in names}
    sound = read_plain(plain_model(M, settings.H, **settings.options()), M, settings.H, 2 * M, 64)
    missed = [name for name, reading in readings.items() if reading.holds]
    far = min(max(-reading.margin, reading.error) for reading in readings.values())
    reading = Measurement(-1.0 if missed or not sound.holds else far, sound.error)
    return Outcome({"M": M, "mutations": grid(names)}, f"t = 1 .. 2M; missed: {', '.join(missed) or 'none'}", reading)
