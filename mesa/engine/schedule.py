"""A plan bound to the tokens of one pass: where their states are turned, what is masked, which calls cover it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mesa.engine.compiled import by_launches
from mesa.engine.kernels import BLOCK, Mask
from mesa.engine.rope import STEPS, Rotation
from mesa.engine.spans import Part, parts, span_of
from mesa.engine.stairs import stairs
from mesa.plan import Bounded, Plan, Position, Product, Region, Scale

HALVED = 8192
"""Keys from which on a single query's are turned half by half (tokens)."""

Turns = Tensor | tuple[Tensor, Tensor]
"""Distances (token,), or the cos and sin of `Rotation.stepped`."""

Turn = Callable[[Tensor, Turns, Plan], Tensor]
"""Turns (batch, head, token, dim) by so much under a plan's frequencies."""


class Span(NamedTuple):
    """The part of the past that a layer sees: the last `size` tokens, or those of its own chunk of `size`."""

    size: int
    chunked: bool = False


@dataclass(frozen=True)
class AttendedBlock:
    """One attention call of a region: queries and keys by index, and whether the lower triangle or a mask applies."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    causal: bool = False
    masked: bool = False


def calls(region: Region, start: int, length: int, first_key: int = 0) -> Iterator[AttendedBlock]:
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
            yield AttendedBlock((begin, end), (first_key, min(edge, last_key)))
        triangle = (max(edge, first_key), min(last_key, end - region.nearest))
        if triangle[0] < triangle[1]:
            yield AttendedBlock((begin, end), triangle, causal=True)
        return
    step = BLOCK // region.period * region.period if 0 < region.period <= BLOCK else BLOCK
    for block in range(begin, end, step):
        block_end = min(block + step, end)
        near_key = first_key if region.farthest is None else max(first_key, block - region.farthest)
        yield AttendedBlock((block, block_end), (near_key, min(last_key, block_end - region.nearest)), masked=True)


@dataclass(frozen=True)
class Stack:
    """Calls of one shape, done as one: `call` in the first of `regions`, for each next one some tokens further on.

    step, keys_step: how many, of queries and of keys. Where `keys_step` is 0 all read the same keys, maybe at positions
    of their own. lead: a stack with the same queries, which see all of its keys; those are read before these.
    """

    regions: tuple[Region, ...]
    call: AttendedBlock
    step: int = 0
    keys_step: int = 0
    lead: Stack | None = None

    @property
    def queries(self) -> tuple[int, int]:
        """From the first query to the end of the last call's."""
        return self.call.queries[0], self.call.queries[1] + (len(self.regions) - 1) * self.step

    @property
    def keys(self) -> tuple[int, int]:
        """From the first key to the end of the last call's."""
        return self.call.keys[0], self.call.keys[1] + (len(self.regions) - 1) * self.keys_step

    def extended(self, region: Region, call: AttendedBlock) -> Stack | None:
        """With one more call of the shape, if it is a step on."""
        size = self.call.queries[1] - self.call.queries[0]
        step, keys_step = call.queries[0] - self.queries[1] + size, call.keys[1] - self.keys[1]
        even = step >= size and (len(self.regions) == 1 or (step, keys_step) == (self.step, self.keys_step))
        looks_alike = region.holds is None or (region.period > 0 and step % region.period == 0)
        same_keys = keys_step == 0 or (keys_step > 0 and region.key_position == self.regions[0].key_position)
        if even and looks_alike and same_keys:
            return Stack((*self.regions, region), self.call, step, keys_step)
        return None

    def cut(self, states: Tensor, begin: int, keys: bool = False) -> Tensor:
        """Views (batch, call, head, token, dim) of `states` from token `begin` on: each call's queries, or its keys."""
        (first, last), step = (self.call.keys, self.keys_step) if keys else (self.call.queries, self.step)
        count, size = len(self.regions), last - first
        if not step:
            return states[:, None, :, first - begin : last - begin].expand(-1, count, -1, -1, -1)
        whole = states[:, :, first - begin : last - begin + (count - 1) * step]
        return whole.unfold(2, size, step).permute(0, 2, 1, 4, 3)


def _stacks(plan: Plan, skipped: Container[Region], start: int, first_key: int, biased: bool) -> list[Stack]:
    """The calls of all regions but those skipped, with those of one position of queries next to each other.

    biased: whether positions are a bias, which keys at several positions cannot share.
    """
    stacks: dict[tuple[Any, ...], list[Stack]] = {}
    for region in plan.regions:
        place = region.query_position, region.query_scale
        for call in calls(region, start, plan.length, first_key) if region not in skipped else ():
            sizes = call.queries[1] - call.queries[0], call.keys[1] - call.keys[0]
            seen = (region.nearest, region.farthest, region.holds, call.queries[0] - call.keys[0])
            shape = (sizes, call.causal, call.masked and seen, region.key_scale, biased and region.key_position)
            alike = stacks.setdefault((place, shape), [])
            longer = alike[-1].extended(region, call) if alike else None
            alike[-1:] = [longer] if longer else [*alike[-1:], Stack((region,), call)]
    result: list[Stack] = []
    for place in dict.fromkeys(place for place, _ in stacks):
        group = [stack for (other, _), alike in stacks.items() if other == place for stack in alike]
        few = {
            (stack.call.queries, stack.queries): stack
            for stack in group
            if not (biased or stack.call.causal or stack.call.masked) and stack.keys[1] - stack.keys[0] <= BLOCK
        }
        for stack in group:
            lead = few.pop((stack.call.queries, stack.queries), None) if stack.call.causal else None
            result.append(replace(stack, lead=lead))
        leads = [stack.lead for stack in result]
        result = [stack for stack in result if stack not in leads]
    return result


@dataclass(frozen=True, eq=False)
class Read:
    """Keys that a single query reads once, as the regions that hold them have them.

    held: where they are among the keys held. turns, factors: what they are turned by and multiplied with, None for
    nothing. seen: for each region whether it holds each key; None: the only region holds all. unseen: those that none
    holds, if any.
    """

    held: slice
    turns: Turns | None
    factors: Tensor | None
    seen: tuple[Tensor, ...] | None
    unseen: Tensor | None


@dataclass(frozen=True, eq=False)
class Reads:
    """All that a single query reads, and what it is turned by and multiplied with for each region of each part.

    rows: how many regions each part has. held: where the keys of all parts are, None where not in one piece.
    layouts: how a device reads them, by the number of key heads.
    """

    parts: list[Read]
    rows: list[int]
    held: slice | None
    turns: Turns | None
    factors: Tensor | None
    layouts: dict[int, Any] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether all keys are in one part, of one region that holds each."""
        return self.rows == [1] and self.parts[0].seen is None

    _scaled: dict[tuple[float, int], tuple[Turns | None, Tensor | float | None]] = field(default_factory=dict)

    def scaled(self, scale: float, dim: int) -> tuple[Turns | None, Tensor | float | None]:
        """What a query of so many dims is turned by, and then multiplied with, times a layer's scale; None for nothing.

        Most layers share both. Where all dims are turned, by tables that are accurate enough, those hold the factors.
        """
        known = self._scaled.get((scale, dim))
        if known is None:
            turns, factors = self.turns, self.factors
            if scale != 1:
                factors = scale if factors is None else factors * scale
            if factors is not None and isinstance(turns, tuple) and _exact(turns[0]) and turns[0].shape[-1] == dim:
                turns, factors = (turns[0] * factors, turns[1] * factors), None
            known = self._scaled[scale, dim] = turns, factors
        return known


@dataclass
class Schedule:
    """A plan, bound to the queries from token `start` on and the keys from `first_key` on.

    Positions enter by rotation (`turn`, with keys and queries rotated to `cached` already) or, for ALiBi models, as a
    bias `-slope * (query position - key position)` with one slope a head (`slopes`, (head,)).
    query_weight: factors (dim,) on queries that were turned: those of norms after the model's rotation.
    softcap: c in c tanh(s / c), which each score s becomes. sinks: a score (head,) beside each query's, without value.
    """

    plan: Plan
    start: int
    cached: Position
    turn: Turn | None = None
    slopes: Tensor | None = None
    first_key: int = 0
    softcap: float | None = None
    sinks: Tensor | None = None
    query_weight: Tensor | None = None
    _turns: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    _masks: dict[tuple[Any, ...], Mask] = field(default_factory=dict)
    _factors: dict[tuple[Any, ...], Tensor | None] = field(default_factory=dict)
    _reads: dict[tuple[torch.device, torch.dtype], Reads] = field(default_factory=dict)
    known: dict[Any, Any] = field(default_factory=dict)
    """What all layers share off the CPU."""

    @cached_property
    def paired(self) -> dict[Region, Region]:
        """The stairs that are done as such: regions without a carry, and those with it."""
        commutes = self.slopes is None and self.query_weight is None  # a carry may go to the key instead
        return stairs(self.plan.regions) if commutes else {}

    @cached_property
    def stacks(self) -> list[Stack]:
        """All other calls, those of one shape as one."""
        skipped = {*self.paired, *self.paired.values()}
        return _stacks(self.plan, skipped, self.start, self.first_key, self.slopes is not None)

    @cached_property
    def spans(self) -> dict[tuple[Any, ...], tuple[int, int]]:
        """The tokens from the first to the last that are queries, or keys, at one position and scale."""
        spans: dict[tuple[Any, ...], tuple[int, int]] = {
            ("query", region.query_position, region.query_scale): (
                max(region.queries[0], self.start),
                min(region.queries[1], self.plan.length),
            )
            for region in self.paired
        }
        for stack in self.stacks:
            region = stack.regions[0]
            for place, (begin, end) in (
                (("query", region.query_position, region.query_scale), stack.queries),
                (("key", region.key_position, region.key_scale), stack.keys),
            ):
                low, high = spans.get(place, (begin, end))
                spans[place] = min(low, begin), max(high, end)
        return spans

    def parts(self, begin: int, end: int) -> list[Part]:
        """The parts of the queries begin .. end - 1."""
        aligned = self.query_weight is None  # a weight goes with what is turned
        place = "parts", begin, end, aligned
        if place not in self.known:
            self.known[place] = parts(self.plan, begin, end, self.first_key, aligned)
        return self.known[place]

    def index(self, position: Position, begin: int, end: int, device: torch.device) -> Tensor:
        """The positions of the tokens begin .. end - 1, (token,) in float32."""
        place = "index", position, begin, end, device
        if place not in self.known:
            at = np.asarray(position(np.arange(begin, end)), np.float32)
            self.known[place] = torch.from_numpy(at).to(device, non_blocking=True)
        return self.known[place]

    def turns(self, position: Position, begin: int, end: int) -> np.ndarray | None:
        """By how much cached states of the tokens begin .. end - 1 are turned to a position, (token or 1,)."""
        place = "turns", position, begin, end
        if place not in self.known:
            index = np.arange(begin, end)
            by = np.asarray(position(index) - self.cached(index), np.float32)
            by = by[:1] if (by == by[0]).all() else by
            self.known[place] = by if self.turn is not None and by.any() else None
        return self.known[place]

    def turning(
        self, places: tuple[tuple[Position, int, int], ...], dtype: torch.dtype, device: torch.device
    ) -> tuple[tuple[Tensor, Tensor] | None, dict[tuple[Position, int, int], Tensor]]:
        """cos and sin (turn, pair) of all turns of cached states to positions, and which of them each token has.

        places: positions, and from which token on to which. A place's turns are (token or 1,); it has none where
        nothing is turned, nor is there then a table if no place has.
        """
        known = "turning", places, dtype, device
        if known not in self.known:
            by = {place: turns for place in places if (turns := self.turns(*place)) is not None}
            table = None
            values = np.unique(np.concatenate([np.empty(0, np.float32), *by.values()]))
            if by and isinstance(self.turn, Rotation):
                distinct = torch.from_numpy(values).to(device, non_blocking=True)
                table = self.turn.tables(distinct, self.plan, dtype, device)
            rows = {
                place: torch.from_numpy(np.searchsorted(values, turns).astype(np.int32)).to(device, non_blocking=True)
                for place, turns in by.items()
            }
            self.known[known] = table, rows
        return self.known[known]

    def turned(self, states: Tensor, at: tuple[Position, ...], begin: int, end: int) -> Tensor:
        """`states` of the tokens begin .. end - 1, turned on to each of some positions: one after the other."""
        turns = self._turned_by(at, begin, end, states.device)
        states = states.repeat(1, 1, len(at), 1) if len(at) > 1 else states
        return states if turns is None or self.turn is None else self.turn(states, turns, self.plan)

    def _turned_by(self, at: tuple[Position, ...], begin: int, end: int, device: torch.device) -> Tensor | None:
        """By how much `turned` turns, (token,); None for nothing."""
        if self.turn is None or (set(at) == {self.cached} and self.plan.frequency_scale is None):
            return None
        known = (at, begin, end, device)
        if known not in self._turns:
            index = np.arange(begin, end)
            turns = np.concatenate([position(index) - self.cached(index) for position in at])
            self._turns[known] = torch.from_numpy(turns.astype(np.float32)).to(device, non_blocking=True)
        return self._turns[known]

    def scaled(self, states: Tensor, scale: Scale | None, begin: int, end: int) -> Tensor:
        """`states` of the tokens begin .. end - 1 times the factors that `scale` gives them."""
        accurate = torch.promote_types(states.dtype, torch.float32)  # rounded to states' dtype it would move all scores
        return _times(states, self.factor(scale, begin, end, accurate, states.device))

    def factor(
        self, scale: Scale | None, begin: int, end: int, accurate: torch.dtype, device: torch.device
    ) -> Tensor | None:
        """What `scaled` multiplies with, (token, 1); None for nothing."""
        if scale is None:
            return None
        known = (scale, begin, end, accurate, device)
        if known not in self._factors:
            factors = np.asarray(scale(np.arange(begin, end)), np.float64)
            tensor = torch.from_numpy(factors).to(accurate).unsqueeze(1).to(device, non_blocking=True)
            self._factors[known] = None if (factors == 1).all() else tensor
        return self._factors[known]

    def query(self, states: Tensor, region: Region, begin: int, end: int) -> Tensor:
        """The queries begin .. end - 1 at the positions and the scale that a region gives them."""
        turned = self.weighted(self.turned(states, (region.query_position,), begin, end))
        return self.scaled(turned, region.query_scale, begin, end)

    def weighted(self, states: Tensor) -> Tensor:
        """Queries that were turned, times their weight, if any."""
        return states if self.query_weight is None else states * self.query_weight

    def key(self, states: Tensor, region: Region, begin: int, end: int) -> Tensor:
        """The keys begin .. end - 1 at the positions and the scale that a region gives them."""
        return self.scaled(self.turned(states, (region.key_position,), begin, end), region.key_scale, begin, end)

    def keys(self, states: Tensor, stack: Stack) -> Tensor:
        """The keys of a stack whose calls read the same ones, at the positions that each gives them: as `Stack.cut`."""
        at, key_scale = tuple(region.key_position for region in stack.regions), stack.regions[0].key_scale
        turned = self.turned(self.scaled(states, key_scale, *stack.keys), at, *stack.keys)
        return turned.unflatten(2, (len(at), -1)).transpose(1, 2)

    def query_of(self, state: Tensor, reads: Reads, scale: float = 1.0) -> Tensor:
        """The only query (batch, head, 1, dim), times `scale`, as the regions of all parts have it.

        (batch, head, region, dim)
        """
        if reads.turns is reads.factors is self.query_weight is None and scale == 1 and reads.plain:
            return state
        rows = sum(reads.rows)
        turns, factors = reads.scaled(scale, state.shape[-1])
        states = state if rows == 1 or isinstance(turns, tuple) else state.expand(-1, -1, rows, -1)
        if turns is not None and self.turn is not None:
            states = self.turn(states, turns, self.plan)
        if self.query_weight is not None:
            states = states * self.query_weight
        return _times(states, factors)

    def keys_of(self, states: Tensor, read: Read) -> Tensor:
        """The keys of a part out of all that are held."""
        states = held(states, read.held)
        if read.turns is not None and self.turn is not None:
            states = self.turn(states, read.turns, self.plan)
        return _times(states, read.factors)

    def reads(self, device: torch.device, dtype: torch.dtype) -> Reads:
        """What the only query reads: regions with the same keys at the same positions together."""
        if (device, dtype) not in self._reads:
            self._reads[device, dtype] = self._all_read(device, dtype)
        return self._reads[device, dtype]

    def _steps(
        self, at: tuple[Position, ...], begin: int, end: int, device: torch.device, dtype: torch.dtype
    ) -> Turns | None:
        """What `turned` turns by, for a single query: on a CPU tables, kept from step to step where they can be."""
        if not isinstance(self.turn, Rotation) or by_launches(device):
            return self._turned_by(at, begin, end, device)
        kept = None
        if any(position != self.cached for position in at):
            kept = self.turn.stepped(at, self.cached, begin, end, self.plan, dtype)
        turns = self._turned_by(at, begin, end, device) if kept is None else None
        return kept if turns is None else self.turn.tables(turns, self.plan, dtype, device, spread=True)

    def _all_read(self, device: torch.device, dtype: torch.dtype) -> Reads:
        accurate = torch.promote_types(dtype, torch.float32)
        shared: dict[tuple[Any, ...], list[Region]] = {}
        for region in self.plan.regions:
            if not region.queries[0] <= self.start < region.queries[1]:
                continue
            span = span_of(region, self.start, self.plan.length, self.first_key)
            if span is not None:
                same = (span.keys, region.holds is not None, region.key_position, region.key_scale)
                shared.setdefault(same, []).append(region)
        parts, places, at = list[Read](), list[list[Region]](), (self.start, self.plan.length)
        whole = sorted(shared.items(), key=lambda item: item[0][0])
        if by_launches(device):  # where turned keys are all in memory at a time
            whole = [
                ((half, *place), regions) for (keys, *place), regions in whole for half in self._halves(keys, place[1])
            ]
        for (keys, masked, position, scale), regions in whole:
            (begin, end), seen, unseen = keys, None, None
            if masked:
                index = np.arange(begin, end)  # all of them near and far enough
                seeing = [holds(self.start, index) for region in regions if (holds := region.holds)]
                sees = np.stack([np.broadcast_to(part, index.shape) for part in seeing])
                blind = ~sees.any(0)
                if blind.all():
                    continue
                seen = torch.from_numpy(sees).to(device, non_blocking=True).unbind()
                unseen = torch.from_numpy(blind).to(device, non_blocking=True) if blind.any() else None
            turns = self._steps((position,), begin, end, device, dtype)
            factors = self.factor(scale, begin, end, accurate, device)
            parts.append(Read(slice(begin - self.first_key, end - self.first_key), turns, factors, seen, unseen))
            places.append(regions)
        if not parts:
            return Reads([], [], None, None, None)
        rows = [region for regions in places for region in regions]
        whole = all(one.held.stop == other.held.start for one, other in pairwise(parts))
        positions = tuple(region.query_position for region in rows)
        scales = [region.query_scale for region in rows]
        return Reads(
            parts,
            list(map(len, places)),
            slice(parts[0].held.start, parts[-1].held.stop) if whole else None,
            self._steps(positions, *at, device, dtype),
            self._row_factors(scales, accurate, device),
        )

    def _row_factors(self, scales: list[Scale | None], accurate: torch.dtype, device: torch.device) -> Tensor | None:
        """What the rows of the only query are multiplied with, (row, 1); None for nothing."""
        if all(scale is None for scale in scales):
            return None
        if not by_launches(device) and all(isinstance(scale, Bounded | Product | None) for scale in scales):
            return _steps_factors(tuple(scales), self.start // STEPS, accurate)[self.start % STEPS]
        one = torch.ones(1, 1, dtype=accurate, device=device)
        factors = [self.factor(scale, self.start, self.plan.length, accurate, device) for scale in scales]
        return torch.cat([one if factor is None else factor for factor in factors])

    def _halves(self, keys: tuple[int, int], position: Position) -> list[tuple[int, int]]:
        """A range of keys in two where it is long and they have to be turned."""
        middle = (keys[0] + keys[1]) // 2
        if keys[1] - keys[0] < HALVED or self.turn is None or position == self.cached:
            return [keys]
        return [(keys[0], middle), (middle, keys[1])]

    def scoring(self, softcap: float | None, sinks: Tensor | None, query_weight: Tensor | None = None) -> Schedule:
        """The same with a layer's own soft cap, sinks and weight, if any; it shares what was laid out."""
        if softcap is None and sinks is None and query_weight is None:
            return self
        other = copy.copy(self)
        other.softcap, other.sinks, other.query_weight = softcap, sinks, query_weight
        for laid_out in ("paired", "stacks", "spans") if query_weight is not None else ():
            vars(other).pop(laid_out, None)
        return other

    def of_heads(self, heads: Sequence[int]) -> Schedule:
        """The same for those query heads alone."""
        if self.slopes is None and self.sinks is None:
            return self
        other = copy.copy(self)
        other.slopes, other.sinks = (part if part is None else part[list(heads)] for part in (self.slopes, self.sinks))
        return other

    def seeing(self, span: Span, first_key: int) -> Schedule:
        """The same for layers that see a window or a chunk of the past, without keys before `first_key`."""
        regions = _chunks(self.plan, span.size, self.start) if span.chunked else _within(self.plan, span.size)
        plan = replace(self.plan, regions=regions)
        return replace(self, plan=plan, first_key=first_key, _turns={}, _masks={}, _reads={}, known={})

    def turning_by(self, turn: Rotation | None) -> Schedule:
        """The same for layers of this rotary embedding; None: of none."""
        laid_out = self._turns, self._masks, self._factors
        weights = self.slopes, self.first_key, self.softcap, self.sinks, self.query_weight
        return Schedule(self.plan, self.start, self.cached, turn, *weights, *laid_out)

    def mask(self, region: Region, call: AttendedBlock, like: Tensor) -> Mask:
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

    def _periodic(self, region: Region, call: AttendedBlock, like: Tensor) -> Tensor:
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


@lru_cache(maxsize=16)
def _steps_factors(scales: tuple[Scale | None, ...], number: int, accurate: torch.dtype) -> Tensor:
    """Factors of STEPS tokens, (token, row, 1); number: how often as many come before them."""
    index = np.arange(number * STEPS, (number + 1) * STEPS)
    factors = [np.ones(STEPS) if scale is None else np.asarray(scale(index), np.float64) for scale in scales]
    return torch.from_numpy(np.stack(factors, 1)).to(accurate).unsqueeze(2)


def held(states: Tensor, tokens: slice) -> Tensor:
    """Those tokens of `states` (batch, head, token, dim)."""
    return states if tokens.stop - tokens.start == states.shape[2] else states[:, :, tokens]


def _exact(states: Tensor) -> bool:
    return states.dtype in (torch.float32, torch.float64)


def _times(states: Tensor, factors: Tensor | float | None) -> Tensor:
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
            queries, keys = ((max(low, begin), min(high, begin + size)) for low, high in (region.queries, region.keys))
            if queries[0] < queries[1] and keys[0] < keys[1] and region.nearest < size:
                regions.append(replace(region, queries=queries, keys=keys))
    return tuple(regions)


def _seen(region: Region, queries: tuple[int, int], keys: tuple[int, int], device: torch.device) -> Tensor:
    """Whether the region holds each pair (query, key) of two ranges."""
    index = [torch.arange(*span, device=device) for span in (queries, keys)]
    return region.contains(index[0][:, None], index[1][None, :])
