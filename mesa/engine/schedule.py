"""A plan bound to the tokens of one pass: its parts, and where their queries and keys are rotated and scaled to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mesa.engine.rope import Rotation
from mesa.engine.spans import Part, parts
from mesa.plan import Plan, Position, Region, Scale

Angles = Tensor | tuple[Tensor, Tensor]
"""Distances (token,), or the cos and sin of `Rotation.stepped`."""

Rotate = Callable[[Tensor, Angles, Plan], Tensor]
"""Rotates (batch, head, token, dim) by these distances under a plan's frequencies."""


class Span(NamedTuple):
    """The part of the past that a layer sees: the last `size` tokens, or those of its own chunk of `size`."""

    size: int
    chunked: bool = False


@dataclass
class Schedule:
    """A plan, bound to the queries from token `start` on and the keys from `first_key` on.

    Positions enter by rotation (`rotation`, with keys and queries rotated to `cached` already) or, for ALiBi models, as
    a bias `-slope * (query position - key position)` with one slope a head (`slopes`, (head,)).
    query_weight: factors (dim,) on queries after their rotation: those of norms after the model's own.
    softcap: c in c tanh(s / c), which each score s becomes. sinks: a score (head,) next to each query's, without value.
    cache: what an executor lays out once for all layers that see the same keys, each under keys of its own.
    """

    plan: Plan
    start: int
    cached: Position
    rotation: Rotate | None = None
    slopes: Tensor | None = None
    first_key: int = 0
    softcap: float | None = None
    sinks: Tensor | None = None
    query_weight: Tensor | None = None
    cache: dict[Any, Any] = field(default_factory=dict)
    _shared: dict[Any, Any] = field(default_factory=dict)
    """Distances and factors of tokens, for the layers of every rotation and window."""

    def parts(self, begin: int, end: int) -> list[Part]:
        """The parts of the queries begin .. end - 1."""
        aligned = self.query_weight is None  # a weight goes with the states that are rotated
        key = "parts", begin, end, aligned
        if key not in self.cache:
            self.cache[key] = parts(self.plan, begin, end, self.first_key, aligned)
        return self.cache[key]

    def rotated(self, states: Tensor, position: Position, begin: int, end: int) -> Tensor:
        """`states` of the tokens begin .. end - 1, rotated on to a position."""
        angles = self.distances((position,), begin, end, states.device)
        return states if angles is None or self.rotation is None else self.rotation(states, angles, self.plan)

    def distances(self, at: tuple[Position, ...], begin: int, end: int, device: torch.device) -> Tensor | None:
        """By how much cached states are rotated to each of some positions, (position * token,); None for nothing."""
        if self.rotation is None or (set(at) == {self.cached} and self.plan.frequency_scale is None):
            return None
        key = "distances", at, begin, end, device
        if key not in self._shared:
            index = np.arange(begin, end)
            distances = np.concatenate([position(index) - self.cached(index) for position in at])
            self._shared[key] = torch.from_numpy(distances.astype(np.float32)).to(device, non_blocking=True)
        return self._shared[key]

    def scaled(self, states: Tensor, scale: Scale | None, begin: int, end: int) -> Tensor:
        """`states` of the tokens begin .. end - 1 times the factors that `scale` gives them."""
        accurate = torch.promote_types(states.dtype, torch.float32)  # rounded to states' dtype it would move all scores
        return times(states, self.factor(scale, begin, end, accurate, states.device))

    def factor(
        self, scale: Scale | None, begin: int, end: int, accurate: torch.dtype, device: torch.device
    ) -> Tensor | None:
        """What `scaled` multiplies with, (token, 1); None for nothing."""
        if scale is None:
            return None
        key = "factors", scale, begin, end, accurate, device
        if key not in self._shared:
            factors = np.asarray(scale(np.arange(begin, end)), np.float64)
            tensor = torch.from_numpy(factors).to(accurate).unsqueeze(1).to(device, non_blocking=True)
            self._shared[key] = None if (factors == 1).all() else tensor
        return self._shared[key]

    def query(self, states: Tensor, region: Region | Part, begin: int, end: int) -> Tensor:
        """The queries begin .. end - 1 at the positions and the scale of a region, or of a part."""
        rotated = self.rotated(states, region.query_position, begin, end)
        weighted = rotated if self.query_weight is None else rotated * self.query_weight
        return self.scaled(weighted, region.query_scale, begin, end)

    def key(self, states: Tensor, region: Region | Part, begin: int, end: int) -> Tensor:
        """The keys begin .. end - 1 at the positions and the scale of a region, or of a part."""
        return self.scaled(self.rotated(states, region.key_position, begin, end), region.key_scale, begin, end)

    def scoring(self, softcap: float | None, sinks: Tensor | None, query_weight: Tensor | None = None) -> Schedule:
        """The same with a layer's own soft cap, sinks and weight, if any; it shares what was laid out."""
        if softcap is None and sinks is None and query_weight is None:
            return self
        return replace(self, softcap=softcap, sinks=sinks, query_weight=query_weight)

    def of_heads(self, heads: Sequence[int]) -> Schedule:
        """The same for those query heads only."""
        if self.slopes is None and self.sinks is None:
            return self
        slopes, sinks = (part if part is None else part[list(heads)] for part in (self.slopes, self.sinks))
        return replace(self, slopes=slopes, sinks=sinks)

    def seeing(self, span: Span, first_key: int) -> Schedule:
        """The same for layers that see a window or a chunk of the past, without keys before `first_key`."""
        regions = _chunks(self.plan, span.size, self.start) if span.chunked else _within(self.plan, span.size)
        return replace(self, plan=replace(self.plan, regions=regions), first_key=first_key, cache={})

    def rotating_by(self, rotation: Rotation | None) -> Schedule:
        """The same for layers of this rotary embedding; None: of none."""
        return replace(self, rotation=rotation, cache={})


def times(states: Tensor, factors: Tensor | float | None) -> Tensor:
    """States times factors, in the states' dtype; as they are where there are none."""
    return states if factors is None else (states * factors).to(states.dtype)


def _within(plan: Plan, window: int) -> tuple[Region, ...]:
    """A plan's regions without keys `window` or more tokens back."""
    return tuple(
        replace(region, farthest=window - 1 if region.farthest is None else min(region.farthest, window - 1))
        for region in plan.regions
        if region.nearest < window
    )


def _chunks(plan: Plan, size: int, start: int) -> tuple[Region, ...]:
    """A plan's regions cut to chunks of `size` tokens, in which queries from `start` on see the keys of their own."""
    regions = list[Region]()
    for begin in range(start // size * size, plan.length, size):
        for region in plan.regions:
            queries = max(region.queries[0], begin), min(region.queries[1], begin + size)
            keys = max(region.keys[0], begin), min(region.keys[1], begin + size)
            if queries[0] < queries[1] and keys[0] < keys[1] and region.nearest < size:
                regions.append(replace(region, queries=queries, keys=keys))
    return tuple(regions)
