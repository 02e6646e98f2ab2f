"""Executors: they obey a plan and know nothing of methods.

`dense` builds the whole score matrix: O(T^2) memory, gradients, attention weights. `fused` computes attention over
each region by itself and merges the parts exactly through their log-sum-exp: O(T) memory beside queries and keys.
Both take queries of the tokens `start` .. plan.length - 1 and keys of 0 .. plan.length - 1, all rotated to the
schedule's `cached` positions, and turn them on to the plan's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mesa.engine.alibi import biased, with_bias
from mesa.engine.kernels import BLOCK, Mask, attend
from mesa.engine.merged import Merged
from mesa.engine.rope import positions
from mesa.engine.stairs import FEW, Stair, stairs
from mesa.plan import Plan, Position, Region, Scale

Turn = Callable[[Tensor, Tensor, Plan], Tensor]
"""Turns (batch, head, token, dim) by distances (token,) under a plan's frequencies."""


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
        given = tuple(region.query_position for region in regions)
        if self.turn is not None and (set(given) != {self.cached} or self.plan.frequency_scale is not None):
            known = (given, *at, state.device)
            if known not in self._turns:
                index = torch.arange(*at)
                turns = torch.cat([positions(position, index) for position in given]) - positions(self.cached, index)
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
            found = self._reads[device] = []
            for (keys, masked, *_), regions in shared.items():
                rows = [_seen(each, (self.start, self.plan.length), keys, device) for each in regions if masked]
                seen = torch.cat(rows) if rows else None
                if seen is None or bool(seen.any()):
                    found.append(Read(tuple(regions), keys, seen))
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


def scored(schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scores before the softmax (batch, head, query, key), -inf where the plan masks."""
    plan, start, first_key = schedule.plan, schedule.start, schedule.first_key
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query.new_full((*query.shape[:3], key.shape[2]), -math.inf)
    queries = torch.arange(start, plan.length, device=query.device)[:, None]
    keys = torch.arange(first_key, plan.length, device=query.device)[None, :]
    for region in plan.regions:
        part = schedule.query(query, region, start, plan.length)
        part = part @ schedule.key(key, region, first_key, plan.length).transpose(-1, -2) * scale
        if schedule.slopes is not None:
            part = biased(part, schedule.slopes, region, queries, keys)
        scores = torch.where(region.contains(queries, keys), part, scores)
    return scores


def dense(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention output (batch, head, query, dim) and weights (batch, head, query, key) by one full score matrix."""
    scores = scored(schedule, query, key, scale)
    weights = scores.softmax(-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    return weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1), weights


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


def fused(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, None]:
    """Attention output (batch, head, query, dim), region by region, merged by log-sum-exp; no weights."""
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        raise RuntimeError("the fused executor has no gradients; use torch.no_grad() or executor='dense'")
    start, length, first_key = schedule.start, schedule.plan.length, schedule.first_key
    if query.shape[2] == 1 and schedule.slopes is None:
        return _one_query(schedule, query, key, value, scale), None
    merged = Merged(query, start)

    def keys_of(region: Region, begin: int, end: int) -> Tensor:
        return schedule.key(key[:, :, begin - first_key : end - first_key], region, begin, end)

    def values_of(begin: int, end: int) -> Tensor:
        return value[:, :, begin - first_key : end - first_key]

    placed: tuple[Any, Tensor] | None = None  # the last region's queries: chunks ask for the same ones twice
    many = [region for region in schedule.plan.regions if region.queries[1] - max(region.queries[0], start) >= FEW]
    paired = stairs(many) if schedule.slopes is None else {}
    for region in schedule.plan.regions:
        region_calls = list(calls(region, start, length, first_key))
        if not region_calls or region in paired.values():
            continue
        first, last = region_calls[0].queries[0], region_calls[-1].queries[1]
        low, high = min(call.keys[0] for call in region_calls), max(call.keys[1] for call in region_calls)
        asked = (region.query_position, region.query_scale, first, last)
        if placed is None or placed[0] != asked:
            placed = asked, schedule.query(query[:, :, first - start : last - start], region, first, last)
        part = placed[1]
        if region in paired:
            stair = Stair(region, first, low, part, keys_of, values_of, scale, schedule._masks)
            for (begin, end), output, log_sum in stair.parts():
                merged.add(begin, end, output, log_sum)
            continue
        keys, values = keys_of(region, low, high), values_of(low, high)
        offset = None
        if schedule.slopes is not None:
            part, keys, values, offset = with_bias(
                part, keys, values, schedule.slopes, scale, region, (first, last), (low, high)
            )
        for call in region_calls:
            (q0, q1), (k0, k1) = call.queries, call.keys
            rows, columns = slice(q0 - first, q1 - first), slice(k0 - low, k1 - low)
            mask = schedule.mask(region, call, query) if call.masked else None
            output, log_sum = attend(
                part[:, :, rows], keys[:, :, columns], values[:, :, columns], scale, call.causal, mask
            )
            if offset is not None:
                output, log_sum = output[..., : query.shape[3]], log_sum + offset[:, rows]
            merged.add(q0, q1, output, log_sum)
    return merged.output(), None


@dataclass(frozen=True)
class Read:
    """Keys that a single query reads once, at the positions of the regions that hold them.

    seen: whether each region holds each key, (region, key); None: the only region holds all.
    """

    regions: tuple[Region, ...]
    keys: tuple[int, int]
    seen: Tensor | None


def _one_query(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """`fused` for a single query: all scores at once where they are accurate enough, else merged by log-sum-exp."""
    reads = schedule.reads(query.device)
    if not reads:
        return torch.zeros_like(query)
    rows = schedule.query_of(query, tuple(region for read in reads for region in read.regions))
    parts = []
    for read in reads:
        span = slice(read.keys[0] - schedule.first_key, read.keys[1] - schedule.first_key)
        own, rows = rows[:, :, : len(read.regions)], rows[:, :, len(read.regions) :]
        keys = schedule.key(key[:, :, span], read.regions[0], *read.keys)
        parts.append((own, keys, span, read.seen))
    if query.dtype in (torch.float32, torch.float64):
        return _at_once(parts, query, value, scale)
    outputs, log_sums = [], []
    for own, keys, span, seen in parts:
        mask = None if seen is None else Mask.of(seen, query.dtype)
        output, log_sum = attend(own, keys, value[:, :, span], scale, False, mask)
        outputs.append(output)
        log_sums.append(log_sum)
    weights = torch.cat(log_sums, 2).softmax(-1)[..., None]
    return (torch.cat(outputs, 2) * weights).sum(2, keepdim=True).to(query.dtype)


def _at_once(
    parts: list[tuple[Tensor, Tensor, slice, Tensor | None]], query: Tensor, value: Tensor, scale: float
) -> Tensor:
    """Attention of a single query by one softmax: parts are its rows, keys, where they are, and what each row sees."""
    batch, heads, _, dim = query.shape
    scores = query.new_full((batch, heads, 1, value.shape[2]), -math.inf)
    for rows, keys, span, seen in parts:
        grouped = (rows * scale).reshape(batch, keys.shape[1], -1, dim)
        part = (grouped @ keys.transpose(-1, -2)).view(batch, heads, -1, keys.shape[2])
        if seen is None:
            scores[..., span] = part
            continue
        for row in range(len(seen)):
            scores[..., span] = torch.where(seen[row], part[:, :, row, None], scores[..., span])
    weights = scores.softmax(-1).view(batch, value.shape[1], -1, value.shape[2])
    return (weights @ value).view(query.shape)


EXECUTORS = {"dense": dense, "fused": fused}
