"""Rotary embedding at any position, by the model's own modules."""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch import Tensor, nn

from mesa.plan import Plan


class CachedRotary(nn.Module):
    """Stands in for a model's rotary module: gives every token a position of ours in place of its own.

    `positions` (batch, token) are set before each pass.
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original = original
        self.positions = torch.empty(0)

    def forward(self, x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The original's cos and sin at `positions`."""
        return self.original(x, self.positions.to(x.device), *args, **kwargs)


class Rotary:
    """Turns states by given distances with a copy of the model's rotary module.

    The copy does not scale (YaRN's factor is applied once, by the model's own module). Its frequencies are set anew for
    every plan, so nothing of an earlier run can leak in. Tables of cos and sin are kept until `forget`, so that all
    layers of a forward pass share them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = copy.deepcopy(module)
        self.module.attention_scaling = 1.0
        self.frequencies: Tensor = self.module.inv_freq.detach().clone()
        self._tables: dict[tuple[int, torch.dtype, torch.device], tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    def forget(self) -> None:
        """Drops the tables."""
        self._tables.clear()

    def __call__(self, states: Tensor, positions: Tensor, plan: Plan, attention: nn.Module) -> Tensor:
        """`states` (batch, head, token, dim) turned by `positions` (token,) as the attention module would."""
        known = (id(positions), states.dtype, states.device)
        if known not in self._tables:
            self._tables[known] = positions, self._table(states, positions, plan)
        cos, sin = self._tables[known][1]
        apply = sys.modules[type(attention).__module__].apply_rotary_pos_emb
        return apply(states, states[:, :0], cos, sin)[0]

    def _table(self, states: Tensor, positions: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        frequencies = self.frequencies.to(states.device)
        if plan.frequency_scale is not None:
            number = torch.arange(len(frequencies), device=states.device, dtype=torch.float64)
            frequencies = frequencies * plan.frequency_scale(number, 2 * len(frequencies)).to(frequencies.dtype)
        self.module.inv_freq = frequencies
        return self.module(states, positions[None])
