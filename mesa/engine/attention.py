"""Executors: they obey a plan and know nothing of methods.

`dense` builds the whole score matrix: O(T^2) memory, gradients, attention weights. `fused` computes attention over
each region by itself and merges the parts exactly through their log-sum-exp: O(T) memory beside queries and keys.
Both take queries of the tokens `start` .. plan.length - 1 and keys of 0 .. plan.length - 1, all rotated to the
schedule's `cached` positions, and turn them on to the plan's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mesa.engine.kernels import Mask, Merged, attend
from mesa.engine.rope import biased, with_bias
from mesa.engine.schedule import Schedule, calls
from mesa.engine.stairs import FEW, Stair, stairs
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
        if schedule.slopes is not None:
            part = biased(part, schedule.slopes, region, queries, keys)
        scores = torch.where(region.contains(queries, keys), part, scores)
    return scores


def dense(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention output (batch, head, query, dim) and weights (batch, head, query, key) by one full score matrix."""
    scores = scored(schedule, query, key, scale)
    weights = scores.softmax(-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    return weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1), weights


def rows(schedule: Schedule, query: Tensor, key: Tensor, scale: float, chosen: Sequence[int]) -> Tensor:
    """Weights (batch, head, chosen, key) of the tokens `chosen` as queries; arguments as an executor's.

    Keys are those from `schedule.first_key` on. Raises ValueError for a token whose query is not there.
    """
    start, length, first_key = schedule.start, schedule.plan.length, schedule.first_key
    for token in chosen:
        if not start <= token < length:
            raise ValueError(f"no query of token {token} is in this pass; it has those of {start} to {length - 1}")
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
        queries = torch.tensor(tokens, device=query.device)[:, None]
        index = torch.arange(low, high, device=query.device)[None, :]
        if schedule.slopes is not None:
            part = biased(part, schedule.slopes, region, queries, index)
            scores = scores.to(part.dtype)
        columns = slice(low - first_key, high - first_key)
        scores[:, :, mine, columns] = torch.where(region.contains(queries, index), part, scores[:, :, mine, columns])
    return scores.softmax(-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)


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
    """Nothing of use in the output's place, and scores in the weights'; arguments as an executor's."""
    return query, scored(schedule, query, key, scale)


def hooked_attention(hooks: AttentionHooks, scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attention output and weights from scores (-inf: masked), through the hooks; zeros for queries without keys."""
    masked = scores.isneginf()
    fully_masked = masked.all(-1, keepdim=True)
    lowest = torch.finfo(scores.dtype).min if hooks.masked is None else hooks.masked
    scores = hooks.scores(scores.masked_fill(masked, lowest)).masked_fill(fully_masked, 0.0)
    weights = scores.softmax(-1, dtype=torch.promote_types(value.dtype, torch.float32)).to(value.dtype)
    weights = hooks.pattern(weights.masked_fill(fully_masked, 0.0))
    return weights @ value.repeat_interleave(weights.shape[1] // value.shape[1], 1), weights


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

    rotated: tuple[Any, Tensor] | None = None  # the last region's queries: chunks ask for the same ones twice
    many = [region for region in schedule.plan.regions if region.queries[1] - max(region.queries[0], start) >= FEW]
    paired = stairs(many) if schedule.slopes is None else {}
    for region in schedule.plan.regions:
        region_calls = list(calls(region, start, length, first_key))
        if not region_calls or region in paired.values():
            continue
        first, last = region_calls[0].queries[0], region_calls[-1].queries[1]
        low, high = min(call.keys[0] for call in region_calls), max(call.keys[1] for call in region_calls)
        request = (region.query_position, region.query_scale, first, last)
        if rotated is None or rotated[0] != request:
            rotated = request, schedule.query(query[:, :, first - start : last - start], region, first, last)
        part = rotated[1]
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


def _one_query(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """`fused` for a single query: all scores at once where they are accurate enough, else merged by log-sum-exp."""
    reads = schedule.reads(query.device)
    if not reads:
        return torch.zeros_like(query)
    rows = schedule.query_of(query, tuple(region for read in reads for region in read.regions))
    parts = []
    for read in reads:
        span = slice(read.keys[0] - schedule.first_key, read.keys[1] - schedule.first_key)
        queries, rows = rows[:, :, : len(read.regions)], rows[:, :, len(read.regions) :]
        keys = schedule.key(key[:, :, span], read.regions[0], *read.keys)
        parts.append((queries, keys, span, read.seen))
    if query.dtype in (torch.float32, torch.float64):
        return _at_once(parts, query, value, scale)
    outputs, log_sums = [], []
    for queries, keys, span, seen in parts:
        mask = None if seen is None else Mask.of(seen, query.dtype)
        output, log_sum = attend(queries, keys, value[:, :, span], scale, False, mask)
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


def by_head(
    execute: Callable[..., tuple[Tensor, Tensor | None]],
    woven: Schedule,
    as_trained: Schedule,
    chosen: Sequence[int],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor | None]:
    """What `execute` returns, by `woven` in the `chosen` query heads and by `as_trained` in the others.

    execute: an executor that is given the query heads before its other arguments. Shapes as in the executors.
    """
    group = query.shape[1] // key.shape[1]
    others = [head for head in range(query.shape[1]) if head not in chosen]
    output, weights = torch.zeros_like(query), None
    for schedule, heads in ((woven, chosen), (as_trained, others)):
        for part, key_heads in _parts(heads, group):
            part_schedule = schedule if schedule.slopes is None else replace(schedule, slopes=schedule.slopes[part])
            states = _taken(query, part), _taken(key, key_heads), _taken(value, key_heads)
            output[:, part], part_weights = execute(part, part_schedule, *states, scale)
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
