"""Theorems 3.1 and 3.2 under rotary embedding: built Llamas through the shipped executors; what ALiBi has beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mesa.engine.plug import applied
from mesa.methods import DynamicNTK, Origin, ReRoPE, StairPE, YaRN
from mesa.methods.base import Method
from research.rotary_theory.llama import as_llama
from research.rotary_theory.rotary import READS, Rotary, ntk_factor, yarn_scale
from research.rotary_theory.rotary_model import FREE, Turning, inverse_frequencies, rotary_model, rotary_nope_model
from theory import weave
from theory.bounds import last_recovered
from theory.claim import IDENTITY, ClaimVerdict, Measurement, Outcome, claim, crossing, deviation, first_below, grid
from theory.claims.settings import VerifyOptions
from theory.model import Construction, random_tokens, woven_model
from theory.parts import CONST, POSITION, Shape


def measured(model: PreTrainedModel, method: Method, length: int, executor: str = "fused") -> tuple[np.ndarray, ...]:
    """Recovered positions and o_t at t = 1 .. length, float64: a Llama's last layer's input, its heads' output."""
    decoder: Any = model.get_decoder()
    outputs: list[Tensor] = []
    hook = decoder.layers[-1].self_attn.o_proj.register_forward_hook(lambda *args: outputs.append(args[-1]))
    with hook, torch.no_grad(), applied(model, method, executor=executor):
        tokens = random_tokens(model.config.vocab_size, length)
        inputs = decoder(tokens, use_cache=False, output_hidden_states=True).hidden_states[-2]
    return tuple(states[0, :, POSITION].double().numpy() for states in (inputs, outputs[0]))


class Size(NamedTuple):
    """M, N, E; K positions told apart, L tokens to a quarter turn, slope; the head's size, whose pair 1 is used."""

    M: int
    N: int
    E: int
    K: int
    L: int
    slope: float
    head: int = 4

    def rotary(self, reads: str) -> Rotary:
        """The closed forms' sizes."""
        turning: dict[str, Any] = {"quarter": self.L, "slope": self.slope, "pairs": self.head // 2, "pair": 1}
        return Rotary(M=self.M, reads=reads, recovers=self.K, **turning)

    def options(self, reads: str) -> dict[str, Any]:
        """The builder's, with one head."""
        sizes = {"M": self.M, "reads": reads, "recovers": self.K, "quarter": self.L, "slope": self.slope, "pair": 1}
        return {**sizes, "shape": Shape(model=FREE + 1, head=self.head, heads=1)}


SIZES = [
    Size(8, 2, 2, 8, 8, 0.5),
    Size(8, 3, 3, 8, 16, 1.0),
    Size(12, 4, 2, 12, 12, 0.4),
    Size(16, 4, 2, 16, 16, 0.5),
    Size(16, 4, 4, 24, 24, 0.4),
    Size(16, 8, 2, 16, 32, 0.25),
    Size(24, 6, 3, 24, 24, 0.3),
    Size(32, 8, 4, 32, 32, 0.25),
    Size(64, 16, 4, 64, 64, 0.15),
]
"""The first is small enough for arithmetic of 30 digits at every t."""

NAMES = "(M, N, E, K, L, slope, head)"

TRIED = {NAMES: grid([tuple(size) for size in SIZES])}
"""The sizes as a claim's parameters."""

LONGEST = 760
"""Tokens that a built model is run for here."""


def cases(settings: VerifyOptions) -> list[tuple[Size, str]]:
    """Every size, or the first four of a quick check, with both ways to read positions."""
    return [(size, reads) for size in SIZES[: 4 if settings.quick else None] for reads in READS]


def llama(size: Size, reads: str, settings: VerifyOptions, **more: Any) -> PreTrainedModel:
    """The built Llama, float64 unless `more` says otherwise."""
    return as_llama(rotary_model(H=settings.H, seed=settings.seed, **size.options(reads), **more), size.M)


def oracle(size: Size, reads: str, **more: Any) -> Construction:
    """The same weights as a `Construction`, with attention that does not use the shipped executors."""
    return rotary_model(**size.options(reads), **more)


def origin(M: int) -> Method:
    """As trained."""
    return Origin(trained_length=M)


def woven(M: int, N: int, E: int | None = None) -> Method:
    """The weave of theorem 3.3, or the corollary's where E is given."""
    if E is None:
        return ReRoPE(trained_length=M, window=N, log_n=False)
    return StairPE(trained_length=M, window=N, width=E, log_n=False)


def read_method(
    size: Size, reads: str, method: Method, length: int, settings: VerifyOptions, **more: Any
) -> tuple[int | None, Measurement]:
    """The first failure of the built model up to `length`; how clear it is, and how far all is from the closed form."""
    sizes, H = size.rotary(reads), settings.H
    p, o = measured(llama(size, reads, settings), method, length)
    closed_form = sizes.M / sizes.denominator(np.arange(1, length + 1), **more) - 1
    fails = first_below(o, size.M, H)
    before = (o - H)[size.M : (fails or length + 1) - 1]
    margin = min(before.min() if len(before) else math.inf, H - o[fails - 1] if fails else math.inf)
    error = max(deviation(o - H, closed_form), deviation(p, sizes.position(length, **more)))
    return fails, Measurement(float(margin) if fails == first_below(closed_form, size.M, 0.0) else -1.0, error)


def read_rotary(model: PreTrainedModel, sizes: Rotary, H: float, length: int) -> Measurement:
    """How well a Llama does what theorem 3.2 says: the crossing, o_t by the closed form, and the recovered t."""
    p, o = measured(model, origin(sizes.M), length)
    t = np.arange(1, length + 1)
    inside = t <= sizes.recovers
    error = deviation(o, sizes.M / sizes.denominator(t) - 1 + H)
    plain = deviation(o[inside], (sizes.M / t - 1 + H)[inside])
    return Measurement(crossing(o, sizes.M, H), max(error, plain, float(np.abs(p - t)[inside].max()) / sizes.M))


@claim("rotary", ClaimVerdict.HOLDS, "ours (theorem 3.2)")
def fails_beyond_M(settings: VerifyOptions) -> Outcome:
    """With rotary embedding alone, o_t = M/t - 1 + H up to K, and o_t < H for every t > M."""
    reading = IDENTITY
    for size, reads in cases(settings):
        model = llama(size, reads, settings, dtype=settings.torch_dtype)
        reading &= read_rotary(model, size.rotary(reads), settings.H, 6 * size.L + 1)
    tested = "t = 1 .. 6 L + 1, one and a half turns, by the fused executor"
    return Outcome({**TRIED, "reads": grid(READS), "dtype": settings.dtype}, tested, reading)


@claim("rotary-oracle", ClaimVerdict.HOLDS, "ours")
def agreement(settings: VerifyOptions) -> Outcome:
    """The shipped executors give what attention does that turns every pair by itself."""
    reading, methods = IDENTITY, {}
    for size, reads in [(SIZES[3], reads) for reads in READS] + [(SIZES[1]._replace(head=6), READS[0])]:
        M, N, E, pairs, length = size.M, size.N, size.E, size.head // 2, 50
        ntk = (4 * length / M - 3) ** (-np.arange(pairs) / (pairs - 1))
        yarn = {"factors": (1.0, *[1 / 4] * (pairs - 1)), "grown": yarn_scale(4)}
        methods: dict[str, tuple[Method, dict[str, Any]]] = {
            "origin": (origin(M), {}),
            "rerope": (woven(M, N), {"weave": partial(weave.rerope, window=N)}),
            "stair": (woven(M, N, E), {"weave": partial(weave.stair, window=N, width=E)}),
            "ntk": (DynamicNTK(trained_length=M, factor=4), {"factors": tuple(ntk)}),
            "yarn": (YaRN(trained_length=M, factor=4), yarn),
        }
        model = llama(size, reads, settings)
        built = oracle(size, reads, seed=settings.seed, H=settings.H)
        slow = {name: built.under(**options).head_output(length) for name, (_, options) in methods.items()}
        for name, (method, _) in methods.items():
            for executor in ("dense", "fused"):
                o = measured(model, method, length, executor)[1]
                others = min(deviation(o, slow[other]) for other in methods if other != name)
                reading &= Measurement(others, deviation(o, slow[name]))
    sizes = {"method": grid(list(methods)), "reads": grid(READS), "executor": "{dense, fused}"}
    return Outcome(sizes, "o_t at t = 1 .. 50; margin: the nearest other method's", reading)


@claim("rotary-4096", ClaimVerdict.HOLDS, "ours (theorem 3.2)")
def long_window(settings: VerifyOptions) -> Outcome:
    """A rotary head with keys of 0 recovers every position of a real model's window, in real matrices."""
    M = 4096 if settings.full else 1024
    size = Size(M, 8, 2, M, M, 0.02)
    p, o = measured(llama(size, "count", settings), origin(M), M + 64)
    t = np.arange(1, M + 65)
    inside = t <= M
    error = max(deviation(o[inside], (M / t - 1 + settings.H)[inside]), float(np.abs(p - t)[inside].max()) / M)
    reading = Measurement(crossing(o, M, settings.H), error)
    return Outcome({"M": M, "K": M}, f"t = 1 .. {M + 64}, by the fused executor", reading)


@claim("rotary-nope", ClaimVerdict.HOLDS, "ours (theorem 3.1)")
def no_method_mends_it(settings: VerifyOptions) -> Outcome:
    """Keys of 0 are turned into 0: o_t = M/t - 1 + H under every method, so that no weave mends it."""
    M, length = 16, 64
    model = as_llama(rotary_nope_model(M, settings.H, seed=settings.seed, shape=Shape(model=FREE + 1, heads=1)), M)
    methods = [origin(M), woven(M, 4), woven(M, 4, 2), DynamicNTK(trained_length=M), YaRN(trained_length=M)]
    expected = M / np.arange(1, length + 1) - 1 + settings.H
    reading = IDENTITY
    for method in methods:
        o = measured(model, method, length)[1]
        reading &= Measurement(crossing(o, M, settings.H), deviation(o, expected))
    return Outcome({"M": M, "method": grid([method.name for method in methods])}, f"t = 1 .. {length}", reading)


DIGITS = 30
_exp, _cos, _sin = (np.frompyfunc(function, 1, 1) for function in (mpmath.exp, mpmath.cos, mpmath.sin))


def precise_denominators(
    model: Construction, distance: np.ndarray, positions: Sequence[int], factor: float = 1.0, grown: float = 1.0
) -> np.ndarray:
    """D(t) at these positions, of the built matrices of head 0 and the MLP, with 30 digits (mpmath).

    distance: the effective ones of r = 0, 1, ...; factor: on the used pair's angle; grown: on scores.
    """
    matrices = {name: buffer.double().numpy().astype(object) for name, buffer in model.named_buffers()}
    size, length = matrices["blocks.1.attn.W_K"].shape[1], max(positions)
    pair = int(np.flatnonzero(model.get_buffer("blocks.1.attn.W_K")[0].any(1))[0])
    rows = [pair, pair + size // 2]
    assert isinstance(model.encoding, Turning)
    theta = mpmath.mpf(float(inverse_frequencies(model.encoding.base, size // 2)[pair])) * factor
    cos, sin = (function(theta * distance[:length].astype(object))[::-1] for function in (_cos, _sin))

    def scores(layer: int, stream: np.ndarray) -> np.ndarray:
        """The last query's scores: Re(conj(k) q e^(i angle)), growing with the key's position."""
        W_Q, W_K = (matrices[f"blocks.{layer}.attn.{name}"][0, rows] for name in ("W_Q", "W_K"))
        q, k = W_Q @ stream[-1], stream @ W_K.T
        along, across = k @ q, k[:, 0] * q[1] - k[:, 1] * q[0]
        return (along * cos[-len(k) :] - across * sin[-len(k) :]) * grown / mpmath.sqrt(size)

    stream = np.full((length, len(matrices["W_E"])), mpmath.mpf(0))
    stream[:, CONST] = mpmath.mpf(1)
    weights = _exp(scores(0, stream))[::-1]  # by distance: all keys are alike
    stream[:, POSITION] = weights / np.add.accumulate(weights)
    stream += np.maximum(stream @ matrices["blocks.0.mlp.W_1"], 0) @ matrices["blocks.0.mlp.W_2"].T
    rows_of_scores = [scores(1, stream[:t]) for t in positions]
    return np.array([_exp(row - row[0]).sum() for row in rows_of_scores])


@claim("rotary-exact", ClaimVerdict.HOLDS, "ours (theorem 3.2)")
def precise_crossing(settings: VerifyOptions) -> Outcome:
    """With 30 digits D(t) = t up to K but for what rounds in the weights, and D(t) > M for t > M."""
    size, reading = SIZES[0], IDENTITY
    length = (3 if settings.quick else 6) * size.L + 1
    t = np.arange(1, length + 1)
    for reads in READS:
        with mpmath.workdps(DIGITS):
            D = precise_denominators(oracle(size, reads), t - 1, t.tolist()).astype(float)
        margin = min((size.M - D)[t < size.M].min(), (D - size.M)[t > size.M].min())
        closed_form = size.rotary(reads).denominator(t)
        reading &= Measurement(float(margin), max(deviation(D, closed_form), float(np.abs(D - t)[: size.K].max())))
    tested = f"t = 1 .. {length}, the built matrices with {DIGITS} digits (mpmath)"
    return Outcome({NAMES: tuple(size), "reads": grid(READS)}, tested, reading, unit="D")


@claim("rotary-failures", ClaimVerdict.HOLDS, "ours")
def precise_failures(settings: VerifyOptions) -> Outcome:
    """With 30 digits the built matrices first fail where the closed forms do."""
    size, s, r, reading, failures = SIZES[0], 2, np.arange(120), IDENTITY, []
    for reads in READS:
        model, sizes = oracle(size, reads), size.rotary(reads)
        methods: dict[str, tuple[np.ndarray, Callable[[int], float], float]] = {
            "rerope": (weave.rerope(r, size.N), lambda n: 1.0, 1.0),
            "stair": (weave.stair(r, size.N, size.E), lambda n: 1.0, 1.0),
            "yarn": (r, lambda n: 1 / s, yarn_scale(s)),
            "ntk": (r, partial(ntk_factor, sizes, s), 1.0),
        }
        for name, (distance, factor, grown) in methods.items():
            woven = distance.__getitem__
            lengths = range(size.M, len(r))
            D = {n: float(sizes.denominator(np.array([n]), woven, factor(n), grown)[0]) for n in lengths}
            fails = next(n for n in lengths[1:] if D[n] >= size.M)
            for n, side in ((fails - 1, -1), (fails, 1)):
                with mpmath.workdps(DIGITS):
                    excess = precise_denominators(model, distance, [n], factor(n), grown)[0] - size.M
                reading &= Measurement(float(side * excess), abs(float(excess) + size.M - D[n]))
            failures.append(f"{name} {reads} {fails}")
    tested = f"the built matrices with {DIGITS} digits (mpmath) there and at the t before: {', '.join(failures)}"
    return Outcome({NAMES: tuple(size), "s": s, "reads": grid(READS)}, tested, reading, unit="D")


@claim("rotary-position", ClaimVerdict.LENGTH, "ours (theorem 3.2, proof, layer 1)")
def position_comes_back(settings: VerifyOptions) -> Outcome:
    """x_t falls in t, so the MLP can always recover t from it."""
    margin, counterexample = math.inf, ""
    for size in SIZES:
        sizes, length = size.rotary("rotation"), 5 * size.L
        p = measured(llama(size, "rotation", settings), origin(size.M), length)[0]
        right = np.abs(p - np.arange(1, length + 1))[: size.K].max()
        lowest = int(p[size.K :].argmin()) + size.K + 1
        margin = min(margin, (size.K - float(p[lowest - 1])) - 0.5, 0.5 - float(right))
        margin = min(margin, 0.5 - float(np.abs(p - sizes.position(length)).max()))
        counterexample = counterexample or f"{tuple(size)}: at t = {lowest} it reads {p[lowest - 1]:z.2f}"
    return Outcome(
        TRIED,
        "t = 1 .. 5 L",
        Measurement(margin),
        unit="position",
        correction="up to a quarter turn of the head's pair; a head whose scores are all alike reads 1 / t for ever",
        counterexample=counterexample,
    )


@claim("rotary-limit", ClaimVerdict.HOLDS, "ours (theorem 3.3)")
def alibi_is_a_limit(settings: VerifyOptions) -> Outcome:
    """A slow enough pair is ALiBi with one slope: |ln D - ln D of ALiBi| <= a (theta N)^3 / 3."""
    M, N, K, length = 16, 4, 64, last_recovered(4)
    alibi = woven_model(M, N, settings.H, recovers=K, shape=Shape(heads=1)).head_output(length)
    slow, fast = (Size(M, N, 2, K, L, 1.0) for L in (4096, K))
    apart = []
    for size in (slow, fast):
        o = measured(llama(size, "rotation", settings), woven(M, N), length)[1]
        apart.append(float(np.abs(np.log((o + 1 - settings.H) / (alibi + 1 - settings.H))).max()))
    sizes = slow.rotary("rotation")
    bound = sizes.amplitude * (sizes.theta * N) ** 3 / 3
    tested = f"t = 1 .. {length} under ReRoPE: {apart[0]:.1g} apart, bound {bound:.1g}; {apart[1]:.1g} for L = {K}"
    reading = Measurement(min(bound - apart[0], apart[1] - bound))
    return Outcome({"(M, N)": (M, N), "K": K, "L": slow.L}, tested, reading, unit="ln D")


@claim(
    "rotary-again",
    ClaimVerdict.CORRECTED,
    "ours (figure of observed thresholds ('a failure in extrapolation after that position'))",
)
def failure_comes_back(settings: VerifyOptions) -> Outcome:
    """Beyond the crossing the hidden state stays beyond it."""
    size, s, length = Size(16, 4, 2, 16, 16, 3.0), 2.0, 140
    sizes, method = size.rotary("count"), YaRN(trained_length=16, factor=s)
    o = measured(llama(size, "count", settings), method, length)[1] - settings.H
    closed_form = sizes.M / sizes.denominator(np.arange(1, length + 1), factor=1 / s, grown=yarn_scale(s)) - 1
    fails = first_below(o, size.M, 0.0)
    again = [t for t in range(fails or length, length + 1) if o[t - 1] > 0]
    between = o[(fails or 1) - 1 : (again[0] if again else length) - 1]
    margin = min(-between.max(), o[again[0] - 1 : again[-1]].min()) if again else -1.0
    return Outcome(
        {NAMES: tuple(size), "s": s},
        f"t = 1 .. {length} under YaRN, by count",
        Measurement(float(margin), deviation(o, closed_form)),
        correction="for a bias that grows with distance for ever, as ALiBi's; a rotary one comes round",
        counterexample=f"below H from t = {fails}, above it again at t = {grid(again)}",
    )
