"""Executors: they obey a plan and know nothing of methods.

`dense` builds the full score matrix: O(T^2) memory, gradients, attention weights. `fused` computes attention over
each region by itself and merges the parts exactly through their log-sum-exp: O(T) memory on top of queries and keys.
Both take queries of the tokens `start` .. plan.length - 1 and keys of 0 .. plan.length - 1, all rotated to the
schedule's `cached` positions, and rotate them on to the plan's.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mesa.engine.compiled import is_accelerator
from mesa.engine.cpu import Mask, attend, attend_spans
from mesa.engine.key_ranges import key_ranges, keys_of, query_of, single_softmax, slice_tokens
from mesa.engine.schedule import JointSchedule, Schedule
from mesa.engine.scores import biased, capped, scores_of, softmax
from mesa.errors import Failed, Refused


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


def dense(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention output (batch, head, query, dim) and weights (batch, head, query, key) by one full score matrix."""
    scores = scored(schedule, query, key, scale)
    weights = softmax(scores, schedule.sinks, query.dtype)
    return weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1), weights


def rows(schedule: Schedule, query: Tensor, key: Tensor, scale: float, chosen: Sequence[int]) -> Tensor:
    """Weights (batch, head, chosen, key) of the tokens `chosen` as queries, in float32 or better, as the pass has them.

    Arguments are an executor's. Keys are those from `schedule.first_key` on. Raises Refused for a token whose query is
    not there.
    """
    start, length, first_key = schedule.start, schedule.plan.length, schedule.first_key
    for token in chosen:
        if not start <= token < length:
            raise Refused(f"no query of token {token} is in this pass; it has those of {start} to {length - 1}")
    accurate = torch.promote_types(query.dtype, torch.float32)
    scores = query.new_full((*query.shape[:2], len(chosen), key.shape[2]), -math.inf, dtype=accurate)
    for region in schedule.plan.regions:
        mine = [row for row, token in enumerate(chosen) if region.queries[0] <= token < region.queries[1]]
        low, high = max(region.keys[0], first_key), min(region.keys[1], length)
        if not mine or low >= high:
            continue
        tokens = [chosen[row] for row in mine]
        parts = [schedule.query(query[:, :, token - start, None], region, token, token + 1) for token in tokens]
        keys = schedule.key(key[:, :, low - first_key : high - first_key], region, low, high)
        part = scores_of(torch.cat(parts, 2), keys) * scale
        part = capped(part, schedule.softcap)
        queries = torch.tensor(tokens, device=query.device)[:, None]
        index = torch.arange(low, high, device=query.device)[None, :]
        if schedule.slopes is not None:
            part = biased(part, schedule.slopes, region, queries, index)
        columns = slice(low - first_key, high - first_key)
        scores[:, :, mine, columns] = torch.where(region.contains(queries, index), part, scores[:, :, mine, columns])
    return softmax(scores, schedule.sinks, accurate)


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
    return query[..., : value.shape[3]], scored(schedule, query, key, scale)


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
    if is_accelerator(query.device):
        from mesa.engine import gpu  # with torch's compiler, which takes as long as torch

        return gpu.attend(schedule, query, key, value, scale), None
    if query.shape[2] == 1 and schedule.slopes is None:
        return _one_query(schedule, query, key, value, scale), None
    return attend_spans(schedule, query, key, value, scale), None


def fused_jointly(schedule: JointSchedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor | None:
    """`fused` for several schedules, in as many launches as one takes; None where each has to be done by itself."""
    differentiated = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    if differentiated or not is_accelerator(query.device):
        return None
    from mesa.engine import gpu

    return gpu.attend_jointly(schedule, query, key, value, scale)


def _one_query(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """`fused` for a single query on a CPU: one softmax of all scores where it is accurate enough, else merged.

    Values may have fewer dims than keys, as with MLA: padding all cached ones would be work that grows with the text.
    """
    device, dtype = query.device, query.dtype
    ranges = key_ranges(schedule, device, dtype)
    width = value.shape[3]
    if not ranges.ranges:
        return query.new_zeros(*query.shape[:3], width)
    few = width < key.shape[3]
    if few and dtype not in (torch.float32, torch.float64):  # in half precision only the kernel copies no keys
        value, few = torch.nn.functional.pad(value, (0, key.shape[3] - width)), False
    if ranges.plain and schedule.softcap is None and schedule.sinks is None and not few:  # the kernel's one call
        keys = ranges.ranges[0]
        query, key = query_of(schedule, query, ranges), keys_of(schedule, key, keys)
        value = slice_tokens(value, keys.tokens)
        if query.shape[1] == key.shape[1]:
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)[..., :width]
        return attend(query, key, value, scale, False, None)[0][..., :width]
    if dtype is torch.float32 or dtype is torch.float64:  # the query is shorter than its scores
        rows = query_of(schedule, query, ranges, scale)
        return single_softmax(schedule, ranges, rows, key, value, 1.0).view(*query.shape[:3], -1)
    rows = query_of(schedule, query, ranges)
    outputs, log_sums = [], []
    for part, keys in zip(rows.split(ranges.rows, 2), ranges.ranges, strict=True):
        mask = None if keys.seen is None else Mask.of(torch.stack(keys.seen), query.dtype)
        states = part, keys_of(schedule, key, keys), value[:, :, keys.tokens]
        output, log_sum = attend(*states, scale, False, mask, schedule.softcap)
        outputs.append(output)
        log_sums.append(log_sum)
    weights = softmax(torch.cat(log_sums, 2)[:, :, None], schedule.sinks, torch.float32)[:, :, 0, :, None]
    return (torch.cat(outputs, 2) * weights).sum(2, keepdim=True).to(query.dtype)[..., :width]


EXECUTORS = {"dense": dense, "fused": fused}


def by_head(
    execute: Callable[..., Any], method: Schedule, baseline: Schedule, chosen: Sequence[int], *given: Any
) -> tuple[Tensor, Tensor | None]:
    """What `execute` returns, by schedule `method` in the `chosen` query heads and by `baseline` in the others.

    execute: an executor that is passed the query heads before its other arguments, the last of which are `given`.
    """
    query, key, value, scale = given
    group = query.shape[1] // key.shape[1]
    others = [head for head in range(query.shape[1]) if head not in chosen]
    output, weights = query.new_zeros(*query.shape[:3], value.shape[3]), None
    for schedule, heads in ((method, chosen), (baseline, others)):
        for part, key_heads in _parts(heads, group):
            states = _select_heads(query, part), _select_heads(key, key_heads), _select_heads(value, key_heads)
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


def _select_heads(states: Tensor, heads: list[int]) -> Tensor:
    """Those heads of `states` (batch, head, token, dim); a view where they are evenly spaced."""
    first, last, step = heads[0], heads[-1], heads[1] - heads[0] if len(heads) > 1 else 1
    if heads == list(range(first, last + 1, step)):
        return states[:, first : last + 1 : step]
    return states[:, heads]


def check_executor(executor: str) -> None:
    """Refused for an unknown executor."""
    if not isinstance(executor, str) or executor not in EXECUTORS:
        raise Refused(f"unknown executor {executor!r}; known: {', '.join(EXECUTORS)}")
