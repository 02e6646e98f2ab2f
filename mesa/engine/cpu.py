"""The CPU's executor: the spans of a plan's parts, each by PyTorch's flash attention for CPUs, merged by log-sum-exp.

That kernel knows full rectangles, triangles and masks. So a band is done BLOCK queries at a time with a mask, and only
Stair PE's far part, whose pattern would mask half of all pairs, has a way of its own: `stairs`. benchmarks/planner.py
measures what that saves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mesa.engine.schedule import Schedule
from mesa.engine.scores import capped, with_bias
from mesa.engine.spans import PairSpan, Part, parts, span_of
from mesa.plan import Carry, Region, Stepped

BLOCK = 128
"""Queries a call (tokens) where a mask has to be built: as many keys more than needed are read by each query."""

_SMALL = 1024
"""Triangles up to this size (tokens) are done by rows: the kernel takes 512 keys at a time or skips them."""

GROUP = 192
"""Queries a call, about (tokens): fewer read keys too often, more have more residues to mask."""

MIN_RESIDUE_QUERIES = 256
"""Queries below which keys are read residue by residue: sorting them costs more (tokens)."""

_MIN_RESIDUE_KEYS = 16
"""Keys of a residue (tokens): with fewer, all are read twice with a mask."""

LEAF = 256
"""Queries of a triangle that is left to a mask (tokens)."""

_KEYS = 2048
"""Keys sorted at a time (tokens)."""


class AttendedBlock(NamedTuple):
    """One attention call: queries and keys by index, and whether the lower triangle or a mask applies."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    causal: bool = False
    masked: bool = False


def calls(region: Region | PairSpan, start: int, length: int, first_key: int = 0) -> Iterator[AttendedBlock]:
    """The calls that cover the region's pairs with queries `start` .. `length` - 1, each pair once.

    Pairs with keys before `first_key` are left out.
    """
    span = span_of(region, start, length, first_key)
    if span is None:
        return
    (begin, end), (first_key, last_key) = span.queries, span.keys
    if span.holds is None and span.farthest is not None and begin < first_key + span.farthest - BLOCK:
        opened = min(end, first_key + span.farthest + 1)  # queries before it have no key too far
        yield from calls(span._replace(queries=(begin, opened), farthest=None), start, length, first_key)
        if opened < end:
            yield from calls(span._replace(queries=(opened, end)), start, length, first_key)
        return
    if span.holds is None and (span.farthest is None or end - begin == 1):
        edge = begin - span.nearest + (end - begin == 1)  # keys before it are seen by every query
        if first_key < edge:
            yield AttendedBlock((begin, end), (first_key, min(edge, last_key)))
        triangle = (max(edge, first_key), min(last_key, end - span.nearest))
        if triangle[0] < triangle[1]:
            yield AttendedBlock((begin, end), triangle, causal=True)
        return
    step = BLOCK // span.period * span.period if 0 < span.period <= BLOCK else BLOCK
    for block in range(begin, end, step):
        block_end = min(block + step, end)
        near_key = first_key if span.farthest is None else max(first_key, block - span.farthest)
        yield AttendedBlock((block, block_end), (near_key, min(last_key, block_end - span.nearest)), masked=True)


def attend_spans(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention output (batch, head, query, dim) by a plan: span by span, merged by log-sum-exp."""
    merged, start = Merged(query), schedule.start
    stair_pairs, planned = _planned(schedule)
    for region, carried in stair_pairs.items():
        for (begin, end), output, log_sum in _stair(schedule, region, carried, query, key, value, scale):
            merged.add(begin - start, end - start, output, log_sum)
    for (begin, end), group in planned:
        rotated = schedule.query(query[:, :, begin - start : end - start], group[0][0], begin, end)  # once for all
        for part, blocks in group:
            rows = rotated[:, :, part.queries[0] - begin : part.queries[1] - begin]
            _attend_part(schedule, part, blocks, rows, key, value, scale, merged)
    return merged.output(schedule.sinks)


def _attend_part(
    schedule: Schedule, part: Part, blocks: Blocks, rows: Tensor, key: Tensor, value: Tensor, scale: float,
    merged: Merged,
) -> None:  # fmt: skip
    """Adds a part's calls, of these rotated queries and all cached keys."""
    (low, high), begin, dim, offset = part.keys, part.queries[0], rows.shape[3], None
    cached = slice(low - schedule.first_key, high - schedule.first_key)
    keys, values = schedule.key(key[:, :, cached], part, low, high), value[:, :, cached]
    if schedule.slopes is not None:
        states = rows, keys, values
        rows, keys, values, offset = with_bias(states, schedule.slopes, scale, part, part.queries, part.keys)
    for span, block, lead in blocks:
        (first, last), (first_key, last_key) = block.queries, block.keys
        at, among = slice(first - begin, last - begin), slice(first_key - low, last_key - low)
        mask = mask_of(schedule, span, block, rows.dtype) if block.masked else None
        states, leading = (rows[:, :, at], keys[:, :, among], values[:, :, among]), 0
        if lead is not None:
            few = slice(lead.keys[0] - schedule.first_key, lead.keys[1] - schedule.first_key)
            own, leading = schedule.key(key[:, :, few], lead, *lead.keys), few.stop - few.start
            states = states[0], torch.cat([own, states[1]], 2), torch.cat([value[:, :, few], states[2]], 2)
        output, log_sum = attend(*states, scale, block.causal, mask, schedule.softcap, leading)
        if offset is not None:
            output, log_sum = output[..., :dim], log_sum + offset[:, at]
        merged.add(first - schedule.start, last - schedule.start, output, log_sum)


Blocks = list[tuple[PairSpan, "AttendedBlock", Part | None]]
"""Calls, each with the span that it is of, and with a part of few keys that all of its queries see as well, if any."""

PartGroup = tuple[tuple[int, int], list[tuple[Part, Blocks]]]
"""Parts whose queries have one position and scale, with their calls, and the range of all of those queries."""


def _planned(
    schedule: Schedule,
) -> tuple[dict[Region, Region], list[PartGroup]]:
    """The stairs, regions without a carry and those with it; and all other parts with their calls."""
    commutes = schedule.slopes is None and schedule.query_weight is None  # a carry may go to the key instead
    key = "calls", commutes, schedule.softcap is None
    if key not in schedule.cache:
        plan, start, first_key = schedule.plan, schedule.start, schedule.first_key
        pairs = stairs(plan.regions) if commutes else {}
        regions: dict[tuple[Any, ...], list[Region]] = {}
        for region in plan.regions:
            if region not in pairs and region not in pairs.values():
                regions.setdefault((region.query_position, region.query_scale), []).append(region)
        leads, groups = schedule.slopes is None and schedule.softcap is None, list[PartGroup]()
        for alike in regions.values():
            group = list[tuple[Part, Blocks]]()
            for part in parts(replace(plan, regions=tuple(alike)), start, plan.length, first_key, aligned=False):
                blocks = Blocks()
                for span in part.spans:
                    blocks += [(span, block, None) for block in calls(span, start, plan.length, first_key)]
                if not (leads and _leads(part, blocks, group)):
                    group.append((part, blocks))
            if group:
                queries = [part.queries for part, _ in group]
                groups.append(((min(first for first, _ in queries), max(last for _, last in queries)), group))
        schedule.cache[key] = pairs, groups
    return schedule.cache[key]


def _leads(part: Part, blocks: Blocks, group: list[tuple[Part, Blocks]]) -> bool:
    """Has a small triangle's call read this part's keys as well, if all of its queries see them.

    Mesa's chunks each see the first few tokens: a call for those takes as long as a fifth of the chunk's.
    """
    if len(blocks) > 1 or blocks[0][1].causal or blocks[0][1].masked or part.keys[1] - part.keys[0] > BLOCK:
        return False
    for _, others in group:
        for number, (span, block, lead) in enumerate(others):
            small = block.causal and lead is None and block.queries[1] - block.queries[0] <= _SMALL
            if small and block.queries == blocks[0][1].queries:
                others[number] = span, block, part
                return True
    return False


def mask_of(schedule: Schedule, span: PairSpan, block: AttendedBlock, dtype: torch.dtype) -> Mask:
    """The mask of a call, cached where it is small or the same for other calls and layers."""
    sizes = block.queries[1] - block.queries[0], block.keys[1] - block.keys[0]
    offset = block.queries[0] - block.keys[0]  # a band looks the same wherever it is
    band = span.nearest, span.farthest, span.holds
    key = "mask", band, offset, sizes, dtype, span.holds and block
    if key in schedule.cache:
        return schedule.cache[key]
    if span.holds is None or sizes[0] == 1:
        schedule.cache[key] = Mask.of(_seen(span, block.queries, block.keys), dtype)
    elif 0 < span.period <= BLOCK:
        added = _periodic(schedule, span, block, dtype)
        schedule.cache[key] = Mask(added, added.isneginf().all(-1))
    else:  # as large as the scores of a block: made again each time
        return Mask.of(_seen(span, block.queries, block.keys), dtype)
    return schedule.cache[key]


def _periodic(schedule: Schedule, span: PairSpan, block: AttendedBlock, dtype: torch.dtype) -> Tensor:
    """What to add to a call's scores, cut out of what serves all calls whose queries begin at the same phase."""
    length, phase = schedule.plan.length, block.queries[0] % span.period
    rows = min(BLOCK, length - schedule.start)
    begin = -(-length // span.period) * span.period + phase  # no call's queries begin later
    key = "periodic", span.nearest, span.farthest, span.holds, phase, dtype
    if key not in schedule.cache:
        seen = _seen(span, (begin, begin + rows), (0, begin + rows))
        schedule.cache[key] = Mask.of(seen, dtype)
    moved = begin - block.queries[0]
    (q0, q1), (k0, k1) = block.queries, block.keys
    return schedule.cache[key].added[: q1 - q0, k0 + moved : k1 + moved]


def _seen(span: PairSpan, queries: tuple[int, int], keys: tuple[int, int]) -> Tensor:
    """Whether a span holds each pair (query, key) of two ranges."""
    return span.seen(torch.arange(*queries)[:, None], torch.arange(*keys)[None, :])


@dataclass(frozen=True)
class Mask:
    """A mask as the kernels take it: 0 or -inf to add, (query, key), and which queries see nothing, None for none."""

    added: Tensor
    blind: Tensor | None

    @classmethod
    def of(cls, seen: Tensor, dtype: torch.dtype) -> Mask:
        """From booleans, True where a query sees a key."""
        blind = ~seen.any(-1)
        added = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -math.inf)
        return cls(added, blind if bool(blind.any()) else None)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, mask: Mask | None,
    softcap: float | None = None, lead: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Softmax attention and its log-sum-exp over the keys (-inf where a query sees none).

    Shapes: query (batch, head, q, dim), key and value (batch, key head, k, dim), mask (q, k); returns
    (batch, head, q, dim) and (batch, head, q). `causal` is the lower triangle from the top left, of the keys after the
    first `lead`, which every query of a small triangle sees.
    softcap: c in c tanh(s / c), which no kernel knows: plain operations, slower.
    """
    if softcap is not None:
        return attend_plainly(query, key, value, scale, causal, mask, softcap)
    if causal and (lead or BLOCK < query.shape[2] <= _SMALL):
        return _by_rows(query, key, value, scale, lead)
    output, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=None if mask is None else mask.added, scale=scale
    )
    if mask is not None and mask.blind is not None:  # where the kernel reports 0 or NaN
        output.masked_fill_(mask.blind.unsqueeze(1), 0.0)
        log_sum.masked_fill_(mask.blind, -math.inf)
    return output, log_sum


def _by_rows(query: Tensor, key: Tensor, value: Tensor, scale: float, lead: int) -> tuple[Tensor, Tensor]:
    """`attend` on a small triangle, a few rows at a time with the keys that some of them see."""
    parts = []
    for begin in range(0, query.shape[2], BLOCK):
        rows = query[:, :, begin : begin + BLOCK]
        columns = slice(min(lead + begin + rows.shape[2], key.shape[2]))
        mask = _lower(lead + begin, rows.shape[2], columns.stop, query.dtype)
        parts.append(attend(rows, key[:, :, columns], value[:, :, columns], scale, False, mask))
    outputs, log_sums = zip(*parts, strict=True)
    return torch.cat(outputs, 2), torch.cat(log_sums, 2)


@functools.lru_cache(maxsize=16)
def _lower(begin: int, rows: int, columns: int, dtype: torch.dtype) -> Mask:
    """A triangle's rows from `begin` on."""
    return Mask.of(torch.arange(begin, begin + rows)[:, None] >= torch.arange(columns), dtype)


def attend_plainly(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, mask: Mask | None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`attend` in plain operations, BLOCK queries at a time."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    accurate = torch.promote_types(query.dtype, torch.float32)
    outputs, log_sums = [], []
    for begin in range(0, query.shape[2], BLOCK):
        rows = query[:, :, begin : begin + BLOCK].to(accurate)
        keys = slice(min(begin + BLOCK, key.shape[2]) if causal else key.shape[2])
        scores = capped(rows @ key[:, :, keys].transpose(-1, -2).to(accurate) * scale, softcap)
        if causal:
            ones = torch.ones(scores.shape[2:], dtype=torch.bool)
            scores = scores.masked_fill(~ones.tril(begin), -math.inf)
        if mask is not None:
            scores = scores + mask.added[begin : begin + BLOCK, keys]
        log_sum = scores.logsumexp(-1)
        weights = (scores - log_sum[..., None]).exp().nan_to_num(nan=0.0)
        outputs.append(weights.to(query.dtype) @ value[:, :, keys])
        log_sums.append(log_sum)
    return torch.cat(outputs, 2), torch.cat(log_sums, 2)


class Merged:
    """Running merge of attention parts over disjoint keys, in float32 or better.

    total: (batch, head, token, dim), in memory as models want the output, token by token; log_sum: (batch, head,
    token, 1).
    """

    def __init__(self, query: Tensor) -> None:
        self.query, self.accurate = query, torch.promote_types(query.dtype, torch.float32)
        self.total: Tensor | None = None
        self.log_sum = query.new_empty(0)
        self.begun = 0  # rows from it on have no part yet

    def add(self, begin: int, end: int, output: Tensor, log_sum: Tensor) -> None:
        """Adds a part of the rows begin .. end - 1."""
        log_sum = log_sum[..., None]
        first, self.begun = begin >= self.begun, max(self.begun, end)
        if self.total is None:
            if output.shape == self.query.shape:
                self.total, self.log_sum = output, log_sum
                return
            batch, heads, tokens, dim = self.query.shape
            self.total = self.query.new_zeros(batch, tokens, heads, dim, dtype=self.accurate).transpose(1, 2)
            self.log_sum = self.total.new_full((batch, heads, tokens, 1), -math.inf)
        if self.total.dtype != self.accurate:
            self.total = self.total.to(self.accurate)
        total, total_log = self.total[:, :, begin:end], self.log_sum[:, :, begin:end]
        if first:
            total.copy_(output)
            total_log.copy_(log_sum)
            return
        new_log = torch.logaddexp(total_log, log_sum)
        share = (log_sum - new_log).exp().nan_to_num(nan=0.0)  # NaN: neither part saw a key
        total.lerp_(output.to(self.accurate), share)
        total_log.copy_(new_log)

    def output(self, sinks: Tensor | None = None) -> Tensor:
        """The merged output in the query's dtype; sinks (head,): a further term of each head's softmax, as a score."""
        if self.total is None:
            return torch.zeros_like(self.query)
        output = self.total
        if sinks is not None:
            output = output * (self.log_sum - sinks.to(self.log_sum)[:, None, None]).sigmoid()
        return output.to(self.query.dtype)


Range = tuple[int, int]
StairPart = tuple[Range, Tensor, Tensor]
"""Queries, their output (batch, head, query, dim) and log-sum-exp (batch, head, query)."""


def stairs(regions: Sequence[Region]) -> dict[Region, Region]:
    """The regions without a carry, and for each the one with a carry over the same queries and keys."""
    pairs = {}
    for plain in regions:
        carry, position = plain.holds, plain.query_position
        if not (isinstance(carry, Carry) and isinstance(position, Stepped) and isinstance(plain.key_position, Stepped)):
            continue
        is_causal = plain.farthest is None and plain.keys[1] >= plain.queries[1] - plain.nearest
        one_less = replace(position, offset=position.offset - 1)
        carried = replace(plain, holds=replace(carry, carried=True), query_position=one_less)
        if is_causal and not carry.carried and carried in regions:
            pairs[plain] = carried
    return pairs


def _stair(
    schedule: Schedule, region: Region, carried: Region, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> Iterator[StairPart]:
    """What a stair gives of a schedule's states."""
    start, first_key = schedule.start, schedule.first_key
    low = max(region.keys[0], first_key)
    first, last = max(region.queries[0], start, low + region.nearest), min(region.queries[1], schedule.plan.length)
    if first >= last:
        return
    rotated = schedule.query(query[:, :, first - start : last - start], region, first, last)  # once for all parts

    def queries(of: Region, begin: int, end: int) -> Tensor:
        if of is region:
            return rotated[:, :, begin - first : end - first]
        return schedule.query(query[:, :, begin - start : end - start], of, begin, end)

    def keys(of: Region, begin: int, end: int) -> Tensor:
        return schedule.key(key[:, :, begin - first_key : end - first_key], of, begin, end)

    def values(begin: int, end: int) -> Tensor:
        return value[:, :, begin - first_key : end - first_key]

    states = queries, keys, values, scale
    yield from Stair(region, carried, first, last, low, *states, schedule.cache, schedule.softcap).parts()


@dataclass
class Stair:
    """Stair PE's far part with every pair computed once.

    Its distance is a difference of two floors, less one where the residues of query and key carry. Among keys sorted by
    residue, those without a carry for one query are a prefix and the others a suffix, so queries grouped by residue
    need no mask but for the few residues inside their group. Far keys are a triangle; it is halved into rectangles, in
    which every query sees every key, down to triangles that are small enough for a mask.

    A stair's regions without and with a carry, for the queries `begin` .. `end` - 1 and the keys from `low` on.

    queries, keys: those of a span at a region's positions, values: those of a span; all (batch, head, tokens, dim). A
    carry is one position less of the query, or one more of the key.
    """

    region: Region
    carried: Region
    begin: int
    end: int
    low: int
    queries: Callable[[Region, int, int], Tensor]
    keys: Callable[[Region, int, int], Tensor]
    values: Callable[[int, int], Tensor]
    scale: float
    cache: dict[Any, Any]
    softcap: float | None = None

    def parts(self) -> Iterator[StairPart]:
        """Attention in parts that have no pair twice."""
        low, end = self.low, self.end
        edge = self.begin - self.region.nearest + 1  # keys before it are seen by every query
        if edge - low >= GROUP:
            yield from self._rectangle((self.begin, end), (low, edge))
            low = edge
        yield from self._triangle(self.begin, end, low)

    def _triangle(self, begin: int, end: int, low: int) -> Iterator[StairPart]:
        """All keys from `low` on that these queries see."""
        step = LEAF // self._carry.width * self._carry.width or LEAF  # masks look alike one period on
        if end - begin <= step:
            if low < end - self.region.nearest:
                yield self._leaf((begin, end), (low, end - self.region.nearest))
            return
        middle = begin + -(-(end - begin) // (2 * step)) * step
        edge = middle - self.region.nearest + 1
        yield from self._triangle(begin, middle, low)
        yield from self._rectangle((middle, end), (low, edge))
        yield from self._triangle(middle, end, edge)

    def _leaf(self, queries: Range, keys: Range) -> StairPart:
        width = self._carry.width
        offset = queries[0] - keys[0]
        rows = self.queries(self.region, *queries)
        sizes = queries[1] - queries[0], keys[1] - keys[0]
        key = "leaf", self.region, offset, sizes, queries[0] % width, rows.dtype
        if key not in self.cache:
            query, token = torch.arange(*queries)[:, None], torch.arange(*keys)
            seen = query - token >= self.region.nearest
            carried = self._carry(query, token) != self._carry.carried
            both = torch.cat([seen & carried, seen & ~carried], 1)
            self.cache[key] = Mask.of(both, rows.dtype)
        output = attend(rows, self._both(keys), self._twice(keys), self.scale, False, self.cache[key], self.softcap)
        return (queries, *output)

    def _rectangle(self, queries: Range, keys: Range) -> Iterator[StairPart]:
        """All these keys, which each of these queries sees."""
        even_end = keys[0] + (keys[1] - keys[0]) // self._carry.width * self._carry.width
        if queries[1] - queries[0] >= MIN_RESIDUE_QUERIES:
            yield self._grouped(queries, keys)
        elif even_end - keys[0] >= _MIN_RESIDUE_KEYS * self._carry.width:
            yield self._by_residue(queries, (keys[0], even_end))
            if even_end < keys[1]:
                yield self._leaf(queries, (even_end, keys[1]))
        else:
            yield self._leaf(queries, keys)

    def _by_residue(self, queries: Range, keys: Range) -> StairPart:
        """One call for the keys of each residue: for one query all of them have a carry or none has."""
        width, plain = self._carry.width, self.queries(self.region, *queries)
        residues = (torch.arange(*queries) + self._carry.shift) % width
        carries = residues < (torch.arange(keys[0], keys[0] + width) % width)[:, None]
        rows = torch.where(carries[:, None, :, None], self.queries(self.carried, *queries)[:, None], plain[:, None])
        columns, values = (
            states.unflatten(2, (-1, width)).permute(0, 3, 1, 2, 4)  # (batch, residue, head, key, dim)
            for states in (self.keys(self.region, *keys), self.values(*keys))
        )
        parts = [
            attend(*text, self.scale, False, None, self.softcap) for text in zip(rows, columns, values, strict=True)
        ]
        outputs, log_sums = map(torch.stack, zip(*parts, strict=True))
        return queries, (outputs * log_sums.softmax(1)[..., None]).sum(1), log_sums.logsumexp(1)

    def _grouped(self, queries: Range, keys: Range) -> StairPart:
        """Queries and keys in the order of their residues."""
        residues = (torch.arange(*queries) + self._carry.shift) % self._carry.width
        order = residues.argsort(stable=True)
        states = self.queries(self.region, *queries)
        rows = states[:, :, order]
        merged = Merged(rows)
        for low in range(keys[0], keys[1], _KEYS):
            self._sorted(rows, residues[order], (low, min(low + _KEYS, keys[1])), merged)
        assert merged.total is not None
        back = order.argsort()
        return queries, merged.total[:, :, back], merged.log_sum[:, :, back, 0]

    def _sorted(self, rows: Tensor, residues: Tensor, keys: Range, merged: Merged) -> None:
        """Adds the attention of queries in the order of their residues over these keys."""
        width = self._carry.width
        key_residues = torch.arange(*keys) % width
        order = key_residues.argsort(stable=True)
        key_residues, count, chosen = key_residues[order], len(order), torch.cat([order + len(order), order])
        both, values = self._both(keys)[:, :, chosen], self._twice(keys)[:, :, chosen]  # with a carry, then without
        group = max(1, round(GROUP * width / len(residues)))
        for first in range(0, width, group):  # residues
            last = min(first + group, width) - 1
            begin, end = torch.searchsorted(residues, torch.tensor([first, last + 1])).tolist()
            if begin == end:
                continue
            low, high = torch.searchsorted(key_residues, torch.tensor([first + 1, last + 1])).tolist()
            span, mask = slice(low, count + high), None
            if low < high:  # keys whose carry depends on the query: twice among these, at both ends
                carries = residues[begin:end, None] < key_residues[low:high]
                mask = Mask(rows.new_zeros(end - begin, span.stop - span.start), None)
                mask.added[:, : high - low].masked_fill_(~carries, -math.inf)
                mask.added[:, low - high :].masked_fill_(carries, -math.inf)
            part = attend(
                rows[:, :, begin:end], both[:, :, span], values[:, :, span], self.scale, False, mask, self.softcap
            )
            merged.add(begin, end, *part)

    @property
    def _carry(self) -> Carry:
        assert isinstance(self.region.holds, Carry)
        return self.region.holds

    def _both(self, keys: Range) -> Tensor:
        """The keys without a carry, then those with one."""
        position = self.region.key_position
        assert isinstance(position, Stepped)
        further = replace(self.region, key_position=replace(position, offset=position.offset + 1))
        return torch.cat([self.keys(self.region, *keys), self.keys(further, *keys)], 2)

    def _twice(self, keys: Range) -> Tensor:
        return self.values(*keys).repeat(1, 1, 2, 1)
