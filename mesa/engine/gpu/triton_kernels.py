"""All Triton kernels: attention over spans, a decoded token's, rotation, and merging by log-sum-exp.

Products are of states in their own dtype, sums in float32. A launch takes the host a fraction of what a call of a
function does that torch compiled. Triton comes with torch for CUDA, ROCm and XPU; importing this without it is an
ImportError.

Names in capitals are constants that a kernel is compiled for. `_batch`, `_head` and `_token` are strides in
numbers, one by one: tuples of strides pass through a launcher that no test without a GPU runs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor  # pyright: ignore[reportMissingImports]

from mesa.engine.rope import RotaryLayout
from mesa.engine.spans import PairSpan, tiles_of
from mesa.plan import Carry

_TOKENS = 32
"""Tokens of a program."""

_SHARED = 227 * 1024
"""Bytes of shared memory where the device does not say: an H100's."""


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of a multiprocessor's shared memory that a program may have."""
    known = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    of_rocm = getattr(known, "shared_memory_per_block", _SHARED)  # which is a small part of it on CUDA
    return getattr(known, "shared_memory_per_block_optin", of_rocm)


def rotate(
    into: Tensor, rows: Tensor | None, states: Tensor, cos: Tensor | None, sin: Tensor | None, factors: Tensor | None,
    weight: Tensor | None, layout: RotaryLayout | None,
) -> None:  # fmt: skip
    """`rope.rotated` of states (batch, head, token, dim) to `into`, by those rows of cos and sin."""
    batch, heads, tokens, dim = into.shape
    states = states if states.stride(3) == 1 else states.contiguous()
    rotates = cos is not None and sin is not None and layout is not None
    table = (cos.contiguous(), sin.contiguous()) if cos is not None and sin is not None else (into, into)
    layout = layout or RotaryLayout(0, 1)
    by_row = rows if rows is not None else into
    grid = triton.cdiv(tokens, _TOKENS), heads, batch
    kernel: Any = _rotate_kernel
    kernel[grid](
        into, states, by_row, *table, into if factors is None else factors, into if weight is None else weight,
        tokens, *(into.stride(axis) for axis in range(3)), *(states.stride(axis) for axis in range(3)),
        *(_strides(rows) if rows is not None else (0, int(len(table[0]) > 1))),
        *((0, 0) if factors is None else _strides(factors[:, 0] if factors.dim() == 2 else factors[:, 0, :, 0])),
        PAIRS=layout.pairs, BEGIN=layout.begin, DIM=dim, PADDED=triton.next_power_of_2(dim),
        INTERLEAVED=layout.interleaved, BACKWARDS=layout.backwards, ROTATES=rotates, BY_ROWS=rows is not None,
        SCALED=factors is not None, WEIGHED=weight is not None, TOKENS=_TOKENS,
    )  # fmt: skip


def _strides(numbers: Tensor) -> tuple[int, int]:
    """From a row of the batch to the next, and from a token, of (row, token), of (token,) for all rows or of one."""
    row, token = (0, *numbers.stride())[-2:]
    return row * (len(numbers) > 1), token * (numbers.shape[-1] > 1)


def merge(total: Tensor, log_sum: Tensor, output: Tensor, other: Tensor, sinks: Tensor | None = None) -> None:
    """Adds a part's output (token, batch, head, dim) and log-sum-exp (batch * head, token) to what is there.

    Over disjoint keys. sinks: a further term of each head's softmax as well, as a score (head,).
    """
    tokens, batch, heads, dim = total.shape
    kernel: Any = _merge_kernel
    kernel[triton.cdiv(tokens, _TOKENS), batch * heads](
        total, log_sum, output, other, total if sinks is None else sinks, tokens,
        *total.stride()[:3], *output.stride()[:3], *log_sum.stride(), *other.stride(), heads,
        DIM=dim, PADDED=triton.next_power_of_2(dim), SINKS=sinks is not None, TOKENS=_TOKENS,
    )  # fmt: skip


@triton.jit
def rotated_states(
    source, row, inside, cos, sin, PAIRS: tl.constexpr, BEGIN: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    INTERLEAVED: tl.constexpr, BACKWARDS: tl.constexpr, ROTATES: tl.constexpr,
):  # fmt: skip
    """States (token, PADDED) in float32 from a pointer for each token, 0 outside, rotated by these rows of cos, sin."""
    at = tl.arange(0, PADDED)
    values = tl.load(source[:, None] + at[None, :], mask=inside[:, None] & (at < DIM)[None, :], other=0.0)
    values = values.to(tl.float32)
    if ROTATES:
        offset = at - BEGIN
        rotating = (at >= BEGIN) & (offset < 2 * PAIRS)
        if INTERLEAVED:
            pair, first = offset // 2, offset % 2 == 0
            partner = tl.where(first, at + 1, at - 1)
        else:
            pair, first = offset % PAIRS, offset < PAIRS
            partner = tl.where(first, at + PAIRS, at - PAIRS)
        there = inside[:, None] & rotating[None, :]
        entry = row[:, None] * PAIRS + pair[None, :]
        cosine = tl.load(cos + entry, mask=there, other=1.0).to(tl.float32)
        sine = tl.load(sin + entry, mask=there, other=0.0).to(tl.float32)
        partners = tl.load(source[:, None] + partner[None, :], mask=there, other=0.0).to(tl.float32)
        if BACKWARDS:
            sine = -sine
        values = values * cosine + partners * tl.where(first[None, :], -sine, sine)
    return values


@triton.jit
def _rotate_kernel(
    into, states, rows, cos, sin, factors, weight, tokens, into_batch, into_head, into_token, batch_stride,
    head_stride, token_stride, row_batch, row_token, factor_batch, factor_token, PAIRS: tl.constexpr,
    BEGIN: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, INTERLEAVED: tl.constexpr, BACKWARDS: tl.constexpr,
    ROTATES: tl.constexpr, BY_ROWS: tl.constexpr, SCALED: tl.constexpr, WEIGHED: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    inside, at = token < tokens, tl.arange(0, PADDED)
    here = inside[:, None] & (at < DIM)[None, :]
    source = states + batch * batch_stride + head * head_stride + token * token_stride
    row = batch * row_batch + token * row_token
    # Tokens at one distance share a row of cos and sin.
    if ROTATES and BY_ROWS:
        row = tl.load(rows + row, mask=inside, other=0).to(tl.int64)
    values = rotated_states(source, row, inside, cos, sin, PAIRS, BEGIN, DIM, PADDED, INTERLEAVED, BACKWARDS, ROTATES)
    if WEIGHED:
        values = values * tl.load(weight + at, mask=at < DIM, other=0.0).to(tl.float32)[None, :]
    if SCALED:
        values = (
            values
            * tl.load(factors + batch * factor_batch + token * factor_token, mask=inside, other=0.0).to(tl.float32)[
                :, None
            ]
        )
    target = into + batch * into_batch + head * into_head + token[:, None] * into_token + at[None, :]
    tl.store(target, values.to(into.dtype.element_ty), mask=here)


@triton.jit
def _merge_kernel(
    total, log_sum, output, other, sinks, tokens, total_token, total_batch, total_head, output_token, output_batch,
    output_head, log_head, log_token, other_head, other_token, heads, DIM: tl.constexpr, PADDED: tl.constexpr,
    SINKS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token, number = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64), tl.program_id(1).to(tl.int64)
    inside, at = token < tokens, tl.arange(0, PADDED)
    here = inside[:, None] & (at < DIM)[None, :]
    text, head = number // heads, number % heads
    log_at = log_sum + number * log_head + token * log_token
    one = tl.load(log_at, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(other + number * other_head + token * other_token, mask=inside, other=0.0).to(tl.float32)
    # Where neither part saw a key all is -inf, and differences of those would be NaN.
    largest = tl.maximum(one, two)
    nothing = largest == float("-inf")  # neither part saw a key
    safe = tl.where(nothing, 0.0, largest)
    both = safe + tl.log(tl.exp(one - safe) + tl.exp(two - safe))
    share = tl.where(nothing, 0.0, tl.exp(two - tl.where(nothing, 0.0, both)))
    pointers = total + token[:, None] * total_token + text * total_batch + head * total_head + at[None, :]
    values = tl.load(pointers, mask=here, other=0.0).to(tl.float32)
    added = output + token[:, None] * output_token + text * output_batch + head * output_head + at[None, :]
    values += share[:, None] * (tl.load(added, mask=here, other=0.0).to(tl.float32) - values)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        values = values * (1.0 / (1.0 + tl.exp(sink - both)))[:, None]
        highest = tl.maximum(both, sink)
        both = highest + tl.log(tl.exp(both - highest) + tl.exp(sink - highest))
    tl.store(pointers, values.to(total.dtype.element_ty), mask=here)
    tl.store(log_at, both, mask=inside)


_TILES = {
    (64, False): (128, 64, 8, 3),
    (64, True): (128, 64, 4, 3),
    (128, False): (128, 128, 8, 3),
    (128, True): (128, 64, 8, 3),
    (256, False): (128, 64, 8, 2),
    (256, True): (128, 32, 8, 2),
}
"""Queries and keys of a tile, warps and stages, for head dims up to so many, with a carry or not: an H100's fastest."""

_SMALLER = ((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 2))
"""Those for less shared memory."""


def attend_spans(
    query: Tensor, carry_query: Tensor | None, key: Tensor, value: Tensor, spans: Sequence[PairSpan], scale: float,
    softcap: float | None, cache: dict[Any, Any], into: Tensor, log_sum: Tensor, added: bool,
    chosen: Tensor | None = None,
) -> None:  # fmt: skip
    """Attention of spans of one `holds`, to `into` (query, batch, head, dim) and `log_sum` (batch * head, query).

    query, key, value (batch, head, token, dim): those from the spans' first ones to their last. carry_query: the
    queries of pairs with a carry, where `holds` is a Carry without one. cache: what is made once for all layers. added:
    whether output and log-sum-exp of other keys are there, to which these are added; else a query that no span of its
    row has gets 0 and -inf. chosen: the heads whose output it is, int32; None: all.
    """
    (batch, heads, _, dim), other = query.shape, query if carry_query is None else carry_query
    query, other = (states if states.stride(3) == 1 else states.contiguous() for states in (query, other))
    if scale <= 0:  # the kernel scales the largest product, for the largest score
        query, other, scale = query * scale, other * scale, 1.0
    padded = max(16, triton.next_power_of_2(dim))
    rows, columns, warps, stages = _tile(padded, carry_query is not None, query.itemsize, query.device)
    key_of_tiles = "tiles", tuple(spans), rows, columns, batch, query.device
    if key_of_tiles not in cache:
        tiles = torch.from_numpy(tiles_of(spans, rows, columns, batch))
        cache[key_of_tiles] = tiles.to(query.device, non_blocking=True)
    table, carry = cache[key_of_tiles], spans[0].holds
    # A descriptor reads rows of a multiple of 16 bytes. Those of other head dims, such as 100, are read by pointers,
    # without copies of keys.
    described = dim * key.itemsize % 16 == 0
    if not described:
        key, value = (states if states.stride(3) == 1 else states.contiguous() for states in (key, value))
    read: Any = (key, value)
    if described:
        read = (
            TensorDescriptor(part, list(part.shape), list(part.stride()), [1, 1, columns, padded])
            for part in map(_aligned, (key, value))
        )
    kernel: Any = _spans_kernel
    kernel[len(table), heads if chosen is None else len(chosen)](
        table, table if chosen is None else chosen, query, other, *read, into, log_sum, scale,
        1.0 if softcap is None else softcap, carry.width if isinstance(carry, Carry) else 1, heads,
        heads // key.shape[1],
        *(states.stride(axis) for states in (query, other) for axis in range(3)),
        *(part.stride(axis) for part in (key, value) for axis in range(3)),
        *into.stride()[:3], *log_sum.stride(),
        DESCRIBED=described, DIM=dim, PADDED=padded, CARRIES=carry_query is not None, CAPPED=softcap is not None,
        WINDOWED=any(span.farthest is not None for span in spans), ADDED=added, CHOSEN=chosen is not None,
        ROWS=rows, COLUMNS=columns, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def _tile(padded: int, carries: bool, itemsize: int, device: torch.device) -> tuple[int, int, int, int]:
    """The first tile that fits: what a program holds of queries, and at each stage of keys and values."""
    for tile in (_TILES[max(64, padded), carries], *_SMALLER):
        rows, columns, _, stages = tile
        if (rows * (1 + carries) + 2 * columns * stages) * padded * itemsize <= shared_memory(device):
            return tile
    return _SMALLER[-1]


def _aligned(states: Tensor) -> Tensor:
    """States as a descriptor takes them: rows of a multiple of 16 bytes from a multiple of 16 bytes on."""
    size = states.itemsize
    even = states.stride(3) == 1 and all(states.stride(axis) * size % 16 == 0 for axis in range(3))
    if even and states.data_ptr() % 16 == 0:
        return states
    return states.clone(memory_format=torch.contiguous_format)  # `contiguous` may give back what it is passed


@triton.jit
def _over_span(
    query, other, residue, row, key, value, output, most, total, begin, end, last, lowest, highest, scale, softcap,
    width, key_phase, batch, head, key_token, value_token, DESCRIBED: tl.constexpr, DIM: tl.constexpr,
    PADDED: tl.constexpr, CARRIES: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    column, factor = tl.arange(0, COLUMNS), scale * 1.4426950408889634
    for start in range(begin, end, COLUMNS):
        here = start + column
        if DESCRIBED:
            keys = key.load([batch, head, start, 0]).reshape(COLUMNS, PADDED)
            values = value.load([batch, head, start, 0]).reshape(COLUMNS, PADDED)
        else:
            token, at = here.to(tl.int64), tl.arange(0, PADDED)
            inside = (here < last)[:, None] & (at < DIM)[None, :]
            keys = tl.load(key + token[:, None] * key_token + at[None, :], mask=inside, other=0.0)
            values = tl.load(value + token[:, None] * value_token + at[None, :], mask=inside, other=0.0)
        columns = tl.trans(keys)
        scores = tl.dot(query, columns)
        # Both products cost less than a second pass over the keys.
        if CARRIES:
            carries = residue[:, None] < ((here + key_phase) % width)[None, :]
            scores = tl.where(carries, tl.dot(other, columns), scores)
        # c tanh(s / c) by one exponential; scores are not yet scaled here.
        if CAPPED:
            scores = softcap / scale * (1.0 - 2.0 / (tl.exp(2.0 * scale / softcap * scores) + 1.0))
        if MASKED:
            apart = row[:, None] - here[None, :]
            seen = (apart >= lowest) & (here < last)[None, :]
            if WINDOWED:
                seen = seen & (apart <= highest)
            scores = tl.where(seen, scores, float("-inf"))
        # A running softmax in base 2, which the hardware has; what was summed is scaled to the new largest score.
        larger = tl.maximum(most, tl.max(scores, 1) * factor)
        safe = larger
        if MASKED:
            safe = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores * factor - safe[:, None])
        kept = tl.exp2(most - safe)
        total = total * kept + tl.sum(weights, 1)
        output = tl.dot(weights.to(values.dtype), values, output * kept[:, None])
        most = larger
    return output, most, total


@triton.jit(do_not_specialize=["width", "log_head"])  # they differ from block to block
def _spans_kernel(
    table, chosen, query, other, key, value, into, log_sum, scale, softcap, width, heads, group,
    query_batch, query_head, query_token, other_batch, other_head, other_token, key_batch, key_head_stride, key_token,
    value_batch, value_head, value_token, into_token, into_batch, into_head, log_head, log_token,
    DESCRIBED: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, CARRIES: tl.constexpr, CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr, ADDED: tl.constexpr, CHOSEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # The host cut spans to tiles, the longest first, so that no program ends long after the others. Each tile names
    # its row of the batch: rows of different padding have spans of their own.
    tile = table + tl.program_id(0) * 11
    first, end, begin, full = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    full_end, last, lowest, highest = tl.load(tile + 4), tl.load(tile + 5), tl.load(tile + 6), tl.load(tile + 7)
    text, phase, key_phase = tl.load(tile + 8), tl.load(tile + 9), tl.load(tile + 10)
    number = tl.program_id(1)
    if CHOSEN:
        number = tl.load(chosen + number)
    head, batch = number.to(tl.int64), text.to(tl.int64)
    row, at = first + tl.arange(0, ROWS), tl.arange(0, PADDED)
    inside, far = (row < end)[:, None] & (at < DIM)[None, :], row.to(tl.int64)
    query += batch * query_batch + head * query_head
    queries = tl.load(query + far[:, None] * query_token + at[None, :], mask=inside, other=0.0)
    others = queries
    if CARRIES:
        other += batch * other_batch + head * other_head
        others = tl.load(other + far[:, None] * other_token + at[None, :], mask=inside, other=0.0)
    # Grouped heads read their key head; no key is copied.
    key_head = number // group
    if not DESCRIBED:
        key += batch * key_batch + key_head.to(tl.int64) * key_head_stride
        value += batch * value_batch + key_head.to(tl.int64) * value_head
    residue = (row + phase) % width
    log_row = batch * heads + head
    into += far[:, None] * into_token + batch * into_batch + head * into_head + at[None, :]
    log_sum += log_row * log_head + far * log_token
    # Output and log-sum-exp of other keys are one more "key", so that no launch merges them afterwards.
    if ADDED:
        most = tl.load(log_sum, mask=row < end, other=float("-inf")) * 1.4426950408889634
        total = tl.where(most == float("-inf"), 0.0, 1.0)
        output = tl.load(into, mask=inside, other=0.0).to(tl.float32)
    else:
        most = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        output = tl.zeros([ROWS, PADDED], tl.float32)
    # Keys at the edge of the window are masked, those in the middle are not, those at the diagonal and the end are.
    if WINDOWED:
        output, most, total = _over_span(
            queries, others, residue, row, key, value, output, most, total, begin, tl.minimum(full, last), last,
            lowest, highest, scale, softcap, width, key_phase, text, key_head, key_token, value_token,
            DESCRIBED, DIM, PADDED, CARRIES, CAPPED, WINDOWED=True, MASKED=True, COLUMNS=COLUMNS,
        )  # fmt: skip
    output, most, total = _over_span(
        queries, others, residue, row, key, value, output, most, total, full, full_end, last, lowest,
        highest, scale, softcap, width, key_phase, text, key_head, key_token, value_token,
        DESCRIBED, DIM, PADDED, CARRIES, CAPPED, WINDOWED=False, MASKED=False, COLUMNS=COLUMNS,
    )  # fmt: skip
    output, most, total = _over_span(
        queries, others, residue, row, key, value, output, most, total, full_end, last, last, lowest,
        highest, scale, softcap, width, key_phase, text, key_head, key_token, value_token,
        DESCRIBED, DIM, PADDED, CARRIES, CAPPED, WINDOWED=WINDOWED, MASKED=True, COLUMNS=COLUMNS,
    )  # fmt: skip
    # A query without keys gives 0 and -inf, which take no weight from other parts.
    blind = total == 0.0
    total = tl.where(blind, 1.0, total)
    output = output / total[:, None]
    logs = tl.where(blind, float("-inf"), (most + tl.log2(total)) * 0.6931471805599453)
    tl.store(into, output.to(into.dtype.element_ty), mask=inside)
    tl.store(log_sum, logs, mask=row < end)


TILE, WARPS = 2**14, 4
"""Bytes of keys read at a time, where shared memory holds them several times, and warps of a program."""
STAGES, ROTATED_STAGES = 3, 2
"""Tiles under way at a time: of keys as they are, and of half as many that are rotated."""
_TOKEN_ROWS = 64
"""The most rows of a program; a row is what one region has of one query head."""
_MERGED_SPANS = 32
"""Spans that are merged at a time."""


def attend_token(
    work: Tensor, query: Tensor, key: Tensor, value: Tensor, laid: Any, weight: Tensor | None, scale: float,
    softcap: float | None,
) -> None:  # fmt: skip
    """Writes each span's outputs and log-sum-exps to `work`."""
    (batch, heads, _, dim), value_dim = query.shape, value.shape[3]
    key_heads, spans = key.shape[1], laid.spans
    rows = laid.rows * heads // key_heads
    together = min(_TOKEN_ROWS, max(16, triton.next_power_of_2(rows)))
    blocks, layout = triton.cdiv(rows, together), laid.layout or RotaryLayout(0, 1)
    padded, value_padded = (max(16, triton.next_power_of_2(size)) for size in (dim, value_dim))
    tile = TILE if shared_memory(key.device) >= 5 * TILE else TILE // 2
    optional = *laid.query, *laid.key, weight, laid.seen
    has = [tensor is not None for tensor in optional]
    kernel: Any = _token_kernel
    kernel[spans.shape[1], key_heads * blocks, batch](
        work, query, key, value, spans, laid.slots_of, *(work if tensor is None else tensor for tensor in optional),
        scale, 1.0 if softcap is None else softcap, laid.slots,
        *_shared_stride(spans, laid.slots_of), *query.stride()[:2], *key.stride()[:3], *value.stride()[:3],
        GROUP=heads // key_heads, BLOCKS=blocks, COLUMNS=spans.shape[2], PAIRS=layout.pairs, BEGIN=layout.begin,
        DIM=dim, PADDED=padded, VALUE_DIM=value_dim, VALUE_PADDED=value_padded,
        INTERLEAVED=layout.interleaved, BACKWARDS=layout.backwards, QUERY_ROTATES=has[0], QUERY_SCALED=has[2],
        ROTATES=has[3], SCALED=has[5], WEIGHED=has[6], PATTERNS=has[7], CAPPED=softcap is not None,
        BY_HEAD=laid.by_head, ROWS=together, TILE=max(16, tile // (padded * key.itemsize)), STAGES=STAGES,
        ROTATED_STAGES=ROTATED_STAGES, num_warps=WARPS,
    )  # fmt: skip


def _shared_stride(*tables: Tensor) -> list[int]:
    """From a row of the batch to the next in tables (row, ..); 0 where all rows have one."""
    return [table.stride(0) if len(table) > 1 else 0 for table in tables]


def combine(output: Tensor, work: Tensor, laid: Any, sinks: Tensor | None) -> None:
    """Writes the output (batch, head, 1, dim) of all spans and of sinks, scores (head,) without value."""
    batch, heads, _, dim = output.shape
    kernel: Any = _combine_kernel
    kernel[heads, batch](
        output, work, work if sinks is None else sinks, laid.slots_of, laid.slots, *_shared_stride(laid.slots_of),
        *output.stride()[:2],
        DIM=dim, PADDED=triton.next_power_of_2(dim), SINKS=sinks is not None, SPANS=_MERGED_SPANS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slots", "spans_batch"])
def _token_kernel(
    work, query, key, value, spans, slots_of, query_cos, query_sin, query_factors, cos, sin, factors, weight, seen,
    scale, softcap, slots, spans_batch, slots_batch, query_batch, query_head, key_batch, key_head, key_token,
    value_batch, value_head, value_token,
    GROUP: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, PAIRS: tl.constexpr, BEGIN: tl.constexpr,
    DIM: tl.constexpr, PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
    INTERLEAVED: tl.constexpr, BACKWARDS: tl.constexpr,
    QUERY_ROTATES: tl.constexpr, QUERY_SCALED: tl.constexpr, ROTATES: tl.constexpr, SCALED: tl.constexpr,
    WEIGHED: tl.constexpr, PATTERNS: tl.constexpr, CAPPED: tl.constexpr, BY_HEAD: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, STAGES: tl.constexpr, ROTATED_STAGES: tl.constexpr,
):  # fmt: skip
    span = spans + tl.program_id(2) * spans_batch + tl.program_id(0) * COLUMNS
    begin, end, slot = tl.load(span), tl.load(span + 1), tl.load(span + 2)
    first, count = tl.load(span + 3), tl.load(span + 4)
    table, pattern, width = tl.load(span + 5), tl.load(span + 6), tl.load(span + 7)
    batch, at = tl.program_id(2).to(tl.int64), tl.arange(0, PADDED)
    group = (tl.program_id(1) // BLOCKS).to(tl.int64)
    member = tl.program_id(1) % BLOCKS * ROWS + tl.arange(0, ROWS)
    row, head = member // GROUP, group * GROUP + member % GROUP
    inside = row < count
    # Heads that attend by another plan have other slots; a span that no head here has reads no key.
    if BY_HEAD:
        own = slots_of + batch * slots_batch + head * 2
        inside = inside & (slot >= tl.load(own)) & (slot < tl.load(own + 1))
        end = tl.where(tl.max(inside.to(tl.int32), 0) > 0, end, begin)
    # A row for each query head of the group and each region that holds the keys: one read of the keys serves all.
    source = query + batch * query_batch + head * query_head
    rows = rotated_states(
        source, first + row, inside, query_cos, query_sin, PAIRS, BEGIN, DIM, PADDED, INTERLEAVED, BACKWARDS,
        QUERY_ROTATES,
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
    acc = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    # Rotation needs registers: smaller tiles, fewer stages. A span is rotated as one or not at all.
    if ROTATES or SCALED:
        treated = tl.where(table >= 0, end, begin)  # all of the span or nothing
        acc, most, total = _over_range(
            acc, most, total, rows, key, value, cos, sin, factors, seen, masked, begin, treated, table, scale, softcap,
            key_token, value_token, PAIRS, BEGIN, DIM, PADDED, VALUE_DIM, VALUE_PADDED, INTERLEAVED, BACKWARDS,
            ROTATES=ROTATES, SCALED=SCALED, PATTERNS=PATTERNS, CAPPED=CAPPED, TILE=max(16, TILE // 2),
            STAGES=ROTATED_STAGES,
        )  # fmt: skip
        begin = treated
    acc, most, total = _over_range(
        acc, most, total, rows, key, value, cos, sin, factors, seen, masked, begin, end, table, scale, softcap,
        key_token, value_token, PAIRS, BEGIN, DIM, PADDED, VALUE_DIM, VALUE_PADDED, INTERLEAVED, BACKWARDS,
        ROTATES=False, SCALED=False, PATTERNS=PATTERNS, CAPPED=CAPPED, TILE=TILE, STAGES=STAGES,
    )  # fmt: skip
    blind = total == 0.0
    heads = tl.num_programs(1) // BLOCKS * GROUP
    slot_row = (batch * heads + head) * slots + slot + row
    logs, at = tl.num_programs(2).to(tl.int64) * heads * slots * VALUE_DIM, tl.arange(0, VALUE_PADDED)
    here = inside[:, None] & (at < VALUE_DIM)[None, :]
    tl.store(work + slot_row[:, None] * VALUE_DIM + at[None, :], acc / tl.where(blind, 1.0, total)[:, None], mask=here)
    log_sum = tl.where(blind, float("-inf"), most + tl.log(tl.where(blind, 1.0, total)))
    tl.store(work + logs + slot_row, log_sum, mask=inside)


@triton.jit
def _over_range(
    acc, most, total, rows, key, value, cos, sin, factors, seen, masked, begin, end, table, scale, softcap, key_token,
    value_token, PAIRS: tl.constexpr, BEGIN: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr, INTERLEAVED: tl.constexpr, BACKWARDS: tl.constexpr,
    ROTATES: tl.constexpr, SCALED: tl.constexpr, PATTERNS: tl.constexpr, CAPPED: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The softmax of the rows over the keys begin .. end - 1: values summed, largest scores, sums of exponentials."""
    at, value_at = tl.arange(0, PADDED), tl.arange(0, VALUE_PADDED)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        token = start + tl.arange(0, TILE)
        inside = token < end
        here = inside[:, None] & (at < DIM)[None, :]
        wide = token.to(tl.int64)
        if ROTATES or SCALED:
            table_row = table + wide - begin
            keys = rotated_states(
                key + wide * key_token, table_row, inside, cos, sin, PAIRS, BEGIN, DIM, PADDED, INTERLEAVED, BACKWARDS,
                ROTATES,
            )  # fmt: skip
            if SCALED:
                keys = keys * tl.load(factors + table_row, mask=inside, other=0.0).to(tl.float32)[:, None]
            keys = keys.to(key.dtype.element_ty)
        else:
            keys = tl.load(key + wide[:, None] * key_token + at[None, :], mask=here, other=0.0)
        here = inside[:, None] & (value_at < VALUE_DIM)[None, :]
        values = tl.load(value + wide[:, None] * value_token + value_at[None, :], mask=here, other=0.0)
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
    output, work, sinks, slots_of, slots, slots_batch, output_batch, output_head, DIM: tl.constexpr,
    PADDED: tl.constexpr, SINKS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    head, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    heads, at, one = tl.num_programs(0), tl.arange(0, PADDED), tl.arange(0, 1)
    parts = work + (batch * heads + head) * slots * DIM
    logs = work + tl.num_programs(1).to(tl.int64) * heads * slots * DIM + (batch * heads + head) * slots
    own = slots_of + batch * slots_batch + head * 2
    first, last = tl.load(own), tl.load(own + 1)
    acc = tl.zeros([PADDED], tl.float32)
    most = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    # A sink is a score without a value: it is in the sum only.
    if SINKS:
        most, total = tl.load(sinks + head + one).to(tl.float32), total + 1.0
    for start in range(first, last, SPANS):
        slot = start + tl.arange(0, SPANS)
        log_sum = tl.load(logs + slot, mask=slot < last, other=float("-inf"))
        some = log_sum > float("-inf")
        here = some[:, None] & (at < DIM)[None, :]
        outputs = tl.load(parts + slot[:, None].to(tl.int64) * DIM + at[None, :], mask=here, other=0.0)
        larger = tl.maximum(most, tl.max(log_sum, 0))
        safe = tl.where(larger == float("-inf"), 0.0, larger)
        shares, kept = tl.exp(log_sum - safe), tl.exp(most - safe)
        total = total * kept + tl.sum(shares, 0)
        acc = acc * kept + tl.sum(shares[:, None] * outputs, 0)
        most = larger
    pointers = output + batch * output_batch + head * output_head + at
    tl.store(pointers, (acc / tl.where(total == 0.0, 1.0, total)).to(output.dtype.element_ty), mask=at < DIM)
