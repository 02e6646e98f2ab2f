"""A decoded token's attention on devices other than CPUs: two launches a layer, by Triton's kernels.

The keys of all parts are cut to spans. The first kernel computes the softmax of each span by itself, for the regions
that hold its keys, and rotates queries and keys as it reads them; the second merges all spans by log-sum-exp.
"""

import functools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mesa.engine.gpu.kernels import differs, tried_triton
from mesa.engine.key_ranges import KeyRange, KeyRanges, key_ranges
from mesa.engine.rope import RotaryLayout, Rotation, rotated
from mesa.engine.schedule import Angles, JointSchedule, Schedule
from mesa.engine.scores import capped, scores_of

PROGRAMS, LEAST = 264, 256
"""Programs of a launch, two for each multiprocessor of an H100, and the fewest keys that one is for (tokens)."""
_STEP = 128
"""Keys of a span are a multiple of it, where the part does not end before (tokens)."""

RowRotation = tuple[Tensor | None, Tensor | None, Tensor | None]
"""cos and sin (state, pair), and factors (state,); None for nothing."""


class DecodeLayout(NamedTuple):
    """What a decoded token reads, the same for all layers.

    spans: (row, span, 8) of int32, one row for all of the batch or each its own: the first key, the end, the first slot
    of its outputs, the first region that holds keys, how many do, where the first key is in `key` and the first pair in
    `seen` (-1: nowhere), and a region's keys there. slots_of: (row, head, 2) of int32, a head's first slot and the end.
    by_head: whether heads differ in it. rows: the most regions of a span. slots: the most of a row. seen: whether
    regions hold keys, (pair,) of uint8. query, key: what the query for each region, and the keys of some parts, are
    rotated by and multiplied with.
    """

    spans: Tensor
    slots_of: Tensor
    by_head: bool
    rows: int
    slots: int
    seen: Tensor | None
    query: RowRotation
    key: RowRotation
    layout: RotaryLayout | None


def by_two_launches(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor | None:
    """Attention output of a single query (batch, head, 1, value dim); None where no kernel gives it."""
    batch, heads, _, dim = query.shape
    alike = query.dtype == key.dtype == value.dtype and value.shape[:3] == key.shape[:3] and value.shape[3] <= dim
    rotary = schedule.rotation is None or isinstance(schedule.rotation, Rotation)
    if not alike or not rotary or dim > 256 or not query.stride(3) == key.stride(3) == value.stride(3) == 1:
        return None
    group = heads // key.shape[1]
    kernels = kernels_of(query.device, query.dtype, dim, min(64, max(8, 1 << (group - 1).bit_length())))
    if kernels is None:
        return None
    output = query.new_empty(*query.shape[:3], value.shape[3])
    shape = "decode layout", batch, heads, key.shape[1], query.dtype, query.device
    if shape not in schedule.cache:
        schedule.cache[shape] = _laid(schedule, *shape[1:])
    laid = schedule.cache[shape]
    if laid is None:
        return output.zero_()
    accurate = torch.promote_types(query.dtype, torch.float32)
    work = query.new_empty(batch * heads * laid.slots * (value.shape[3] + 1), dtype=accurate)
    kernels.attend_token(work, query, key, value, laid, schedule.query_weight, scale, schedule.softcap)
    kernels.combine(output, work, laid, schedule.sinks)
    return output


def _laid(
    schedule: Schedule, batch: int, heads: int, key_heads: int, dtype: torch.dtype, device: torch.device
) -> DecodeLayout | None:
    """What is read, cut up for `key_heads` key heads of all texts; laid out once for all layers. None for nothing."""
    members = [(member, key_ranges(member.schedule, device, dtype)) for member in schedule.members]
    members = [(member, ranges) for member, ranges in members if ranges.ranges]
    if not members:
        return None
    apart = any(member.rows is not None for member, _ in members)
    spans: list[list[tuple[int, ...]]] = [[] for _ in range(batch if apart else 1)]
    slots, slots_of = [0] * len(spans), np.zeros((len(spans), heads, 2), np.int32)
    regions = treated = pairs = 0
    seen, queries, keys = list[Tensor](), list[Any](), list[Any]()
    for member, ranges in members:
        parts = [part for part in ranges.ranges if part.angles is not None or part.factors is not None]
        own = _spans(ranges, batch * key_heads)
        first = member.first + member.schedule.first_key - schedule.first_key
        for row in range(len(spans)) if member.rows is None else member.rows:
            at, count = slots[row], own[-1][2] + own[-1][4]
            spans[row] += [
                (begin + first, end + first, at + slot, regions + region, rows, table + treated * (table >= 0),
                 pattern + pairs * (pattern >= 0), width)
                for begin, end, slot, region, rows, table, pattern, width in own
            ]  # fmt: skip
            slots_of[row, slice(None) if member.heads is None else list(member.heads)] = at, at + count
            slots[row] += count
        flags = [row for part in ranges.ranges for row in part.seen or ()]
        seen, pairs = seen + flags, pairs + sum(map(len, flags))
        queries.append((member.schedule, [(ranges.angles, ranges.factors, sum(ranges.rows))]))
        keys.append((member.schedule, [(part.angles, part.factors, _count(part)) for part in parts]))
        regions, treated = regions + sum(ranges.rows), treated + sum(map(_count, parts))
    longest = max(map(len, spans))
    table = np.zeros((len(spans), longest, 8), np.int32)
    for row, own in enumerate(spans):
        table[row, : len(own)] = np.array(own, np.int32).reshape(-1, 8)  # after them: spans of no region
    on_device = (torch.from_numpy(part).to(device, non_blocking=True) for part in (table, slots_of))
    by_row, by_head = on_device
    return DecodeLayout(
        by_row,
        by_head,
        any(member.heads is not None for member, _ in members),
        max(max(ranges.rows) for _, ranges in members),
        max(slots),
        torch.cat(seen).view(torch.uint8) if seen else None,
        _rotations(schedule, queries, dtype),
        _rotations(schedule, keys, dtype),
        schedule.rotation.layout if isinstance(schedule.rotation, Rotation) else None,
    )


def _count(part: KeyRange) -> int:
    return part.tokens.stop - part.tokens.start


def _spans(ranges: KeyRanges, key_heads: int) -> list[tuple[int, ...]]:
    """The rows of `DecodeLayout.spans`."""
    keys = sum(map(_count, ranges.ranges))
    size = max(LEAST, -(-keys // max(1, PROGRAMS // key_heads)))
    size = -(-size // _STEP) * _STEP
    spans = list[tuple[int, ...]]()
    first = slot = table = pattern = 0
    for part, rows in zip(ranges.ranges, ranges.rows, strict=True):
        treated, count = part.angles is not None or part.factors is not None, _count(part)
        for begin in range(0, count, size):
            end, low = min(begin + size, count), part.tokens.start
            at = table + begin if treated else -1, -1 if part.seen is None else pattern + begin
            spans.append((low + begin, low + end, slot, first, rows, *at, count))
            slot += rows
        first += rows
        table += count if treated else 0
        pattern += count * rows if part.seen is not None else 0
    return spans


def _rotations(schedule: Schedule, states: list[tuple[Schedule, list[Any]]], dtype: torch.dtype) -> RowRotation:
    """What states of several schedules are rotated by and multiplied with, in their order: a table for each turn."""
    by_turn: dict[Any, tuple[Schedule, list[Any]]] = {}
    for bound, parts in states:
        turn = schedule.turn_of(bound) if isinstance(schedule, JointSchedule) else 0
        by_turn.setdefault(turn, (bound, []))[1].extend(parts)
    tables = [(_row_rotation(*part, dtype), sum(count for *_, count in part[1])) for part in by_turn.values()]
    cos, sin, factors = (
        _joined([(table[number], count) for table, count in tables], nothing)
        for number, nothing in enumerate((1, 0, 1))
    )
    return cos, sin, factors


def _row_rotation(
    schedule: Schedule, states: list[tuple[Angles | None, Tensor | None, int]], dtype: torch.dtype
) -> RowRotation:
    """What states are rotated by and multiplied with: those of some parts, one after the other."""
    cos = sin = None
    turns = _joined([(turns, count) for turns, _, count in states], 0)
    if turns is not None and isinstance(schedule.rotation, Rotation):
        cos, sin = schedule.rotation.tables(turns, schedule.plan, dtype, turns.device)
    factors = _joined([(None if factors is None else factors.flatten(), count) for _, factors, count in states], 1)
    return cos, sin, factors


def _joined(parts: list[tuple[Any, int]], nothing: float) -> Tensor | None:
    """Tensors (state, ..) one after the other, `nothing` in place of one that is None; None where all are."""
    like = next((part for part, _ in parts if part is not None), None)
    if like is None or len(parts) == 1:
        return like
    return torch.cat(
        [like.new_full((count, *like.shape[1:]), nothing) if part is None else part for part, count in parts]
    )


def kernels_of(device: torch.device, dtype: torch.dtype, dim: int, group: int) -> Any:
    """The module of Triton kernels where they run on the device, for such heads, and are right; None where not."""
    difference = functools.partial(_difference, device=device, dtype=dtype, dim=dim, group=group)
    return tried_triton("a decoded token", device, dtype, difference, dim, group)


def _difference(kernels: Any, device: torch.device, dtype: torch.dtype, dim: int, group: int) -> str | None:
    """How the kernels differ from plain operations, if they do."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).to(device)

    length, pairs = 700, dim // 2
    query, key, value = (
        drawn(2, heads, tokens, dim).to(dtype) for heads, tokens in ((2 * group, 1), (2, length), (2, length))
    )
    spans = [(0, 256, 0, 0, 1, -1, -1, 300), (256, 300, 1, 0, 1, -1, -1, 300), (300, 500, 2, 1, 2, 0, 0, 400),
             (500, length, 4, 1, 2, 200, 200, 400)]  # fmt: skip
    seen = torch.zeros(2, 400, dtype=torch.uint8, device=device)
    seen[0, :150:2], seen[1, 1:140:2] = 1, 1  # the last span has no key that is seen
    rotation = [
        (drawn(count, pairs).to(dtype), drawn(count, pairs).to(dtype), 1 + drawn(count).abs()) for count in (3, 400)
    ]
    at, nothing = torch.tensor([spans], dtype=torch.int32, device=device), (None, None, None)
    slots = torch.tensor([[[0, 6]] * 2 * group], dtype=torch.int32, device=device)
    laid = DecodeLayout(at, slots, False, 2, 6, seen.flatten(), rotation[0], rotation[1], RotaryLayout(0, pairs))
    # Two rows with other slots, of two kinds of heads: what a padded batch with chosen heads has.
    rows = torch.tensor([[spans[0], spans[1]], [spans[1], [0] * 8]], dtype=torch.int32, device=device)
    slots = torch.tensor([[[0, 1], [1, 2]] * group, [[0, 0], [1, 2]] * group], dtype=torch.int32, device=device)
    plain = DecodeLayout(rows, slots, True, 1, 2, None, nothing, nothing, None)
    for layout, weight, softcap, sinks in ((laid, drawn(dim), 3.0, drawn(2 * group)), (plain, None, None, None)):
        outputs = []
        for either, exact in ((PLAINLY, torch.float64), (kernels, dtype)):
            states = [part.to(exact) for part in (query, key, value)]
            rotations = {name: _as(getattr(layout, name), exact) for name in ("query", "key")}
            accurate = torch.promote_types(exact, torch.float32)
            states[2] = states[2][..., : dim - 8 * (layout is plain)]  # values may have fewer dims
            work = query.new_empty(query[..., 0].numel() * layout.slots * (states[2].shape[3] + 1), dtype=accurate)
            outputs.append(query.new_empty(*query.shape[:3], states[2].shape[3], dtype=exact))
            either.attend_token(work, *states, layout._replace(**rotations), weight, 1 / dim, softcap)
            either.combine(outputs[-1], work, layout, sinks)
        if error := differs(outputs[1:], outputs[:1], dtype, 1e-4 if dtype == torch.float32 else 2e-2):
            return error
    return None


def _as(rotation: RowRotation, dtype: torch.dtype) -> RowRotation:
    cos, sin, factors = (part if part is None else part.to(dtype) for part in rotation)
    return cos, sin, factors


def _attend_plainly(
    work: Tensor, query: Tensor, key: Tensor, value: Tensor, laid: DecodeLayout, weight: Tensor | None, scale: float,
    softcap: float | None,
) -> None:  # fmt: skip
    """Writes the softmax of each span, in a row for each of its regions, to `work`: outputs, then log-sum-exps.

    query (batch, head, 1, dim), key and value (batch, key head, key, dim); the outputs are (batch, head, slot, dim).
    """
    outputs, logs = _parts_of(work, query, laid.slots)
    layout, group = laid.layout or RotaryLayout(0, 0), query.shape[1] // key.shape[1]
    for text in range(len(query)):
        ends = laid.slots_of[text % len(laid.slots_of)]
        for begin, end, slot, first, count, table, pattern, width in laid.spans[text % len(laid.spans)].tolist():
            if not count:
                continue
            heads = (ends[:, 0] <= slot) & (slot < ends[:, 1])
            rows = query[text : text + 1].expand(-1, -1, count, -1)
            keys, values = (part[text : text + 1, :, begin:end] for part in (key, value))
            rows = rotated(rows, *_cut(laid.query, first, count), weight, layout)
            if table >= 0:
                keys = rotated(keys, *_cut(laid.key, table, end - begin), None, layout)
            scores = capped(scores_of(rows, keys) * scale, softcap)
            if pattern >= 0 and laid.seen is not None:
                seen = laid.seen.as_strided((count, end - begin), (width, 1), pattern)
                scores = scores.masked_fill(seen == 0, -math.inf)
            log_sum = scores.logsumexp(-1)
            weights = (scores - log_sum[..., None]).exp().nan_to_num(nan=0.0).to(value.dtype)
            output = weights @ values.repeat_interleave(group, 1)
            outputs[text, heads, slot : slot + count] = output[0, heads].to(outputs.dtype)
            logs[text, heads, slot : slot + count] = log_sum[0, heads].to(logs.dtype)


def _combine_plainly(output: Tensor, work: Tensor, laid: DecodeLayout, sinks: Tensor | None) -> None:
    """Writes what all slots give to output (batch, head, 1, dim); sinks: scores (head,) without value, next to them."""
    outputs, logs = _parts_of(work, output, laid.slots)
    slot, (first, end) = torch.arange(laid.slots, device=output.device), laid.slots_of.unbind(-1)
    own = (slot >= first[..., None]) & (slot < end[..., None])
    outputs, logs = outputs.masked_fill(~own[..., None], 0), logs.masked_fill(~own, -math.inf)
    total = logs.logsumexp(-1, keepdim=True)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.to(total)[:, None])
    output.copy_((logs - total).exp().nan_to_num(nan=0.0)[:, :, None] @ outputs)


def _parts_of(work: Tensor, query: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Outputs (batch, head, slot, dim) and log-sum-exps (batch, head, slot)."""
    batch, heads = query.shape[:2]
    count = batch * heads * slots
    return work[:-count].view(batch, heads, slots, -1), work[-count:].view(batch, heads, slots)


def _cut(rotation: RowRotation, first: int, count: int) -> RowRotation:
    """cos, sin and factors (state, 1) of some states."""
    cos, sin, factors = (part if part is None else part[first : first + count] for part in rotation)
    return cos, sin, factors if factors is None else factors[:, None]


PLAINLY = SimpleNamespace(attend_token=_attend_plainly, combine=_combine_plainly)
"""What the kernels do, in plain operations."""
