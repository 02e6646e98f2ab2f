"""Rotary embedding at whatever positions a plan gives: where a head has its pairs, and what rotates them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mesa.engine.compiled import is_accelerator, one_launch
from mesa.plan import Bounded, Plan, Position, rotary_base, token_index


@dataclass(frozen=True)
class RotaryLayout:
    """Where a head has its rotary pairs: from dim `begin` on, `pairs` of them, as two halves or side by side.

    backwards: whether they turn the other way round, queries and keys alike.
    """

    begin: int
    pairs: int
    interleaved: bool = False
    backwards: bool = False

    def rotate(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`states` (.., token, dim) with each pair rotated; cos, sin: as `spread`. Other dims have no position."""
        begin, end = self.begin, self.begin + 2 * self.pairs
        is_full = end - begin == states.shape[-1]
        pairs = states if is_full else states[..., begin:end]
        other = pairs.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if self.interleaved else pairs.roll(self.pairs, -1)
        rotated = (pairs * cos).addcmul_(other, sin)
        if is_full:
            return rotated
        states = states.expand(*rotated.shape[:-1], -1)
        return torch.cat([states[..., :begin], rotated, states[..., end:]], -1)

    def spread(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (token, pair) as (token, rotary dim): what each dim is multiplied by, and its pair's other."""
        sin = -sin if self.backwards else sin
        both = (cos, cos), (-sin, sin)
        cos, sin = (torch.stack(part, -1).flatten(-2) if self.interleaved else torch.cat(part, -1) for part in both)
        return cos, sin


def rotated(
    states: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    factors: Tensor | None,
    weight: Tensor | None,
    layout: RotaryLayout,
) -> Tensor:
    """States rotated by cos and sin (token, pair), times a weight (dim,), times factors (token, 1); None: without."""
    dtype = states.dtype
    if cos is not None and sin is not None and layout is not None:
        states = layout.rotate(states, *layout.spread(cos, sin))
    states = states if weight is None else states * weight
    return (states if factors is None else states * factors).to(dtype)


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


_CACHED_NUMBERS = 2**18
"""Numbers rotated at a time: what rotary computes on the way stays in a CPU's cache, and takes no new memory."""

STEPS = 128
"""Decoded tokens for which tables are computed at a time."""

_TABLES = 16
"""How many such tables are kept, each of 2^18 numbers and STEPS tokens' more at most, for cos and for sin."""


class Rotation:
    """Rotates states by distances in one pass; its layers share the tables of cos and sin.

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
        """`states` (batch, head, token, dim) rotated by `positions` (token,), or by tables, as the model would."""
        on_device = is_accelerator(states.device)
        cos, sin = (
            positions
            if isinstance(positions, tuple)
            else self.tables(positions, plan, states.dtype, states.device, spread=not on_device)
        )
        if on_device:
            return one_launch(rotated, states, cos, sin, None, None, self.layout)
        if states.numel() <= _CACHED_NUMBERS or states.shape[2] == 1:  # a token may be rotated to several positions
            return self.layout.rotate(states, cos, sin)
        step, into = max(1, _CACHED_NUMBERS * states.shape[2] // states.numel()), torch.empty_like(states)
        for begin in range(0, states.shape[2], step):
            tokens = slice(begin, begin + step)
            into[:, :, tokens] = self.layout.rotate(states[:, :, tokens], cos[tokens], sin[tokens])
        return into

    def tables(
        self, positions: Tensor, plan: Plan, dtype: torch.dtype, device: torch.device, spread: bool = False
    ) -> tuple[Tensor, Tensor]:
        """cos and sin (token, pair), computed in `accurate`; spread: as `RotaryLayout.spread` gives them."""
        key = id(positions), dtype, device, spread
        if key not in self._tables:
            cos, sin = (part.to(dtype) for part in self._angles(positions, plan, device))
            self._tables[key] = positions, self.layout.spread(cos, sin) if spread else (cos, sin)
        return self._tables[key][1]

    def stepped(
        self, at: tuple[Position, ...], cached: Position, begin: int, end: int, plan: Plan, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """cos and sin, spread, that rotate tokens begin .. end - 1 from `cached` to each of some positions, on a CPU.

        (token * position, rotary dim); cut out of tables for STEPS tokens more, which are kept for the passes to come.
        None where that is no use: the plan scales frequencies, the positions are a plan's own or the tokens too many.
        """
        lasting = all(isinstance(position, Bounded) or position is token_index for position in (*at, cached))
        if plan.frequency_scale is not None or not lasting or 2 * self.layout.pairs * (end - begin) > _CACHED_NUMBERS:
            return None
        first, last = begin // STEPS * STEPS, (end - 1) // STEPS * STEPS + STEPS
        key = at, cached, first, last, dtype
        table = self._kept.get(key)
        if table is None:
            index = np.arange(first, last)
            distances = np.stack([position(index) - cached(index) for position in at], 1)
            positions = torch.from_numpy(distances.astype(np.float32).ravel())
            cos, sin = (part.to(dtype) for part in self._angles(positions, plan, torch.device("cpu")))
            for oldest in list(self._kept)[: max(0, len(self._kept) - _TABLES + 1)]:
                self._kept.pop(oldest, None)
            table = self._kept[key] = self.layout.spread(cos, sin)
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
