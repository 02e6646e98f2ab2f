"""Scores under rotary embedding, pair by pair: every distance's rotation is made by itself. Slow, and the oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mesa.constructed_llama import inverse_frequencies


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
