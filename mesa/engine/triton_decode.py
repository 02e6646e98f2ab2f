"""Attention of a single query by two Triton kernels: over spans of the keys, and one that merges what they give.

They do what `decode.PLAINLY` does, with the same arguments. States are multiplied in their own dtype and summed in
float32.
"""

from typing import Any

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from mesa.engine.layout import RotaryLayout
from mesa.engine.triton_kernels import shared_memory, turned_states

TILE, WARPS = 2**14, 4
"""Bytes of keys read at a time, where shared memory holds them several times, and warps of a program."""
STAGES, TURNED_STAGES = 3, 2
"""Tiles under way at a time: of keys as they are, and of half as many that are turned."""
_ROWS = 64
"""The most rows of a program; a row is what one region has of one query head."""
_TAKEN = 32
"""Spans that are merged at a time."""


def attend(
    work: Tensor, query: Tensor, key: Tensor, value: Tensor, laid: Any, weight: Tensor | None, scale: float,
    softcap: float | None,
) -> None:  # fmt: skip
    """Writes each span's outputs and log-sum-exps to `work`."""
    batch, heads, _, dim = query.shape
    key_heads, spans = key.shape[1], laid.spans
    rows = laid.rows * heads // key_heads
    together = min(_ROWS, max(16, triton.next_power_of_2(rows)))
    blocks, layout = triton.cdiv(rows, together), laid.layout or RotaryLayout(0, 1)
    padded = max(16, triton.next_power_of_2(dim))
    tile = TILE if shared_memory(key.device) >= 5 * TILE else TILE // 2
    given = *laid.query, *laid.key, weight, laid.seen
    has = [tensor is not None for tensor in given]
    kernel: Any = _attend_kernel
    kernel[len(spans), key_heads * blocks, batch](
        work, query, key, value, spans, *(work if tensor is None else tensor for tensor in given),
        scale, 1.0 if softcap is None else softcap, laid.slots,
        *query.stride()[:2], *key.stride()[:3], *value.stride()[:3], heads // key_heads, blocks, spans.shape[1],
        layout.pairs, layout.begin, dim, padded, layout.interleaved, layout.backwards,
        has[0], has[2], has[3], has[5], has[6], has[7], softcap is not None, together,
        max(16, tile // (padded * key.itemsize)), STAGES, TURNED_STAGES, num_warps=WARPS,
    )  # fmt: skip


def combine(output: Tensor, work: Tensor, slots: int, sinks: Tensor | None) -> None:
    """Writes the output (batch, head, 1, dim) of all spans and of sinks, scores (head,) without value."""
    batch, heads, _, dim = output.shape
    kernel: Any = _combine_kernel
    kernel[heads, batch](
        output, work, work if sinks is None else sinks, slots, *output.stride()[:2],
        dim, triton.next_power_of_2(dim), sinks is not None, _TAKEN,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slots"])
def _attend_kernel(
    work, query, key, value, spans, query_cos, query_sin, query_factors, cos, sin, factors, weight, seen, scale,
    softcap, slots, query_batch, query_head, key_batch, key_head, key_token, value_batch, value_head, value_token,
    GROUP: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, PAIRS: tl.constexpr, BEGIN: tl.constexpr,
    DIM: tl.constexpr, PADDED: tl.constexpr, INTERLEAVED: tl.constexpr, BACKWARDS: tl.constexpr,
    QUERY_TURNS: tl.constexpr, QUERY_SCALED: tl.constexpr, TURNS: tl.constexpr, SCALED: tl.constexpr,
    WEIGHED: tl.constexpr, PATTERNS: tl.constexpr, CAPPED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr, TURNED_STAGES: tl.constexpr,
):  # fmt: skip
    span = spans + tl.program_id(0) * COLUMNS
    begin, end, slot = tl.load(span), tl.load(span + 1), tl.load(span + 2)
    first, count = tl.load(span + 3), tl.load(span + 4)
    table, pattern, width = tl.load(span + 5), tl.load(span + 6), tl.load(span + 7)
    batch, at = tl.program_id(2).to(tl.int64), tl.arange(0, PADDED)
    group = (tl.program_id(1) // BLOCKS).to(tl.int64)
    member = tl.program_id(1) % BLOCKS * ROWS + tl.arange(0, ROWS)
    row, head = member // GROUP, group * GROUP + member % GROUP
    inside = row < count
    source = query + batch * query_batch + head * query_head
    rows = turned_states(
        source, first + row, inside, query_cos, query_sin, PAIRS, BEGIN, DIM, PADDED, INTERLEAVED, BACKWARDS,
        QUERY_TURNS,
    )  # fmt: skip
    if WEIGHED:
        rows = rows * tl.load(weight + at, mask=at < DIM, other=0.0).to(tl.float32)[None, :]
    if QUERY_SCALED:
        rows = rows * tl.load(query_factors + first + row, mask=inside, other=0.0).to(tl.float32)[:, None]
    rows = rows.to(query.dtype.element_ty)
    key += batch * key_batch + group * key_head
    value += batch * value_batch + group * value_head
    seen += pattern.to(tl.int64) + row.to(tl.int64) * width
    masked = row < tl.where(pattern < 0, 0, count)
    acc = tl.zeros([ROWS, PADDED], tl.float32)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if TURNS or SCALED:
        treated = tl.where(table >= 0, end, begin)  # all of the span or nothing
        acc, most, total = _over(
            acc, most, total, rows, key, value, cos, sin, factors, seen, masked, begin, treated, table, scale, softcap,
            key_token, value_token, PAIRS, BEGIN, DIM, PADDED, INTERLEAVED, BACKWARDS, TURNS, SCALED, PATTERNS,
            CAPPED, max(16, TILE // 2), TURNED_STAGES,
        )  # fmt: skip
        begin = treated
    acc, most, total = _over(
        acc, most, total, rows, key, value, cos, sin, factors, seen, masked, begin, end, table, scale, softcap,
        key_token, value_token, PAIRS, BEGIN, DIM, PADDED, INTERLEAVED, BACKWARDS, False, False, PATTERNS, CAPPED,
        TILE, STAGES,
    )  # fmt: skip
    blind = total == 0.0
    heads = tl.num_programs(1) // BLOCKS * GROUP
    place = (batch * heads + head) * slots + slot + row
    logs = tl.num_programs(2).to(tl.int64) * heads * slots * DIM
    here = inside[:, None] & (at < DIM)[None, :]
    tl.store(work + place[:, None] * DIM + at[None, :], acc / tl.where(blind, 1.0, total)[:, None], mask=here)
    log_sum = tl.where(blind, float("-inf"), most + tl.log(tl.where(blind, 1.0, total)))
    tl.store(work + logs + place, log_sum, mask=inside)


@triton.jit
def _over(
    acc, most, total, rows, key, value, cos, sin, factors, seen, masked, begin, end, table, scale, softcap, key_token,
    value_token, PAIRS: tl.constexpr, BEGIN: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    INTERLEAVED: tl.constexpr, BACKWARDS: tl.constexpr, TURNS: tl.constexpr, SCALED: tl.constexpr,
    PATTERNS: tl.constexpr, CAPPED: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The softmax of the rows over the keys begin .. end - 1: values summed, largest scores, sums of exponentials."""
    at = tl.arange(0, PADDED)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        token = start + tl.arange(0, TILE)
        inside = token < end
        here = inside[:, None] & (at < DIM)[None, :]
        wide = token.to(tl.int64)
        if TURNS or SCALED:
            place = table + wide - begin
            keys = turned_states(
                key + wide * key_token, place, inside, cos, sin, PAIRS, BEGIN, DIM, PADDED, INTERLEAVED, BACKWARDS,
                TURNS,
            )  # fmt: skip
            if SCALED:
                keys = keys * tl.load(factors + place, mask=inside, other=0.0).to(tl.float32)[:, None]
            keys = keys.to(key.dtype.element_ty)
        else:
            keys = tl.load(key + wide[:, None] * key_token + at[None, :], mask=here, other=0.0)
        values = tl.load(value + wide[:, None] * value_token + at[None, :], mask=here, other=0.0)
        scores = tl.dot(rows, tl.trans(keys), input_precision="ieee") * scale
        if CAPPED:
            small = tl.exp(-2.0 * tl.abs(scores) / softcap)
            scores = tl.where(scores < 0.0, -softcap, softcap) * (1.0 - small) / (1.0 + small)  # c tanh(s / c)
        sees = inside[None, :]
        if PATTERNS:
            pairs = masked[:, None] & inside[None, :]
            sees = sees & (tl.load(seen[:, None] + (token - begin)[None, :], mask=pairs, other=1) != 0)
        scores = tl.where(sees, scores, float("-inf"))
        larger = tl.maximum(most, tl.max(scores, 1))
        safe = tl.where(larger == float("-inf"), 0.0, larger)  # a row that has not seen a key
        weights = tl.exp(scores - safe[:, None])
        kept = tl.exp(most - safe)
        total = total * kept + tl.sum(weights, 1)
        acc = tl.dot(weights.to(values.dtype), values, acc * kept[:, None], input_precision="ieee")
        most = larger
    return acc, most, total


@triton.jit(do_not_specialize=["slots"])
def _combine_kernel(
    output, work, sinks, slots, output_batch, output_head, DIM: tl.constexpr, PADDED: tl.constexpr,
    SINKS: tl.constexpr, TAKEN: tl.constexpr,
):  # fmt: skip
    head, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    heads, at, one = tl.num_programs(0), tl.arange(0, PADDED), tl.arange(0, 1)
    parts = work + (batch * heads + head) * slots * DIM
    logs = work + tl.num_programs(1).to(tl.int64) * heads * slots * DIM + (batch * heads + head) * slots
    acc = tl.zeros([PADDED], tl.float32)
    most = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    if SINKS:
        most, total = tl.load(sinks + head + one).to(tl.float32), total + 1.0
    for start in range(0, slots, TAKEN):
        slot = start + tl.arange(0, TAKEN)
        log_sum = tl.load(logs + slot, mask=slot < slots, other=float("-inf"))
        some = log_sum > float("-inf")
        here = some[:, None] & (at < DIM)[None, :]
        outputs = tl.load(parts + slot[:, None].to(tl.int64) * DIM + at[None, :], mask=here, other=0.0)
        larger = tl.maximum(most, tl.max(log_sum, 0))
        safe = tl.where(larger == float("-inf"), 0.0, larger)
        shares, kept = tl.exp(log_sum - safe), tl.exp(most - safe)
        total = total * kept + tl.sum(shares, 0)
        acc = acc * kept + tl.sum(shares[:, None] * outputs, 0)
        most = larger
    place = output + batch * output_batch + head * output_head + at
    tl.store(place, (acc / tl.where(total == 0.0, 1.0, total)).to(output.dtype.element_ty), mask=at < DIM)
