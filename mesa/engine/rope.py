"""Positions in attention: rotary embedding by the model's own modules, and ALiBi's bias, at whatever a plan gives."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mesa.errors import Refused
from mesa.plan import Plan, Position, Region, rotary_base


def positions(position: Position, index: Tensor) -> Tensor:
    """The positions of tokens; by numpy, since torch divides whole numbers in whichever dtype is its default."""
    return torch.from_numpy(np.asarray(position(index.cpu().numpy())))


class CachedRotary(nn.Module):
    """Stands in for a model's rotary module: gives every token a position of ours in place of its own.

    cos_sin: called with the states and the kind of layer, where the model has several.
    """

    def __init__(self, cos_sin: Callable[..., tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.cos_sin = cos_sin
        self.eval()  # tools of TransformerLens refuse a model of which a module is in training mode

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        """cos and sin at the running pass's positions."""
        return self.cos_sin(x, layer_type)


def _of_kind(name: str) -> property:
    return property(
        lambda part: getattr(part.module, f"{part.kind}_{name}"),
        lambda part, value: setattr(part.module, f"{part.kind}_{name}", value),
    )


class OfKind(nn.Module):
    """What one kind of layers has of a rotary module with frequencies for each kind, as a module of its own."""

    inv_freq, original_inv_freq, attention_scaling = map(
        _of_kind, ("inv_freq", "original_inv_freq", "attention_scaling")
    )

    def __init__(self, module: nn.Module, kind: str) -> None:
        super().__init__()
        self.module: Any = module
        self.kind = kind

    @property
    def rope_type(self) -> str:
        """How its frequencies are scaled."""
        return self.module.rope_type[self.kind]

    @rope_type.setter
    def rope_type(self, value: str) -> None:
        self.module.rope_type[self.kind] = value

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin for this kind."""
        return self.module(x, position_ids, self.kind)


class Rotary:
    """A copy of the model's rotary module, asked for any positions and frequencies; threads may share it.

    The copy does not scale (YaRN's factor is applied once, by the model's own module). Its frequencies are set anew
    each time, so nothing of another run can leak in.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = copy.deepcopy(module)
        self.module.attention_scaling = 1.0
        self.apply: Any = None
        self._lock = Lock()

    def learn(self, attention: nn.Module) -> None:
        """Finds out how the model's attention modules turn states; Refused where they do not say."""
        for cls in () if self.apply else type(attention).__mro__:
            self.apply = self.apply or _turning(getattr(sys.modules.get(cls.__module__), "apply_rotary_pos_emb", None))
        if self.apply is None:
            raise Refused(f"{type(attention).__name__} is defined beside no apply_rotary_pos_emb, which is needed")

    def cos_sin(self, states: Tensor, positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin at `positions` (batch, token), on the device and in the dtype of `states`."""
        with self._lock:
            self.module.inv_freq = frequencies
            return self.module(states, positions)


def _turning(apply: Callable[..., Any] | None) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """A family's apply_rotary_pos_emb for states alone: most turn queries and keys in one call, Gemma-4's either."""
    if apply is None or "k" not in inspect.signature(apply).parameters:
        return apply
    return lambda states, cos, sin: apply(states, states[:, :0], cos, sin)[0]


_AT_ONCE = 2**18
"""Numbers turned at a time: what rotary computes on the way stays in a CPU's cache, and takes no new memory."""


class Rotation:
    """Turns states by given distances in one pass; its layers share the tables of cos and sin."""

    def __init__(self, rotary: Rotary, frequencies: Tensor) -> None:
        self.rotary, self.frequencies = rotary, frequencies
        self._tables: dict[tuple[int, torch.dtype, torch.device], tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    def __call__(self, states: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        """`states` (batch, head, token, dim) turned by `positions` (token,) as the model's attention would."""
        known = (id(positions), states.dtype, states.device)
        if known not in self._tables:
            self._tables[known] = positions, self._table(states, positions, plan)
        cos, sin = self._tables[known][1]
        step = max(1, _AT_ONCE * states.shape[2] // max(1, states.numel()))
        if step < states.shape[2]:
            turned = torch.empty_like(states)
            for begin in range(0, states.shape[2], step):
                tokens = slice(begin, begin + step)
                turned[:, :, tokens] = self._applied(states[:, :, tokens], cos[:, tokens], sin[:, tokens])
            return turned
        return self._applied(states, cos, sin)

    def _applied(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotated = states[..., : cos.shape[-1]]  # the rest of a head, if any, has no position
        turned = self.rotary.apply(rotated, cos, sin)
        return turned if rotated.shape == states.shape else torch.cat([turned, states[..., cos.shape[-1] :]], -1)

    def _table(self, states: Tensor, positions: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        frequencies = self.frequencies.to(states.device)
        if plan.frequency_scale is not None:
            number = np.arange(len(frequencies), dtype=np.float64)
            scale = plan.frequency_scale(number, 2 * len(frequencies), rotary_base(frequencies))
            frequencies = frequencies * torch.from_numpy(scale).to(frequencies)
        return self.rotary.cos_sin(states, positions[None], frequencies)


_SHARE = 64.0
"""The part of ALiBi's bias that goes with queries."""

_PARTS = 3
"""Parts of ALiBi's bias that go with keys: of bfloat16's 8 bits each, they hold what float32 does."""


def biased(scores: Tensor, slopes: Tensor, region: Region, queries: Tensor, keys: Tensor) -> Tensor:
    """Scores (batch, head, query, key) with ALiBi's bias, in float32 or better: half precision would lose it."""
    accurate = torch.promote_types(scores.dtype, torch.float32)
    relative = positions(region.query_position, queries) - positions(region.key_position, keys)
    slopes, relative = (part.to(accurate).to(scores.device) for part in (slopes, relative))
    return scores.to(accurate) - slopes[:, None, None] * relative


def with_bias(
    states: tuple[Tensor, Tensor, Tensor],
    slopes: Tensor,
    scale: float,
    region: Region,
    queries: tuple[int, int],
    keys: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ALiBi's bias as further dims of queries and keys, and what is to be added to the log-sum-exp (head, query).

    The bias is separable: slope * key position goes with the key (in parts, so that bfloat16 keeps it, and a factor of
    it with the query, so that float16 holds it at any length in use),
    -slope * query position is the same for all keys of a query and so matters to the merge alone.
    """
    query, key, value = states
    accurate = torch.promote_types(query.dtype, torch.float32)
    at = [(region.query_position, queries), (region.key_position, keys)]
    parts = slopes, *(positions(position, torch.arange(*span)) for position, span in at)
    slopes, query_position, key_position = (part.to(accurate).to(query.device) for part in parts)
    relative = key_position - key_position[-1]
    rest = slopes[: key.shape[1], None] * relative / scale / _SHARE
    parts = list[Tensor]()
    for _ in range(_PARTS):
        parts.append(rest.to(key.dtype))
        rest = rest - parts[-1]
    extra = 8  # dims, of which some carry the bias; the kernel likes round numbers
    bias = torch.stack(parts, -1).expand(key.shape[0], -1, -1, -1)
    key = torch.cat([key, bias, key.new_zeros(*key.shape[:3], extra - _PARTS)], -1)
    ones = query.new_zeros(*query.shape[:3], extra)
    ones[..., :_PARTS] = _SHARE
    offset = slopes[:, None] * (key_position[-1] - query_position)
    return torch.cat([query, ones], -1), key, torch.nn.functional.pad(value, (0, extra)), offset
