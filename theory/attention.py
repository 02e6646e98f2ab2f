"""Scores under rotary embedding, pair by pair: every distance's rotation is made by itself. Slow, and the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mesa.constructed import inverse_frequencies
from mesa.plan import Plan, distances
from theory.parts import POSITION, Head


@dataclass(frozen=True)
class Turns:
    """How a construction's pairs turn: by `base`, times a method's factors on each pair's angle and one on scores."""

    base: float
    factors: tuple[float, ...] | None = None
    grown: float = 1.0

    def scores(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        """Scores (batch, head, query, key); arguments as for `turned_scores`."""
        angles = inverse_frequencies(self.base, q.shape[-1] // 2)
        angles = angles if self.factors is None else angles * np.array(self.factors)
        return self.grown * turned_scores(q, k, distance, torch.from_numpy(angles))


def turned_scores(q: Tensor, k: Tensor, distance: Tensor, angles: Tensor) -> Tensor:
    """q.R(angle * distance)k / sqrt(head size), (batch, head, query, key).

    q, k: (batch, token, head, head size), whose halves hold the pairs' two coordinates. distance: (query, key).
    angles: a token's, by pair.
    """
    half = q.shape[-1] // 2
    turn = distance.to(angles.dtype)[..., None] * angles
    q1, q2, k1, k2 = q[..., :half], q[..., half:], k[..., :half], k[..., half:]
    along = torch.einsum("ptnh,pknh->pntkh", q1, k1) + torch.einsum("ptnh,pknh->pntkh", q2, k2)
    across = torch.einsum("ptnh,pknh->pntkh", q1, k2) - torch.einsum("ptnh,pknh->pntkh", q2, k1)
    return (along * turn.cos() + across * turn.sin()).sum(-1).to(q.dtype) / q.shape[-1] ** 0.5


Weave = Callable[[Any], Any]
"""Maps distances to effective distances; see theory.weave."""

Distances = Callable[[int], Tensor]
"""Effective distances (query, key) of so many tokens, below 0 where a key is not seen."""


@dataclass(frozen=True)
class Encoding:
    """A position encoding: scores are q.k - slope * W(t - i); `weave` None drops the position term (NoPE).

    distances: take W's place where they are no function of t - i alone, or a key is not seen.
    turns: take the place of `slope` and its bias: rotary embedding.
    """

    weave: Weave | None = None
    distances: Distances | None = None
    slope: float = 1.0
    turns: Turns | None = None


ROWS = 128
"""Queries whose scores are made at a time unless hooks look at them: fresh memory for all costs more than the sums."""


def planned(plan: Callable[[int], Plan]) -> Distances:
    """Distances by the plan that `plan` makes for so many tokens; both layers ask for the same ones."""
    return lru_cache(maxsize=1)(lambda length: torch.from_numpy(distances(plan(length))))


def parted(length: int, *hooks: HookPoint) -> int:
    """How many positions to take at a time: all where something looks at one of `hooks`."""
    return length if any(hook.has_hooks() for hook in hooks) else ROWS


class Attention(nn.Module):
    """Heads under a position encoding, written out.

    logarithm: puts out the logarithm of what head 0 gives POSITION: the same pattern, values and W_O, evaluated where
    float64 would underflow.
    """

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor

    def __init__(self, heads: Sequence[Head], encoding: Encoding, logarithm: bool) -> None:
        super().__init__()
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            stacked = np.stack([getattr(head, name) for head in heads])
            self.register_buffer(name, torch.from_numpy(stacked))
        self.encoding, self.logarithm = encoding, logarithm
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result, self.hook_out = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Tensor) -> Tensor:
        """The heads' sum (batch, position, model size) for the residual stream, of the same shape."""
        q = self.hook_q(torch.einsum("ptd,nhd->ptnh", resid, self.W_Q))
        k = self.hook_k(torch.einsum("ptd,nhd->ptnh", resid, self.W_K))
        v = self.hook_v(torch.einsum("ptd,nhd->ptnh", resid, self.W_V))
        length = resid.shape[1]
        rows = parted(length, self.hook_attn_scores, self.hook_pattern)
        parts = [self._rows(q, k, v, begin, min(begin + rows, length)) for begin in range(0, length, rows)]
        z = self.hook_z(torch.cat([part for part, _ in parts], 1))
        result = torch.einsum("ptnh,ndh->ptnd", z, self.W_O)
        if self.logarithm:
            result[:, :, 0, POSITION] = torch.cat([logs for _, logs in parts], 1)
        return self.hook_out(self.hook_result(result).sum(2))

    def _rows(self, q: Tensor, k: Tensor, v: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """What the queries from `begin` to `end` read (batch, query, head, head size), and `_log_output` if asked."""
        distances = self.encoding.distances
        table = None if distances is None else distances(q.shape[1])[begin:end, :end]
        q, k, v = q[:, begin:end], k[:, :end], v[:, :end]
        scores = self.hook_attn_scores(self._scores(q, k, table))
        pattern = self.hook_pattern(scores.softmax(-1))
        z = torch.einsum("pnqk,pknh->pqnh", pattern, v)
        return z, self._log_output(scores[:, 0], pattern[:, 0], v[:, :, 0]) if self.logarithm else z

    def _log_output(self, scores: Tensor, pattern: Tensor, v: Tensor) -> Tensor:
        """log of the sum of what each key's value adds to POSITION, times its weight (batch, position), by head 0.

        Weights are taken in logarithms where they are what softmax makes of the scores, so that none underflows.
        """
        logs = scores.log_softmax(-1)
        logs = torch.where(pattern == scores.softmax(-1), logs, pattern.log())
        return (logs + (v @ self.W_O[0, POSITION]).log()[:, None]).logsumexp(-1)

    def _scores(self, q: Tensor, k: Tensor, table: Tensor | None) -> Tensor:
        """Scores (batch, head, query, key) of the last queries, -inf where a key is not seen; table: distances."""
        index = torch.arange(k.shape[1])
        distance = index[len(index) - q.shape[1] :, None] - index
        encoding, effective = self.encoding, table
        if table is None and encoding.weave is not None:
            effective = encoding.weave(index.to(q.dtype))[distance.clamp(min=0)]
        if encoding.turns is not None:
            scores = encoding.turns.scores(q, k, distance if effective is None else effective)
        else:
            scores = torch.einsum("pqnh,pknh->pnqk", q, k)
            if effective is not None:
                scores = scores - encoding.slope * effective.to(scores.dtype)
        unseen = distance < 0 if effective is None else (distance < 0) | (effective < 0)
        return scores.masked_fill(unseen, -torch.inf)
