"""A plan bound to the tokens of one pass: where their states are turned, what is masked, which calls cover it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mesa.engine.kernels import BLOCK, Mask
from mesa.engine.rope import positions
from mesa.plan import Plan, Position, Region, Scale

Turn = Callable[[Tensor, Tensor, Plan], Tensor]
"""Turns (batch, head, token, dim) by distances (token,) under a plan's frequencies."""


@dataclass(frozen=True)
class Call:
    """One attention call of a region: queries and keys by index, and whether the lower triangle or a mask applies."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    causal: bool = False
    masked: bool = False


def calls(region: Region, start: int, length: int, first_key: int = 0) -> Iterator[Call]:
    """The calls that cover the region's pairs with queries `start` .. `length` - 1, each pair once.

    Pairs with keys before `first_key` are left out.
    """
    first_key, last_key = max(region.keys[0], first_key), min(region.keys[1], length)
    begin = max(region.queries[0], start, first_key + region.nearest)
    end = min(region.queries[1], length)
    if region.farthest is not None:
        end = min(end, last_key + region.farthest)
    if begin >= end or first_key >= last_key:
        return
    if region.holds is None and region.farthest is not None and begin < first_key + region.farthest - BLOCK:
        opened = min(end, first_key + region.farthest + 1)  # queries before it have no key too far
        yield from calls(replace(region, queries=(begin, opened), farthest=None), start, length, first_key)
        begin = opened
        if begin == end:
            return
    if region.holds is None and (region.farthest is None or end - begin == 1):
        if region.farthest is not None:
            first_key = max(first_key, begin - region.farthest)
        edge = begin - region.nearest + (end - begin == 1)  # keys before it are seen by every query
        if first_key < edge:
            yield Call((begin, end), (first_key, min(edge, last_key)))
        triangle = (max(edge, first_key), min(last_key, end - region.nearest))
        if triangle[0] < triangle[1]:
            yield Call((begin, end), triangle, causal=True)
        return
    step = BLOCK // region.period * region.period if 0 < region.period <= BLOCK else BLOCK
    for block in range(begin, end, step):
        block_end = min(block + step, end)
        near_key = first_key if region.farthest is None else max(first_key, block - region.farthest)
        yield Call((block, block_end), (near_key, min(last_key, block_end - region.nearest)), masked=True)


@dataclass(frozen=True)
class Read:
    """Keys that a single query reads once, at the positions of the regions that hold them.

    seen: whether each region holds each key, (region, key); None: the only region holds all.
    """

    regions: tuple[Region, ...]
    keys: tuple[int, int]
    seen: Tensor | None


@dataclass
class Schedule:
    """A plan, bound to the queries from token `start` on and the keys from `first_key` on.

    Positions enter by rotation (`turn`, with keys and queries rotated to `cached` already) or, for ALiBi models, as a
    bias `-slope * (query position - key position)` with one slope a head (`slopes`, (head,)).
    """

    plan: Plan
    start: int
    cached: Position
    turn: Turn | None = None
    slopes: Tensor | None = None
    first_key: int = 0
    _turns: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    _masks: dict[tuple[Any, ...], Mask] = field(default_factory=dict)
    _factors: dict[tuple[Any, ...], Tensor | None] = field(default_factory=dict)
    _reads: dict[torch.device, list[Read]] = field(default_factory=dict)

    def placed(self, states: Tensor, position: Position, begin: int, end: int) -> Tensor:
        """`states` of the tokens begin .. end - 1, turned on to the positions that `position` gives them."""
        if self.turn is None or (position == self.cached and self.plan.frequency_scale is None):
            return states
        known = (position, begin, end, states.device)
        if known not in self._turns:
            index = torch.arange(begin, end)
            turns = positions(position, index) - positions(self.cached, index)
            self._turns[known] = turns.float().to(states.device)
        return self.turn(states, self._turns[known], self.plan)

    def scaled(self, states: Tensor, scale: Scale | None, begin: int, end: int) -> Tensor:
        """`states` of the tokens begin .. end - 1 times the factors that `scale` gives them."""
        if scale is None:
            return states
        accurate = torch.promote_types(states.dtype, torch.float32)  # rounded to states' dtype it would move all scores
        known = (scale, begin, end, accurate, states.device)
        if known not in self._factors:
            factors = np.asarray(scale(np.arange(begin, end)), np.float64)
            tensor = torch.from_numpy(factors).to(accurate).to(states.device)[:, None]
            self._factors[known] = None if (factors == 1).all() else tensor
        factor = self._factors[known]
        return states if factor is None else (states * factor).to(states.dtype)

    def query(self, states: Tensor, region: Region, begin: int, end: int) -> Tensor:
        """The queries begin .. end - 1 at the positions and the scale that a region gives them."""
        return self.scaled(self.placed(states, region.query_position, begin, end), region.query_scale, begin, end)

    def key(self, states: Tensor, region: Region, begin: int, end: int) -> Tensor:
        """The keys begin .. end - 1 at the positions and the scale that a region gives them."""
        return self.scaled(self.placed(states, region.key_position, begin, end), region.key_scale, begin, end)

    def query_of(self, state: Tensor, regions: tuple[Region, ...]) -> Tensor:
        """The only query (batch, head, 1, dim) at the positions and scales of regions: (batch, head, region, dim)."""
        states, at = state.expand(-1, -1, len(regions), -1), (self.start, self.start + 1)
        query_positions = tuple(region.query_position for region in regions)
        if self.turn is not None and (set(query_positions) != {self.cached} or self.plan.frequency_scale is not None):
            known = (query_positions, *at, state.device)
            if known not in self._turns:
                index = torch.arange(*at)
                at_regions = torch.cat([positions(position, index) for position in query_positions])
                turns = at_regions - positions(self.cached, index)
                self._turns[known] = turns.float().to(state.device)
            states = self.turn(states, self._turns[known], self.plan)
        scales = [region.query_scale for region in regions]
        if len(set(scales)) == 1:
            return self.scaled(states, scales[0], *at)
        return torch.cat([self.scaled(states[:, :, [row]], scale, *at) for row, scale in enumerate(scales)], 2)

    def reads(self, device: torch.device) -> list[Read]:
        """What the only query reads: regions with the same keys at the same positions together."""
        if device not in self._reads:
            shared: dict[tuple[Any, ...], list[Region]] = {}
            for region in self.plan.regions:
                for call in calls(region, self.start, self.plan.length, self.first_key):
                    same = (call.keys, call.masked, region.key_position, region.key_scale)
                    shared.setdefault(same, []).append(region)
            reads = self._reads[device] = []
            for (keys, masked, *_), regions in shared.items():
                rows = [_seen(region, (self.start, self.plan.length), keys, device) for region in regions if masked]
                seen = torch.cat(rows) if rows else None
                if seen is None or bool(seen.any()):
                    reads.append(Read(tuple(regions), keys, seen))
        return self._reads[device]

    def within(self, window: int, first_key: int) -> Schedule:
        """The same without keys `window` or more tokens back, and without those before `first_key`."""
        regions = tuple(
            replace(region, farthest=window - 1 if region.farthest is None else min(region.farthest, window - 1))
            for region in self.plan.regions
            if region.nearest < window
        )
        plan = replace(self.plan, regions=regions)
        return replace(self, plan=plan, first_key=first_key, _turns={}, _masks={}, _reads={})

    def mask(self, region: Region, call: Call, like: Tensor) -> Mask:
        """The mask of a call, remembered where it is small or the same for other calls and layers."""
        queries, keys = len(range(*call.queries)), len(range(*call.keys))
        offset = call.queries[0] - call.keys[0]  # a band looks the same wherever it is
        known = (region, offset, queries, keys, like.dtype, like.device, region.holds and call)
        if known in self._masks:
            return self._masks[known]
        if region.holds is None or queries == 1:
            self._masks[known] = Mask.of(_seen(region, call.queries, call.keys, like.device), like.dtype)
        elif 0 < region.period <= BLOCK:
            added = self._periodic(region, call, like)
            self._masks[known] = Mask(added, added.isneginf().all(-1))
        else:  # as large as the scores of a block: made anew each time
            return Mask.of(_seen(region, call.queries, call.keys, like.device), like.dtype)
        return self._masks[known]

    def _periodic(self, region: Region, call: Call, like: Tensor) -> Tensor:
        """What to add to a call's scores, cut out of what serves all calls whose queries begin at the same phase."""
        phase, rows = call.queries[0] % region.period, min(BLOCK, self.plan.length - self.start)
        begin = -(-self.plan.length // region.period) * region.period + phase  # no call's queries begin later
        known = (region, phase, like.dtype, like.device)
        if known not in self._masks:
            anywhere = replace(region, queries=(0, begin + rows), keys=(0, begin + rows))
            seen = _seen(anywhere, (begin, begin + rows), (0, begin + rows), like.device)
            self._masks[known] = Mask.of(seen, like.dtype)
        moved = begin - call.queries[0]
        (q0, q1), (k0, k1) = call.queries, call.keys
        return self._masks[known].added[: q1 - q0, k0 + moved : k1 + moved]


def _seen(region: Region, queries: tuple[int, int], keys: tuple[int, int], device: torch.device) -> Tensor:
    """Whether the region holds each pair (query, key) of two ranges."""
    index = [torch.arange(*span, device=device) for span in (queries, keys)]
    return region.contains(index[0][:, None], index[1][None, :])
