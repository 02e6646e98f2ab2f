"""Decoder-only transformers with given matrices: the slow oracle of what `theory.build` gives to the engine.

No layer norm, as in the proofs. The hook points (p: batch, t: position, d: model size):
`hook_embed`; per layer L `blocks.L.hook_in`, `blocks.L.attn.hook_q/k/v/z` (p, t, head, head size),
`blocks.L.attn.hook_attn_scores` and `hook_pattern` (p, head, query, key), `blocks.L.attn.hook_result` (p, t, head, d),
`blocks.L.attn.hook_out` (p, t, d; the heads' sum: its dimension POSITION is the theorems' o_t),
`blocks.L.hook_resid_mid`, `blocks.L.mlp.hook_pre`, `hook_post`, `hook_out`, and `blocks.L.hook_out`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from mesa.plan import Plan, distances
from theory.parts import POSITION, Head
from theory.recovery import Weights, log_steps, sharpness
from theory.turned import Turns

Weave = Callable[[Any], Any]
"""Maps distances to effective distances; see mesa.weave."""

Distances = Callable[[int], Tensor]
"""Effective distances (query, key) of so many tokens, below 0 where a key is not seen."""


@dataclass(frozen=True)
class Layer:
    """What one layer is made of: heads (the constructed one first), and an MLP or none."""

    heads: Sequence[Head]
    mlp: Weights | LogSteps | None = None


def planned(plan: Callable[[int], Plan]) -> Distances:
    """Distances by the plan that `plan` makes for so many tokens; both layers ask for the same ones."""
    return lru_cache(maxsize=1)(lambda length: torch.from_numpy(distances(plan(length))))


class Attention(nn.Module):
    """Heads whose scores are q.k - slope * W(t - i); `weave` None drops the position term (NoPE).

    distances: take W's place where they are no function of t - i alone, or a key is not seen.

    turns: takes the place of `slope` and its bias: rotary embedding.

    logarithm: puts out the logarithm of what head 0 gives POSITION: the same pattern, values and W_O, evaluated where
    float64 would underflow.
    """

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor

    def __init__(
        self,
        heads: Sequence[Head],
        weave: Weave | None,
        slope: float,
        logarithm: bool,
        distances: Distances | None = None,
        turns: Turns | None = None,
    ) -> None:
        super().__init__()
        self.turns = turns
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            stacked = np.stack([getattr(head, name) for head in heads])
            self.register_buffer(name, torch.from_numpy(stacked))
        self.weave, self.slope, self.logarithm, self.distances = weave, slope, logarithm, distances
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result, self.hook_out = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Tensor) -> Tensor:
        """The heads' sum (batch, position, model size) for the residual stream, of the same shape."""
        q = self.hook_q(torch.einsum("ptd,nhd->ptnh", resid, self.W_Q))
        k = self.hook_k(torch.einsum("ptd,nhd->ptnh", resid, self.W_K))
        v = self.hook_v(torch.einsum("ptd,nhd->ptnh", resid, self.W_V))
        scores = self.hook_attn_scores(self._scored(q, k))
        pattern = self.hook_pattern(scores.softmax(-1))
        z = self.hook_z(torch.einsum("pnqk,pknh->pqnh", pattern, v))
        result = torch.einsum("ptnh,ndh->ptnd", z, self.W_O)
        if self.logarithm:
            result[:, :, 0, POSITION] = self._log_output(scores[:, 0], pattern[:, 0], v[:, :, 0])
        return self.hook_out(self.hook_result(result).sum(2))

    def _log_output(self, scores: Tensor, pattern: Tensor, v: Tensor) -> Tensor:
        """log of the sum of what each key's value adds to POSITION, times its weight (batch, position), by head 0.

        Weights are taken in logarithms where they are what softmax makes of the scores, so that none underflows.
        """
        logs = scores.log_softmax(-1)
        logs = torch.where(pattern == scores.softmax(-1), logs, pattern.log())
        return (logs + (v @ self.W_O[0, POSITION]).log()[:, None]).logsumexp(-1)

    def _scored(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores (batch, head, query, key), -inf where a key is not seen."""
        if self.turns is None:
            return self._positioned(torch.einsum("pqnh,pknh->pnqk", q, k))
        index = torch.arange(q.shape[1])
        distance = index[:, None] - index
        if self.distances is not None:
            effective = self.distances(q.shape[1])
        else:
            effective = distance if self.weave is None else self.weave(distance.clamp(min=0))
        scores = self.turns.scores(q, k, effective)
        return scores.masked_fill((distance < 0) | (effective < 0), -torch.inf)

    def _positioned(self, scores: Tensor) -> Tensor:
        """Scores with the position term, -inf above the diagonal, or where no distance is given."""
        if self.distances is not None:
            distances = self.distances(scores.shape[-1])
            placed = scores - self.slope * distances.to(scores.dtype)
            return placed.masked_fill(distances < 0, -torch.inf)
        index = torch.arange(scores.shape[-1])
        distance = index[:, None] - index
        if self.weave is not None:
            woven = self.weave(index.to(scores.dtype))  # integers times a float would be float32
            scores = scores - (self.slope * woven)[distance.clamp(min=0)]
        return scores.masked_fill(distance < 0, -torch.inf)


class MLP(nn.Module):
    """FF(h) = W_2 relu(W_1^T h), both matrices (model size, hidden units) as in the paper."""

    W_1: Tensor
    W_2: Tensor

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        for name, matrix in zip(("W_1", "W_2"), weights, strict=True):
            self.register_buffer(name, torch.from_numpy(matrix))
        self.hook_pre, self.hook_post, self.hook_out = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Tensor) -> Tensor:
        """What is added to the residual stream (batch, position, model size)."""
        hidden = self.hook_post(self.hook_pre(resid @ self.W_1).relu())
        return self.hook_out(hidden @ self.W_2.T)


class LogSteps(nn.Module):
    """The step MLP where POSITION holds log x: z_k = -b expm1(log x - log c_k), no weight overflows."""

    log_c: Tensor

    def __init__(self, positions: int, slope: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("log_c", torch.from_numpy(log_steps(positions, slope)))
        self.b = sharpness(slope)
        self.hook_pre, self.hook_post, self.hook_out = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Tensor) -> Tensor:
        """Adds t - log x to POSITION, nothing elsewhere."""
        log_x = resid[..., POSITION, None]
        steps = self.hook_post(self.hook_pre(-self.b * torch.expm1(log_x - self.log_c)).clamp(0, 1))
        out = torch.zeros_like(resid)
        out[..., POSITION] = 1 + steps.sum(-1) - log_x[..., 0]
        return self.hook_out(out)


class Block(nn.Module):
    """Attention, then the MLP, both added to the residual stream."""

    def __init__(
        self,
        layer: Layer,
        weave: Weave | None,
        slope: float,
        distances: Distances | None = None,
        turns: Turns | None = None,
    ) -> None:
        super().__init__()
        logarithm = isinstance(layer.mlp, LogSteps)
        self.attn = Attention(layer.heads, weave, slope, logarithm, distances, turns)
        self.mlp = MLP(layer.mlp) if isinstance(layer.mlp, tuple) else layer.mlp
        self.hook_in, self.hook_resid_mid, self.hook_out = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Tensor) -> Tensor:
        """The residual stream after this layer (batch, position, model size)."""
        resid = self.hook_in(resid)
        resid = self.hook_resid_mid(resid + self.attn(resid))
        return self.hook_out(resid if self.mlp is None else resid + self.mlp(resid))


class Construction(HookedRootModule):
    """A constructed transformer. Token 0 is <bos>; `tokens` start with it.

    `model.get_buffer("blocks.0.attn.W_Q")` (head, head size, model size) and so on can be printed; the hook points are
    listed at the module's head.
    """

    W_E: Tensor

    def __init__(
        self,
        W_E: np.ndarray,
        layers: Sequence[Layer],
        *,
        weave: Weave | None = None,
        distances: Distances | None = None,
        slope: float = 1.0,
        turns: Turns | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.register_buffer("W_E", torch.from_numpy(W_E))
        self.turns = turns
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList(Block(layer, weave, slope, distances, turns) for layer in layers)
        self.to(dtype)
        self.setup()

    def forward(self, tokens: Tensor) -> Tensor:
        """The last residual stream (batch, position, model size) for token ids (batch, position)."""
        resid = self.hook_embed(self.W_E.T[tokens])
        for block in self.blocks:
            resid = block(resid)
        return resid

    def given(self, distances: np.ndarray) -> Construction:
        """A copy whose attention has these effective distances (query, key), below 0 where a key is not seen.

        So weaves that are no function of t - i alone, such as Mesa's chunks; for inputs of just this many tokens.
        """
        other = copy.deepcopy(self)
        blocks: Any = other.blocks
        for block in blocks:
            block.attn.distances = lambda _: torch.as_tensor(distances)
        return other

    @property
    def output_hook(self) -> str:
        """The hook point at which the theorems' o_t stands, in dimension POSITION."""
        return f"blocks.{len(self.blocks) - 1}.attn.hook_out"

    def tokens(self, length: int, seed: int = 0) -> Tensor:
        """<bos> and random tokens, (1, length)."""
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(1, self.W_E.shape[1], (1, length), generator=generator)
        tokens[:, 0] = 0
        return tokens

    def captured(self, length: int, *names: str, seed: int = 0) -> dict[str, Tensor]:
        """What the hook points `names` hold on random tokens, without the batch dimension."""
        _, cache = self.run_with_cache(self.tokens(length, seed), names_filter=list(names))
        return {name: cache[name][0] for name in names}

    def head_output(self, length: int, seed: int = 0) -> np.ndarray:
        """o_t at t = 1 .. length (float64)."""
        return self.captured(length, self.output_hook, seed=seed)[self.output_hook][:, POSITION].double().numpy()

    def bos_attention(self, length: int, seed: int = 0) -> np.ndarray:
        """alpha_1 = 1 / D(t), the last layer's attention on <bos> at t = 1 .. length (float64)."""
        name = self.output_hook.replace("hook_out", "hook_pattern")
        return self.captured(length, name, seed=seed)[name][0, :, 0].double().numpy()

    def recovered_position(self, length: int, seed: int = 0) -> np.ndarray:
        """The position that layer 1 has written at t = 1 .. length (float64); a two-layer construction's."""
        return self.captured(length, "blocks.1.hook_in", seed=seed)["blocks.1.hook_in"][:, POSITION].double().numpy()
