"""A decoded token's attention on devices other than CPUs: two launches a layer, by Triton's kernels.

The keys of all parts are cut to spans. The first kernel computes the softmax of each span by itself, for the regions
that hold its keys, and rotates queries and keys as it reads them; the second merges all spans by log-sum-exp.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mesa.engine.gpu.kernels import differs, tried_triton
from mesa.engine.key_ranges import KeyRange, KeyRanges
from mesa.engine.rope import RotaryLayout, Rotation, rotated
from mesa.engine.schedule import Angles, Schedule
from mesa.engine.scores import capped, scores_of

PROGRAMS, LEAST = 264, 256
"""Programs of a launch, two for each multiprocessor of an H100, and the fewest keys that one is for (tokens)."""
_STEP = 128
"""Keys of a span are a multiple of it, where the part does not end before (tokens)."""

RowRotation = tuple[Tensor | None, Tensor | None, Tensor | None]
"""cos and sin (state, pair), and factors (state,); None for nothing."""


class DecodeLayout(NamedTuple):
    """What a decoded token reads, the same for all layers.

    spans: (span, 8) of int32: the first key, the end, the first slot of its outputs, the first region that holds keys,
    how many do, where the first key is in `key` and the first pair in `seen` (-1: nowhere), and a region's keys there.
    rows: the most regions of a span. slots: outputs of all spans. seen: whether regions hold keys, (pair,) of uint8.
    query, key: what the query for each region, and the keys of some parts, are rotated by and multiplied with.
    """

    spans: Tensor
    rows: int
    slots: int
    seen: Tensor | None
    query: RowRotation
    key: RowRotation
    layout: RotaryLayout | None


def by_two_launches(
    schedule: Schedule, ranges: KeyRanges, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> Tensor | None:
    """Attention output of a single query (batch, head, 1, dim); None where no kernel gives it."""
    batch, heads, _, dim = query.shape
    alike = query.dtype == key.dtype == value.dtype and value.shape == key.shape
    rotary = schedule.rotation is None or isinstance(schedule.rotation, Rotation)
    if not alike or not rotary or dim > 256 or not query.stride(3) == key.stride(3) == value.stride(3) == 1:
        return None
    group = heads // key.shape[1]
    kernels = kernels_of(query.device, query.dtype, dim, min(64, max(8, 1 << (group - 1).bit_length())))
    if kernels is None:
        return None
    laid = _laid(schedule, ranges, query.device, query.dtype, batch * key.shape[1])
    accurate = torch.promote_types(query.dtype, torch.float32)
    work = query.new_empty(batch * heads * laid.slots * (dim + 1), dtype=accurate)
    output = query.new_empty(query.shape)
    kernels.attend_token(work, query, key, value, laid, schedule.query_weight, scale, schedule.softcap)
    kernels.combine(output, work, laid.slots, schedule.sinks)
    return output


def _laid(
    schedule: Schedule, ranges: KeyRanges, device: torch.device, dtype: torch.dtype, key_heads: int
) -> DecodeLayout:
    """What is read, cut up for so many key heads of all texts; laid out once for all layers."""
    if key_heads not in ranges.layouts:
        treated = [part for part in ranges.ranges if part.angles is not None or part.factors is not None]
        seen = [row for part in ranges.ranges for row in part.seen or ()]
        spans = _spans(ranges, key_heads)
        ranges.layouts[key_heads] = DecodeLayout(
            torch.tensor(spans, dtype=torch.int32).to(device, non_blocking=True),
            max(ranges.rows),
            spans[-1][2] + spans[-1][4],
            torch.cat(seen).view(torch.uint8) if seen else None,
            _row_rotation(schedule, [(ranges.angles, ranges.factors, sum(ranges.rows))], dtype),
            _row_rotation(schedule, [(part.angles, part.factors, _count(part)) for part in treated], dtype),
            schedule.rotation.layout if isinstance(schedule.rotation, Rotation) else None,
        )
    return ranges.layouts[key_heads]


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
    """Tensors (state,) one after the other, where one is None so many of a number; None where all are."""
    like = next((part for part, _ in parts if part is not None), None)
    if like is None or len(parts) == 1:
        return like
    return torch.cat([like.new_full((count,), nothing) if part is None else part for part, count in parts])


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
    at, nothing = torch.tensor(spans, dtype=torch.int32, device=device), (None, None, None)
    laid = DecodeLayout(at, 2, 6, seen.flatten(), rotation[0], rotation[1], RotaryLayout(0, pairs))
    plain = DecodeLayout(at[:2], 1, 2, None, nothing, nothing, None)
    for layout, weight, softcap, sinks in ((laid, drawn(dim), 3.0, drawn(2 * group)), (plain, None, None, None)):
        outputs = []
        for either, exact in ((PLAINLY, torch.float64), (kernels, dtype)):
            states = [part.to(exact) for part in (query, key, value)]
            rotations = {name: _as(getattr(layout, name), exact) for name in ("query", "key")}
            accurate = torch.promote_types(exact, torch.float32)
            work = query.new_empty(query[..., 0].numel() * layout.slots * (dim + 1), dtype=accurate)
            outputs.append(torch.empty_like(states[0]))
            either.attend_token(work, *states, layout._replace(**rotations), weight, 1 / dim, softcap)
            either.combine(outputs[-1], work, layout.slots, sinks)
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
    for begin, end, slot, first, count, table, pattern, width in laid.spans.tolist():
        rows, keys, values = query.expand(-1, -1, count, -1), key[:, :, begin:end], value[:, :, begin:end]
        rows = rotated(rows, *_cut(laid.query, first, count), weight, layout)
        if table >= 0:
            keys = rotated(keys, *_cut(laid.key, table, end - begin), None, layout)
        scores = capped(scores_of(rows, keys) * scale, softcap)
        if pattern >= 0 and laid.seen is not None:
            seen = laid.seen.as_strided((count, end - begin), (width, 1), pattern)
            scores = scores.masked_fill(seen == 0, -math.inf)
        log_sum = scores.logsumexp(-1)
        weights = (scores - log_sum[..., None]).exp().nan_to_num(nan=0.0).to(value.dtype)
        outputs[:, :, slot : slot + count] = weights @ values.repeat_interleave(group, 1)
        logs[:, :, slot : slot + count] = log_sum


def _combine_plainly(output: Tensor, work: Tensor, slots: int, sinks: Tensor | None) -> None:
    """Writes what all slots give to output (batch, head, 1, dim); sinks: scores (head,) without value, next to them."""
    outputs, logs = _parts_of(work, output, slots)
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
