"""Decoder-only transformers with given matrices: the slow oracle of what `theory.build` gives to the engine.

No layer norm, as in the proofs. The hook points (p: batch, t: position, d: model size):
`hook_embed`; per layer L `blocks.L.hook_in`, `blocks.L.attn.hook_q/k/v/z` (p, t, head, head size),
`blocks.L.attn.hook_attn_scores` and `hook_pattern` (p, head, query, key), `blocks.L.attn.hook_result` (p, t, head, d),
`blocks.L.attn.hook_out` (p, t, d; the heads' sum: its dimension POSITION is the theorems' o_t),
`blocks.L.hook_resid_mid`, `blocks.L.mlp.hook_pre`, `hook_post`, `hook_out`, and `blocks.L.hook_out`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from theory.attention import Attention, Encoding, parted
from theory.parts import POSITION, Head
from theory.recovery import Weights, log_steps, sharpness


@dataclass(frozen=True)
class Layer:
    """What one layer is made of: heads (the constructed one first), and an MLP or none."""

    heads: Sequence[Head]
    mlp: Weights | LogSteps | None = None


def float_name(dtype: torch.dtype) -> str:
    """numpy's name of a dtype that constructions are made in; ValueError for those that tell few positions or none."""
    names = {torch.float32: "float32", torch.float64: "float64"}
    if dtype not in names:
        raise ValueError(f"dtype={dtype} is too coarse to tell positions; take torch.float64 or torch.float32")
    return names[dtype]


def random_tokens(vocabulary: int, length: int, seed: int = 0) -> Tensor:
    """<bos> and random tokens, (1, length)."""
    tokens = torch.randint(1, vocabulary, (1, length), generator=torch.Generator().manual_seed(seed))
    tokens[:, 0] = 0
    return tokens


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

    def __init__(self, layer: Layer, encoding: Encoding) -> None:
        super().__init__()
        self.attn = Attention(layer.heads, encoding, logarithm=isinstance(layer.mlp, LogSteps))
        self.mlp = MLP(layer.mlp) if isinstance(layer.mlp, tuple) else layer.mlp
        self.hook_in, self.hook_resid_mid, self.hook_out = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Tensor) -> Tensor:
        """The residual stream after this layer (batch, position, model size)."""
        resid = self.hook_in(resid)
        resid = self.hook_resid_mid(resid + self.attn(resid))
        if self.mlp is None:
            return self.hook_out(resid)
        rows = parted(resid.shape[1], self.mlp.hook_pre, self.mlp.hook_post, self.mlp.hook_out)
        return self.hook_out(resid + torch.cat([self.mlp(part) for part in resid.split(rows, 1)], 1))


class Construction(HookedRootModule):
    """A constructed transformer. Token 0 is <bos>; `tokens` start with it.

    `model.get_buffer("blocks.0.attn.W_Q")` (head, head size, model size) and so on can be printed; the hook points are
    listed at the module's head.
    """

    W_E: Tensor

    def __init__(
        self, W_E: np.ndarray, layers: Sequence[Layer], encoding: Encoding, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        float_name(dtype)
        self.register_buffer("W_E", torch.from_numpy(W_E))
        self.encoding = encoding
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList(Block(layer, encoding) for layer in layers)
        self.to(dtype)
        self.setup()

    def forward(self, tokens: Tensor) -> Tensor:
        """The last residual stream (batch, position, model size) for token ids (batch, position)."""
        resid = self.hook_embed(self.W_E.T[tokens])
        for block in self.blocks:
            resid = block(resid)
        return resid

    def with_distances(self, distances: np.ndarray) -> Construction:
        """A copy whose attention has these effective distances (query, key), below 0 where a key is not seen.

        So weaves that are no function of t - i alone, such as Mesa's chunks; for inputs of just this many tokens.
        """
        other = copy.deepcopy(self)
        other.encoding = replace(self.encoding, distances=lambda _: torch.as_tensor(distances))
        blocks: Any = other.blocks
        for block in blocks:
            block.attn.encoding = other.encoding
        return other

    @property
    def output_hook(self) -> str:
        """The hook point at which the theorems' o_t stands, in dimension POSITION."""
        return f"blocks.{len(self.blocks) - 1}.attn.hook_out"

    def tokens(self, length: int, seed: int = 0) -> Tensor:
        """<bos> and random tokens, (1, length)."""
        return random_tokens(self.W_E.shape[1], length, seed)

    def captured(self, length: int, *names: str, seed: int = 0) -> dict[str, Tensor]:
        """What the hook points `names` hold on random tokens, without the batch dimension."""
        _, cache = self.run_with_cache(self.tokens(length, seed), names_filter=list(names))
        return {name: cache[name][0] for name in names}

    def head_output(self, length: int, seed: int = 0) -> np.ndarray:
        """o_t at t = 1 .. length (float64)."""
        return self.captured(length, self.output_hook, seed=seed)[self.output_hook][:, POSITION].double().numpy()

    def bos_attention(self, length: int, seed: int = 0) -> np.ndarray:
        """alpha_1 = 1 / D(t), the last layer's attention on <bos> at t = 1 .. length (float64).

        It is what head 0 reads where <bos> alone has a value, 1.
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
        """The position that layer 1 has written at t = 1 .. length (float64); a two-layer construction's."""
        return self.blocks[0](self.W_E.T[self.tokens(length, seed)])[0, :, POSITION].double().numpy()
