"""Theorems 3.1 to 3.3 and the corollary as models: one set of weights under a plain, a remapped and a stair encoding.

The builders of two layers take `plain_model`'s options and differ in the encoding alone; the same arguments give the
same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from mesa.errors import Refused
from mesa.plan import token_index
from theory import parts, weave
from theory.bounds import check_window
from theory.chunked import mesa_method
from theory.model import Block, Construction, Encoding, LogSteps, float_name, planned
from theory.recovery import KINDS, check_range


def plain_model(
    M: int,
    H: float = 0.5,
    *,
    recovers: int | None = None,
    recovery: str = "steps",
    slope: float = 1.0,
    printed: bool = False,
    least: int | None = None,
    shape: parts.Shape | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Construction:
    """Theorem 3.2: o_t > H for t < M and o_t < H for t > M, with scores q.k - (t - i).

    Layer 1 turns its attention on <bos>, 1 / A_t, into t; layer 2 uses t to cancel the position term, which leaves
    theorem 3.1's average. Raises Refused for M < 2, H without digits, or more positions than the dtype can recover.

    recovers: K, how many positions the MLP tells apart, `least` or more (default: M, but not below 64).
    recovery: the position MLP: steps, interpolating, naive or log (see theory.recovery).
    slope: m in q.k - m * W(t - i), 1 in the paper. printed: leave layer 2's W_Q as the paper prints it.
    least: the positions that the theorem needs (default: M - 1). shape, seed, dtype: sizes, the free weights' random
    seed, and the precision that all is computed in.
    """
    shape, rng, precision = shape or parts.Shape(), np.random.default_rng(seed), float_name(dtype)
    parts.check_numbers(M, H, precision)
    recovers, least = max(M, 64) if recovers is None else recovers, M - 1 if least is None else least
    if recovers < least:
        raise Refused(f"recovers={recovers} positions are too few for M={M}; take recovers >= {least}")
    check_range(recovery, precision, recovers, slope)
    W_E = parts.embedding(shape, rng)
    mlp = LogSteps(recovers, slope) if recovery == "log" else KINDS[recovery](shape, recovers, slope)
    others = [[parts.free_head(shape, rng) for _ in range(shape.heads - 1)] for _ in range(2)]
    second = parts.crossing_head(shape, rng, M, H, slope, printed)
    layers = [Block([parts.bos_head(shape, rng), *others[0]], mlp), Block([second, *others[1]])]
    return Construction(W_E, layers, Encoding(token_index, slope=slope), dtype)


def woven_model(M: int, N: int, H: float = 0.5, **options: Any) -> Construction:
    """Theorem 3.3: the weights of `plain_model` with distances cut to N; o_t > H for M < t < T*(M, N).

    Distances from <bos> are N at most, so layer 1 recovers about N + 1 for every t > N, and layer 2 no longer cancels
    the position term: <bos> keeps more than 1 / t of the attention. See theory.bounds.extended_length for T*.
    Raises Refused as `plain_model`, and for N >= M.
    """
    check_window(M, N)
    return plain_model(M, H, least=N + 1, **options).under(weave=partial(weave.rerope, window=N))


def stair_model(M: int, N: int, E: int, H: float = 0.5, **options: Any) -> Construction:
    """The corollary: the weights of `plain_model` under Stair PE; o_t > H for M < t < T*(M, N, E).

    Layer 1 recovers W(t - 1) + 1 while that is at most `recovers`: for T* to hold, recovers >= W(T* - 1) + 1.
    Raises Refused as `plain_model`, and for N > M - 2 or E < 2.
    """
    check_window(M, N, E)
    return plain_model(M, H, **options).under(weave=partial(weave.stair, window=N, width=E))


def mesa_model(
    M: int,
    N: int,
    E: int,
    H: float = 0.5,
    *,
    first: int,
    last: int,
    split_threshold: int = 1,
    middle: str = "local",
    **options: Any,
) -> Construction:
    """The corollary for Mesa-Extrapolation itself: the weights of `plain_model` under its plan, chunks and all.

    o_t > H at the last token only while the last middle chunk begins before about E (first + ln M), if `middle` is
    'local' (the paper's); about as far as Stair PE if it is 'woven'. See theory.chunked. All tokens passed are the
    prompt. Raises Refused as `stair_model` and the method.
    """
    method = mesa_method(M, N, E, first, last, split_threshold, middle)
    return plain_model(M, H, **options).under(distances=planned(method.plan))


def nope_model(
    M: int, H: float = 0.5, *, shape: parts.Shape | None = None, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Construction:
    """One layer whose head output is o_t = M / t - 1 + H, without positions; W_Q and the free rows are random.

    So o_t > H for t < M and o_t < H for t > M. At t = M both are equal: nothing is claimed there. The paper's o_T is
    the output at position T, not at the last token (T + 1). Raises Refused for M < 2 and H without digits.
    """
    parts.check_numbers(M, H, float_name(dtype))
    shape, rng = shape or parts.Shape(), np.random.default_rng(seed)
    W_E = parts.embedding(shape, rng)
    heads = [parts.averaging_head(shape, rng, M, H), *(parts.free_head(shape, rng) for _ in range(shape.heads - 1))]
    return Construction(W_E, [Block(heads)], Encoding(), dtype)


_BUILDERS = (nope_model, plain_model, woven_model, stair_model, mesa_model)
BUILDERS: dict[str, Callable[..., Construction]] = {
    builder.__name__.removesuffix("_model"): builder for builder in _BUILDERS
}


def construction(name: str, **parameters: Any) -> Construction:
    """A theorem's transformer, by name.

    Args:
        name: 'nope' (theorem 3.1), 'plain' (3.2), 'woven' (3.3), 'stair' (the corollary) or 'mesa' (the corollary under
            Mesa's own plan, chunks and all).
        parameters: Of the builder in theory.constructions: M, the length; N, the window; E, the width of a step; H, the
            threshold, default 0.5. 'woven' takes M and N, 'stair' also E, 'mesa' also `first` and `last`.

    Returns:
        A `Construction`.

    Raises:
        Refused: The name is not known, or the theorem's conditions do not hold.

    Examples:
        >>> plain, remapped = theory.construction("plain", M=16), theory.construction("woven", M=16, N=4)
        >>> bool(plain.head_output(40)[-1] > 0.5), bool(remapped.head_output(40)[-1] > 0.5)
        (False, True)
    """
    if name not in BUILDERS:
        raise Refused(f"unknown construction {name!r}; known: {', '.join(BUILDERS)}")
    return BUILDERS[name](**parameters)
