"""Executors: they obey a plan and know nothing of methods.

`dense` builds the whole score matrix: O(T^2) memory, gradients, attention weights. `fused` computes attention over
each region by itself and merges the parts exactly through their log-sum-exp: O(T) memory beside queries and keys.
Both take queries of the tokens `start` .. plan.length - 1 and keys of 0 .. plan.length - 1, all rotated to the
schedule's `cached` positions, and turn them on to the plan's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mesa.engine.compiled import by_launches, one_launch
from mesa.engine.decode import by_two_launches
from mesa.engine.kernels import Mask, Merged, attend, capped, scores_of
from mesa.engine.rope import biased, with_bias
from mesa.engine.schedule import Read, Reads, Schedule, Stack, held
from mesa.engine.stairs import Stair
from mesa.errors import Failed, Refused
from mesa.plan import Region


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
        part = capped(part, schedule.softcap)
        if schedule.slopes is not None:
            part = biased(part, schedule.slopes, region, queries, keys)
        scores = torch.where(region.contains(queries, keys), part, scores)
    return scores


def softmax(scores: Tensor, sinks: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Weights (batch, head, query, key) in `dtype`; with sinks (head,), they sum to less than 1."""
    accurate = torch.promote_types(dtype, torch.float32)
    if sinks is None:
        return scores.softmax(-1) if scores.dtype == dtype == accurate else scores.softmax(-1, dtype=accurate).to(dtype)
    sink = sinks.to(scores)[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, sink], -1).softmax(-1, dtype=accurate)[..., :-1].to(dtype)


def dense(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention output (batch, head, query, dim) and weights (batch, head, query, key) by one full score matrix."""
    scores = scored(schedule, query, key, scale)
    weights = softmax(scores, schedule.sinks, query.dtype)
    return weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1), weights


def rows(schedule: Schedule, query: Tensor, key: Tensor, scale: float, chosen: Sequence[int]) -> Tensor:
    """Weights (batch, head, chosen, key) of the tokens `chosen` as queries; arguments as an executor's.

    Keys are those from `schedule.first_key` on. Raises Refused for a token whose query is not there.
    """
    start, length, first_key = schedule.start, schedule.plan.length, schedule.first_key
    for token in chosen:
        if not start <= token < length:
            raise Refused(f"no query of token {token} is in this pass; it has those of {start} to {length - 1}")
    groups = query.shape[1] // key.shape[1]
    scores = query.new_full((*query.shape[:2], len(chosen), key.shape[2]), -math.inf)
    for region in schedule.plan.regions:
        mine = [row for row, token in enumerate(chosen) if region.queries[0] <= token < region.queries[1]]
        low, high = max(region.keys[0], first_key), min(region.keys[1], length)
        if not mine or low >= high:
            continue
        tokens = [chosen[row] for row in mine]
        parts = [schedule.query(query[:, :, token - start, None], region, token, token + 1) for token in tokens]
        keys = schedule.key(key[:, :, low - first_key : high - first_key], region, low, high)
        part = torch.cat(parts, 2) @ keys.repeat_interleave(groups, 1).transpose(-1, -2) * scale
        part = capped(part, schedule.softcap)
        queries = torch.tensor(tokens, device=query.device)[:, None]
        index = torch.arange(low, high, device=query.device)[None, :]
        if schedule.slopes is not None:
            part = biased(part, schedule.slopes, region, queries, index)
            scores = scores.to(part.dtype)
        columns = slice(low - first_key, high - first_key)
        scores[:, :, mine, columns] = torch.where(region.contains(queries, index), part, scores[:, :, mine, columns])
    return softmax(scores, schedule.sinks, query.dtype)


class AttentionHooks(NamedTuple):
    """What is called with states and gives them back, edited or not; shapes as an executor's.

    scores: (batch, head, query, key) before the softmax; masked pairs hold `masked`, or the dtype's lowest number.
    pattern: after it. rotated: queries and keys, at cached positions. watched: whether scores or pattern are.
    """

    scores: Callable[[Tensor], Tensor]
    pattern: Callable[[Tensor], Tensor]
    rotated: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    watched: bool
    masked: float | None


def scores_only(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Returns pre-softmax scores instead of weights; the output is a placeholder. Arguments: an executor's."""
    return query, scored(schedule, query, key, scale)


def hooked_attention(
    hooks: AttentionHooks, scores: Tensor, value: Tensor, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention output and weights from scores (-inf: masked), through the hooks; zeros for queries without keys."""
    masked = scores.isneginf()
    fully_masked = masked.all(-1, keepdim=True)
    lowest = torch.finfo(scores.dtype).min if hooks.masked is None else hooks.masked
    scores = hooks.scores(scores.masked_fill(masked, lowest)).masked_fill(fully_masked, 0.0)
    weights = softmax(scores, sinks, value.dtype)
    weights = hooks.pattern(weights.masked_fill(fully_masked, 0.0))
    return weights @ value.repeat_interleave(weights.shape[1] // value.shape[1], 1), weights


def fused(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, None]:
    """Attention output (batch, head, query, dim), region by region, merged by log-sum-exp; no weights."""
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        raise Failed("the fused executor has no gradients; use torch.no_grad() or executor='dense'")
    if by_launches(query.device):
        with torch.cuda.device_of(query):  # Triton launches on the current device
            return _on_device(schedule, query, key, value, scale), None
    if query.shape[2] == 1 and schedule.slopes is None:
        return _one_query(schedule, query, key, value, scale), None
    return _Layer(schedule, query, key, value, scale).output(), None


def _on_device(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """`fused` on devices other than CPUs."""
    if query.shape[2] > 1 or schedule.slopes is not None:
        from mesa.engine.device_attention import on_device  # with torch's compiler, which takes as long as torch

        return on_device(schedule, query, key, value, scale)
    reads = schedule.reads(query.device, query.dtype)
    if not reads.parts:
        return torch.zeros_like(query)
    output = by_two_launches(schedule, reads, query, key, value, scale)
    if output is not None:
        return output
    return _at_once(schedule, reads, schedule.query_of(query, reads), key, value, scale).view(query.shape)


class _Layer:
    """The states of one layer and what they give; shapes as in the executors."""

    def __init__(self, schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> None:
        self.schedule, self.query, self.key, self.value, self.scale = schedule, query, key, value, scale
        self.merged = Merged(query)
        self._last: dict[str, tuple[Any, Tensor]] = {}

    def output(self) -> Tensor:
        """The attention's output."""
        for region, carried in self.schedule.paired.items():
            self._add_stair(region, carried)
        for stack in self.schedule.stacks:
            self._add(stack)
        return self.merged.output(self.schedule.sinks)

    def queries(self, region: Region, begin: int, end: int) -> Tensor:
        """The queries begin .. end - 1 as a region has them."""
        place = "query", region.query_position, region.query_scale
        return self._turned(self.schedule.query, self.query, self.schedule.start, place, region, begin, end)

    def keys(self, region: Region, begin: int, end: int) -> Tensor:
        """The keys begin .. end - 1 as a region has them."""
        place = "key", region.key_position, region.key_scale
        return self._turned(self.schedule.key, self.key, self.schedule.first_key, place, region, begin, end)

    def values(self, begin: int, end: int) -> Tensor:
        """The values begin .. end - 1."""
        return self.value[:, :, begin - self.schedule.first_key : end - self.schedule.first_key]

    def _turned(
        self, turn: Callable[..., Tensor], states: Tensor, first: int, place: Any, region: Region, begin: int, end: int
    ) -> Tensor:
        """States of a span out of those of all stacks at one place, which follow one another and so are turned once."""
        low, high = self.schedule.spans.get(place, (begin, end))
        low, high = min(low, begin), max(high, end)
        if self._last.get(place[0], [None])[0] != (place, low, high):
            self._last[place[0]] = (place, low, high), turn(states[:, :, low - first : high - first], region, low, high)
        return self._last[place[0]][1][:, :, begin - low : end - low]

    def _read(self, stack: Stack) -> tuple[Tensor, Tensor]:
        """The keys and the values of a stack's calls (batch, call, head, token, dim)."""
        begin, end = stack.keys
        values = stack.cut(self.values(begin, end), begin, keys=True)
        if len({region.key_position for region in stack.regions}) > 1:
            first_key = self.schedule.first_key
            return self.schedule.keys(self.key[:, :, begin - first_key : end - first_key], stack), values
        return stack.cut(self.keys(stack.regions[0], begin, end), begin, keys=True), values

    def _add(self, stack: Stack) -> None:
        """Adds what a stack's calls give."""
        region, call, lead, offset = stack.regions[0], stack.call, 0, None
        rows, mask = self.queries(region, *stack.queries), None
        if self.schedule.slopes is None:
            keys, values = self._read(stack)
        else:
            states = rows, self.keys(region, *stack.keys), self.values(*stack.keys)
            spans = stack.queries, stack.keys
            rows, columns, wide, offset = with_bias(states, self.schedule.slopes, self.scale, region, *spans)
            keys, values = (stack.cut(states, stack.keys[0], keys=True) for states in (columns, wide))
            offset = stack.cut(offset[None, :, :, None], stack.queries[0])[0, ..., 0]
        if stack.lead is not None:
            keys, values = (torch.cat(both, 3) for both in zip(self._read(stack.lead), (keys, values), strict=True))
            lead = stack.lead.call.keys[1] - stack.lead.call.keys[0]
        if call.masked:
            mask = self.schedule.mask(region, call, self.query)
        queries = stack.cut(rows, stack.queries[0])
        dim = 0 if len(rows) <= len(stack.regions) else 1  # a kernel has one batch dim: the longer one
        fresh = self.merged.begins(*(token - self.schedule.start for token in stack.queries))
        for number in range(queries.shape[dim]):
            row, column, wide = (states.select(dim, number) for states in (queries, keys, values))
            output, log_sum = attend(row, column, wide, self.scale, call.causal, mask, lead, self.schedule.softcap)
            if offset is not None:
                output, log_sum = output[..., : self.query.shape[3]], log_sum + (offset[number] if dim else offset)
            place = partial(_part_of_stack, stack, self.schedule.start, dim, number)
            self.merged.add(place, output, log_sum, fresh)

    def _add_stair(self, region: Region, carried: Region) -> None:
        """Adds what a stair gives."""
        start, low = self.schedule.start, max(region.keys[0], self.schedule.first_key)
        first, last = (
            max(region.queries[0], start, low + region.nearest),
            min(region.queries[1], self.schedule.plan.length),
        )
        states = self.queries, self.keys, self.values, self.scale
        stair = Stair(region, carried, first, last, low, *states, self.schedule._masks, self.schedule.softcap)
        for (begin, end), output, log_sum in stair.parts() if first < last else ():
            rows, fresh = slice(begin - start, end - start), self.merged.begins(begin - start, end - start)
            self.merged.add(itemgetter((..., rows, slice(None))), output, log_sum, fresh)


def _part_of_stack(stack: Stack, start: int, dim: int, number: int, whole: Tensor) -> Tensor:
    """What a stack's calls, of one text or one of them of all texts, are in (batch, head, token, dim)."""
    return stack.cut(whole, start).select(dim, number)


def _one_query(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """`fused` for a single query on a CPU: all scores at once where they are accurate enough, else merged."""
    device, dtype = query.device, query.dtype
    reads = schedule.reads(device, dtype)
    if not reads.parts:
        return torch.zeros_like(query)
    if reads.plain and schedule.softcap is None and schedule.sinks is None:  # the kernel's one call
        read = reads.parts[0]
        query, key, value = schedule.query_of(query, reads), schedule.keys_of(key, read), held(value, read.held)
        if query.shape[1] == key.shape[1]:
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)
        return attend(query, key, value, scale, False, None)[0]
    if dtype is torch.float32 or dtype is torch.float64:  # the query is shorter than its scores
        rows = schedule.query_of(query, reads, scale)
        return _at_once(schedule, reads, rows, key, value, 1.0).view(query.shape)
    rows = schedule.query_of(query, reads)
    outputs, log_sums = [], []
    for part, read in zip(rows.split(reads.rows, 2), reads.parts, strict=True):
        mask = None if read.seen is None else Mask.of(torch.stack(read.seen), query.dtype)
        states = part, schedule.keys_of(key, read), value[:, :, read.held]
        output, log_sum = attend(*states, scale, False, mask, 0, schedule.softcap)
        outputs.append(output)
        log_sums.append(log_sum)
    weights = softmax(torch.cat(log_sums, 2)[:, :, None], schedule.sinks, torch.float32)[:, :, 0, :, None]
    return (torch.cat(outputs, 2) * weights).sum(2, keepdim=True).to(query.dtype)


def _at_once(schedule: Schedule, reads: Reads, rows: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention of a single query, in a row for each region, by one softmax over the scores of all parts."""
    split = torch.split_with_sizes(rows, reads.rows, 2) if len(reads.rows) > 1 else (rows,)
    scored = [
        _scores(schedule, part, schedule.keys_of(key, read), read, scale)
        for part, read in zip(split, reads.parts, strict=True)
    ]
    sizes = [part.shape[3] for part in scored]
    if schedule.sinks is not None:
        scored.append(schedule.sinks.to(scored[0])[:, None, None].expand(*scored[0].shape[:3], 1))
    scores = torch.cat(scored, -1) if len(scored) > 1 else scored[0]
    del scored  # no more than two of all scores are held
    weights = softmax(scores, None, scores.dtype)
    if schedule.sinks is not None:
        weights = weights[..., :-1]
    if scores.dtype != value.dtype:
        weights = weights.to(value.dtype)
    if scores.shape[1] != value.shape[1]:
        weights = weights.view(scores.shape[0], value.shape[1], -1, weights.shape[3])
    if reads.held is not None:
        return weights @ held(value, reads.held)
    pieces = weights.split(sizes, -1)
    first, *others = (piece @ value[:, :, read.held] for piece, read in zip(pieces, reads.parts, strict=True))
    return sum(others, first)


def _scores(schedule: Schedule, rows: Tensor, keys: Tensor, read: Read, scale: float) -> Tensor:
    """A single query's scores (batch, head, 1, key) in a part, each by the row of the region that holds the key."""
    part = scores_of(rows, keys)
    part = part if scale == 1 else part.mul_(scale)
    if schedule.softcap is not None:
        part = one_launch(capped, part, schedule.softcap)
    if read.seen is None:
        return part
    whole, *others = torch.split_with_sizes(part, [1] * len(read.seen), 2) if len(read.seen) > 1 else (part,)
    for seen, other in zip(read.seen[1:], others, strict=True):
        whole = torch.where(seen, other, whole)
    return whole if read.unseen is None else whole.masked_fill(read.unseen, -math.inf)


EXECUTORS = {"dense": dense, "fused": fused}


def by_head(
    execute: Callable[..., Any], method: Schedule, baseline: Schedule, chosen: Sequence[int], *given: Any
) -> tuple[Tensor, Tensor | None]:
    """What `execute` returns, by schedule `method` in the `chosen` query heads and by `baseline` in the others.

    execute: an executor that is given the query heads before its other arguments, the last of which are `given`.
    """
    query, key, value, scale = given
    group = query.shape[1] // key.shape[1]
    others = [head for head in range(query.shape[1]) if head not in chosen]
    output, weights = torch.zeros_like(query), None
    for schedule, heads in ((method, chosen), (baseline, others)):
        for part, key_heads in _parts(heads, group):
            states = _taken(query, part), _taken(key, key_heads), _taken(value, key_heads)
            output[:, part], part_weights = execute(part, schedule.of_heads(part), *states, scale)
            if part_weights is not None:
                weights = part_weights.new_zeros(*query.shape[:3], key.shape[2]) if weights is None else weights
                weights[:, part] = part_weights
    return output, weights


def _parts(heads: Sequence[int], group: int) -> Iterator[tuple[list[int], list[int]]]:
    """Query heads with their key heads, as many to each key head, so that a part is grouped attention by itself.

    Every key head is in one part, so no key is copied, or turned, for each of its queries.
    """
    members: dict[int, list[int]] = {}
    for head in heads:
        members.setdefault(head // group, []).append(head)
    for count in sorted({len(heads) for heads in members.values()}):
        alike = {key_head: heads for key_head, heads in members.items() if len(heads) == count}
        yield [head for heads in alike.values() for head in heads], list(alike)


def _taken(states: Tensor, heads: list[int]) -> Tensor:
    """Those heads of `states` (batch, head, token, dim); a view where they are evenly spaced."""
    first, last, step = heads[0], heads[-1], heads[1] - heads[0] if len(heads) > 1 else 1
    if heads == list(range(first, last + 1, step)):
        return states[:, first : last + 1 : step]
    return states[:, heads]


def check_executor(executor: str) -> None:
    """Refused for an unknown executor."""
    if not isinstance(executor, str) or executor not in EXECUTORS:
        raise Refused(f"unknown executor {executor!r}; known: {', '.join(EXECUTORS)}")
