"""Decoder-only transformers of the matrices passed, an oracle of the engine, and the theorems' constructions as such.

No layer norm, as in the proofs. The hook points (p: batch, t: position, d: model size): per layer L
`blocks.L.attn.hook_q/k/v/z` (p, t, head, head size), `blocks.L.attn.hook_attn_scores` and `hook_pattern` (p, head,
query, key), `blocks.L.attn.hook_out` (p, t, d; the heads' sum: its dimension POSITION is the theorems' o_t), and
`blocks.L.hook_out` (p, t, d).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from mesa import vml  # noqa: F401  for its effect
from mesa.errors import Refused
from mesa.plan import Plan, distances, token_index
from theory import parts, weave
from theory.bounds import check_window
from theory.chunked import mesa_method
from theory.parts import POSITION, Head
from theory.recovery import KINDS, Weights, check_range, log_steps, sharpness

Weave = Callable[[Any], Any]
"""Maps distances to effective distances; see theory.weave."""

Distances = Callable[[int], Tensor]
"""Effective distances (query, key) of n tokens, below 0 where a key is not seen."""


@dataclass(frozen=True)
class Encoding:
    """A position encoding: scores are q.k - slope * W(t - i); `weave` None drops the position term (NoPE).

    distances: take W's place where they are no function of t - i alone, or a key is not seen.
    """

    weave: Weave | None = None
    distances: Distances | None = None
    slope: float = 1.0

    def scores(self, q: Tensor, k: Tensor, distance: Tensor, effective: Tensor | None) -> Tensor:
        """Scores (batch, head, query, key) of q and k (batch, token, head, head size).

        distance: t - i, (query, key). effective: what stands in its place, None where nothing does.
        """
        scores = torch.einsum("pqnh,pknh->pnqk", q, k)
        return scores if effective is None else scores - self.slope * effective.to(scores.dtype)


ROWS = 128
"""Queries whose scores are made at a time unless hooks look at them: fresh memory for all costs more than the sums."""


def planned(plan: Callable[[int], Plan]) -> Distances:
    """Distances by the plan that `plan` makes for n tokens; both layers ask for the same ones."""
    return lru_cache(maxsize=1)(lambda length: torch.from_numpy(distances(plan(length))))


class Attention(nn.Module):
    """Heads under a position encoding, written out.

    logarithm: puts out the logarithm of what head 0 gives POSITION: the same pattern, values and W_O, evaluated where
    float64 would underflow.
    """

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor

    def __init__(self, heads: Sequence[Head], logarithm: bool) -> None:
        super().__init__()
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            stacked = np.stack([getattr(head, name) for head in heads])
            self.register_buffer(name, torch.from_numpy(stacked))
        self.logarithm = logarithm
        self.hook_q, self.hook_k, self.hook_v, self.hook_z = (HookPoint() for _ in range(4))
        self.hook_attn_scores, self.hook_pattern, self.hook_out = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Tensor, encoding: Encoding) -> Tensor:
        """The heads' sum (batch, position, model size) for the residual stream, of the same shape."""
        q = self.hook_q(torch.einsum("ptd,nhd->ptnh", resid, self.W_Q))
        k = self.hook_k(torch.einsum("ptd,nhd->ptnh", resid, self.W_K))
        v = self.hook_v(torch.einsum("ptd,nhd->ptnh", resid, self.W_V))
        length = resid.shape[1]
        rows = length if self.hook_attn_scores.has_hooks() or self.hook_pattern.has_hooks() else ROWS
        parts = [self._rows(q, k, v, encoding, begin, min(begin + rows, length)) for begin in range(0, length, rows)]
        z = self.hook_z(torch.cat([part for part, _ in parts], 1))
        result = torch.einsum("ptnh,ndh->ptnd", z, self.W_O)
        if self.logarithm:
            result[:, :, 0, POSITION] = torch.cat([logs for _, logs in parts], 1)
        return self.hook_out(result.sum(2))

    def _rows(self, q: Tensor, k: Tensor, v: Tensor, encoding: Encoding, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """What the queries from `begin` to `end` read (batch, query, head, head size), and `_log_output` if asked."""
        table = None if encoding.distances is None else encoding.distances(q.shape[1])[begin:end, :end]
        q, k, v = q[:, begin:end], k[:, :end], v[:, :end]
        scores = self.hook_attn_scores(_scores(q, k, encoding, table))
        pattern = self.hook_pattern(scores.softmax(-1))
        z = torch.einsum("pnqk,pknh->pqnh", pattern, v)
        return z, self._log_output(scores[:, 0], v[:, :, 0]) if self.logarithm else z

    def _log_output(self, scores: Tensor, v: Tensor) -> Tensor:
        """log of the sum of what each key's value adds to POSITION, times its weight (batch, position), by head 0."""
        return (scores.log_softmax(-1) + (v @ self.W_O[0, POSITION]).log()[:, None]).logsumexp(-1)


def _scores(q: Tensor, k: Tensor, encoding: Encoding, table: Tensor | None) -> Tensor:
    """Scores (batch, head, query, key) of the last queries, -inf where a key is not seen; table: distances."""
    index = torch.arange(k.shape[1])
    distance = index[len(index) - q.shape[1] :, None] - index
    effective = table
    if table is None and encoding.weave is not None:
        effective = encoding.weave(index.to(q.dtype))[distance.clamp(min=0)]
    unseen = distance < 0 if effective is None else (distance < 0) | (effective < 0)
    return encoding.scores(q, k, distance, effective).masked_fill(unseen, -torch.inf)


class MLP(nn.Module):
    """FF(h) = W_2 relu(W_1^T h), both matrices (model size, hidden units) as in the paper."""

    W_1: Tensor
    W_2: Tensor

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        for name, matrix in zip(("W_1", "W_2"), weights, strict=True):
            self.register_buffer(name, torch.from_numpy(matrix))

    def forward(self, resid: Tensor) -> Tensor:
        """What is added to the residual stream (batch, position, model size)."""
        return (resid @ self.W_1).relu() @ self.W_2.T


class LogSteps(nn.Module):
    """The step MLP where POSITION holds log x: z_k = -b expm1(log x - log c_k), no weight overflows."""

    log_c: Tensor

    def __init__(self, positions: int, slope: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("log_c", torch.from_numpy(log_steps(positions, slope)))
        self.b = sharpness(slope)

    def forward(self, resid: Tensor) -> Tensor:
        """Adds t - log x to POSITION, nothing elsewhere."""
        log_x = resid[..., POSITION, None]
        steps = (-self.b * torch.expm1(log_x - self.log_c)).clamp(0, 1)
        out = torch.zeros_like(resid)
        out[..., POSITION] = 1 + steps.sum(-1) - log_x[..., 0]
        return out


class Block(nn.Module):
    """A layer: attention by heads (the constructed one first), then an MLP or none, added to the residual stream."""

    def __init__(self, heads: Sequence[Head], mlp: Weights | LogSteps | None = None) -> None:
        super().__init__()
        self.attn = Attention(heads, logarithm=isinstance(mlp, LogSteps))
        self.mlp = MLP(mlp) if isinstance(mlp, tuple) else mlp
        self.hook_out = HookPoint()

    def forward(self, resid: Tensor, encoding: Encoding) -> Tensor:
        """The residual stream after this layer (batch, position, model size)."""
        resid = resid + self.attn(resid, encoding)
        if self.mlp is not None:
            resid = resid + torch.cat([self.mlp(part) for part in resid.split(ROWS, 1)], 1)
        return self.hook_out(resid)


def float_name(dtype: torch.dtype) -> str:
    """numpy's name of a dtype that constructions are made in; Refused for those that tell few positions or none."""
    names = {torch.float32: "float32", torch.float64: "float64"}
    if dtype not in names:
        raise Refused(f"dtype={dtype} is too coarse to tell positions; take torch.float64 or torch.float32")
    return names[dtype]


def random_tokens(vocabulary: int, length: int, seed: int = 0) -> Tensor:
    """`<bos>` and random tokens, (1, length). Raises Refused for a length below 1."""
    if length < 1:
        raise Refused(f"length={length} is below 1: <bos> is the first token; take length >= 1")
    tokens = torch.randint(1, vocabulary, (1, length), generator=torch.Generator().manual_seed(seed))
    tokens[:, 0] = 0
    return tokens


class Construction(HookedRootModule):
    """A transformer with the matrices passed, as in the proofs: no layer norm, token 0 is `<bos>`.

    `construction` makes one. `model.get_buffer("blocks.0.attn.W_Q")` (head, head size, model size) and the like can be
    printed; the module theory.model lists the hook points.

    Args:
        W_E: The embedding, (model size, vocabulary).
        layers: Blocks of attention and MLP.
        encoding: The position encoding.
        dtype: Default float64; float32 tells fewer positions.

    Examples:
        >>> model = theory.construction("nope", M=16)
        >>> model.head_output(20)[[7, 15, 19]].round(2).tolist()  # o_t at t = 8, 16, 20; H = 0.5 is met at M
        [1.5, 0.5, 0.3]
        >>> model.bos_attention(4).round(2).tolist()  # 1 / D(t)
        [1.0, 0.5, 0.33, 0.25]
    """

    W_E: Tensor

    def __init__(
        self, W_E: np.ndarray, layers: Sequence[Block], encoding: Encoding, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        self.register_buffer("W_E", torch.from_numpy(W_E))
        self.encoding = encoding
        self.blocks = nn.ModuleList(layers)
        self.to(dtype)
        self.setup()

    def forward(self, tokens: Tensor) -> Tensor:
        """The last residual stream (batch, position, model size) for token ids (batch, position)."""
        resid = self.W_E.T[tokens]
        for block in self.blocks:
            resid = block(resid, self.encoding)
        return resid

    def under(self, **changes: Any) -> Construction:
        """A copy with the same weights whose encoding is changed in these fields of `Encoding`."""
        other = copy.deepcopy(self)
        other.encoding = replace(self.encoding, **changes)
        return other

    def with_distances(self, distances: np.ndarray) -> Construction:
        """A copy whose attention has these effective distances (query, key), below 0 where a key is not seen.

        So remaps that are not a function of t - i alone, such as Mesa's chunks; for inputs of just this many tokens.
        """
        return self.under(distances=lambda _: torch.as_tensor(distances))

    @property
    def output_hook(self) -> str:
        """The hook point at which the theorems' o_t stands, in dimension POSITION."""
        return f"blocks.{len(self.blocks) - 1}.attn.hook_out"

    def tokens(self, length: int, seed: int = 0) -> Tensor:
        """`<bos>` and random tokens, (1, length)."""
        return random_tokens(self.W_E.shape[1], length, seed)

    def captured(self, length: int, *names: str, seed: int = 0) -> dict[str, Tensor]:
        """What the hook points `names` hold on random tokens, without the batch dimension."""
        _, cache = self.run_with_cache(self.tokens(length, seed), names_filter=list(names))
        return {name: cache[name][0] for name in names}

    def head_output(self, length: int, seed: int = 0) -> np.ndarray:
        """The theorems' head output o_t.

        Args:
            length: Tokens, `<bos>` among them.
            seed: Of the random tokens; default 0.

        Returns:
            o_t at t = 1 .. length, (length,), float64.
        """
        return self.captured(length, self.output_hook, seed=seed)[self.output_hook][:, POSITION].double().numpy()

    def bos_attention(self, length: int, seed: int = 0) -> np.ndarray:
        """The last layer's attention on `<bos>`, 1 / D(t).

        It is what head 0 reads where `<bos>` alone has a value, 1.

        Args:
            length: Tokens, `<bos>` among them.
            seed: Of the random tokens; default 0.

        Returns:
            alpha_1 at t = 1 .. length, (length,), float64.
        """
        part, captured = self.output_hook.removesuffix("hook_out"), []

        def mark(v: Tensor, hook: HookPoint) -> Tensor:
            marked = torch.zeros_like(v)
            marked[:, 0, 0, 0] = 1
            return marked

        hooks = [(f"{part}hook_v", mark), (f"{part}hook_z", lambda z, hook: captured.append(z[0, :, 0, 0]))]
        self.run_with_hooks(self.tokens(length, seed), fwd_hooks=hooks)
        return captured[0].double().numpy()

    def recovered_position(self, length: int, seed: int = 0) -> np.ndarray:
        """The position that layer 1 of a two-layer construction writes.

        Args:
            length: Tokens, `<bos>` among them.
            seed: Of the random tokens; default 0.

        Returns:
            Positions at t = 1 .. length, (length,), float64.
        """
        resid = self.blocks[0](self.W_E.T[self.tokens(length, seed)], self.encoding)
        return resid[0, :, POSITION].double().numpy()


# Theorems 3.1 to 3.3 and the corollary as models: one set of weights under a plain, a remapped and a stair encoding
# The builders of two layers take `plain_model`'s options and differ in the encoding alone; the same arguments give the
# same weights.


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
    theorem 3.1's average. Raises Refused for M < 2, H without digits, a slope that is not above 0, or more positions
    than the dtype can recover.

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
        parameters: Of the builder in theory.model: M, the length; N, the window; E, the width of a step; H, the
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
