"""Positions in attention: rotary embedding by the model's own modules, and ALiBi's bias, at whatever a plan gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mesa.engine.compiled import by_launches
from mesa.engine.kernels import turned_states
from mesa.engine.layout import RotaryLayout
from mesa.plan import Bounded, Plan, Position, Region, rotary_base, token_index


def positions(position: Position, index: Tensor) -> Tensor:
    """The positions of tokens; by numpy, since torch divides integers in whichever dtype is its default."""
    return torch.from_numpy(np.asarray(position(index.cpu().numpy())))


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


_AT_ONCE = 2**18
"""Numbers turned at a time: what rotary computes on the way stays in a CPU's cache, and takes no new memory."""

STEPS = 128
"""Decoded tokens for which tables are computed at a time."""

_KEPT = 16
"""How many such tables are kept, each of 2^18 numbers and STEPS tokens' more at most, for cos and for sin."""


class Rotation:
    """Turns states by given distances in one pass; its layers share the tables of cos and sin.

    frequencies: the rotary module's, in radians a token; it does not scale (YaRN's factor is applied once, by the
    model's own module). accurate: the dtype in which the model computes angles, float32 unless its module says else.
    base: rotary's, None where it is yet to be read off the frequencies, which waits for their device. kept: where
    `stepped` keeps its tables, for all rotations with these frequencies.
    """

    def __init__(
        self,
        layout: RotaryLayout,
        frequencies: Tensor,
        accurate: torch.dtype = torch.float32,
        base: float | None = None,
        kept: dict[tuple[Any, ...], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.layout, self.frequencies, self.accurate = layout, frequencies, accurate
        self.base, self._kept = base, {} if kept is None else kept
        self._tables: dict[tuple[Any, ...], tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    def __call__(self, states: Tensor, positions: Tensor | tuple[Tensor, Tensor], plan: Plan) -> Tensor:
        """`states` (batch, head, token, dim) turned by `positions` (token,), or by tables, as the model would."""
        compiled = by_launches(states.device)
        cos, sin = (
            positions
            if isinstance(positions, tuple)
            else self.tables(positions, plan, states.dtype, states.device, spread=not compiled)
        )
        if compiled:
            return turned_states(states, cos, sin, self.layout)
        if states.numel() <= _AT_ONCE or states.shape[2] == 1:  # a token may be turned to several positions
            return self.layout.turn(states, cos, sin)
        step, whole = max(1, _AT_ONCE * states.shape[2] // states.numel()), torch.empty_like(states)
        for begin in range(0, states.shape[2], step):
            tokens = slice(begin, begin + step)
            whole[:, :, tokens] = self.layout.turn(states[:, :, tokens], cos[tokens], sin[tokens])
        return whole

    def tables(
        self, positions: Tensor, plan: Plan, dtype: torch.dtype, device: torch.device, spread: bool = False
    ) -> tuple[Tensor, Tensor]:
        """cos and sin (token, pair), computed in `accurate`; spread: as `RotaryLayout.spread` gives them."""
        known = id(positions), dtype, device, spread
        if known not in self._tables:
            cos, sin = (part.to(dtype) for part in self._angles(positions, plan, device))
            self._tables[known] = positions, self.layout.spread(cos, sin) if spread else (cos, sin)
        return self._tables[known][1]

    def stepped(
        self, at: tuple[Position, ...], cached: Position, begin: int, end: int, plan: Plan, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """cos and sin, spread, that turn the tokens begin .. end - 1 from `cached` to each of some positions, on a CPU.

        (token * position, rotary dim); cut out of tables for STEPS tokens more, which are kept for the passes to come.
        None where that is no use: the plan scales frequencies, the positions are a plan's own or the tokens too many.
        """
        lasting = all(isinstance(position, Bounded) or position is token_index for position in (*at, cached))
        if plan.frequency_scale is not None or not lasting or 2 * self.layout.pairs * (end - begin) > _AT_ONCE:
            return None
        first, last = begin // STEPS * STEPS, (end - 1) // STEPS * STEPS + STEPS
        place = at, cached, first, last, dtype
        table = self._kept.get(place)
        if table is None:
            index = np.arange(first, last)
            turns = np.stack([position(index) - cached(index) for position in at], 1)
            positions = torch.from_numpy(turns.astype(np.float32).ravel())
            cos, sin = (part.to(dtype) for part in self._angles(positions, plan, torch.device("cpu")))
            for oldest in list(self._kept)[: max(0, len(self._kept) - _KEPT + 1)]:
                self._kept.pop(oldest, None)
            table = self._kept[place] = self.layout.spread(cos, sin)
        cos, sin = table
        rows = slice((begin - first) * len(at), (end - first) * len(at))
        return cos[rows], sin[rows]

    def _angles(self, positions: Tensor, plan: Plan, device: torch.device) -> tuple[Tensor, Tensor]:
        frequencies = self.frequencies.to(device)
        if plan.frequency_scale is not None:
            number = np.arange(len(frequencies), dtype=np.float64)
            base = rotary_base(frequencies) if self.base is None else self.base
            scale = torch.from_numpy(plan.frequency_scale(number, 2 * len(frequencies), base))
            frequencies = frequencies * scale.to(frequencies, non_blocking=True)
        frequencies = frequencies.narrow(0, 0, self.layout.pairs).to(self.accurate)
        angles = positions[:, None].to(device, self.accurate, non_blocking=True) * frequencies
        return angles.cos(), angles.sin()


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
