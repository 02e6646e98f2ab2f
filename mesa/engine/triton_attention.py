"""Attention over spans by a Triton kernel: any spans in one launch, Stair PE's pairs with a carry among them.

A pair with a carry takes another query, so a tile of scores is chosen from two products and goes through one softmax.
What other parts gave may be there already: then their output and log-sum-exp go on, with no merge after it. Triton
comes with torch for CUDA, ROCm and XPU; importing this without it is an ImportError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor  # pyright: ignore[reportMissingImports]

from mesa.engine.spans import PairSpan, sides_of, tiles_of
from mesa.engine.triton_kernels import shared_memory
from mesa.plan import Carry

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


def attend(
    query: Tensor, carry_query: Tensor | None, key: Tensor, value: Tensor, spans: Sequence[PairSpan], scale: float,
    softcap: float | None, known: dict[Any, Any], into: Tensor, log_sum: Tensor, added: bool,
) -> None:  # fmt: skip
    """Attention of spans of one `holds`, to `into` (query, batch * head, dim) and `log_sum` (batch * head, query).

    query, key, value (batch, head, token, dim): those from the spans' first ones to their last. carry_query: the
    queries of pairs with a carry, where `holds` is a Carry without one. known: what is made once for all layers. added:
    whether output and log-sum-exp of other keys are there, to which these are added; else a query between spans has 0
    and -inf.
    """
    (batch, heads, _, dim), other = query.shape, query if carry_query is None else carry_query
    query, other = (states if states.stride(3) == 1 else states.contiguous() for states in (query, other))
    if scale <= 0:  # the kernel scales the largest product, for the largest score
        query, other, scale = query * scale, other * scale, 1.0
    padded = max(16, triton.next_power_of_2(dim))
    rows, columns, warps, stages = _tile(padded, carry_query is not None, query.itemsize, query.device)
    place = "tiles", tuple(spans), rows, columns, query.device
    if place not in known:
        known[place] = torch.from_numpy(tiles_of(spans, rows, columns)).to(query.device, non_blocking=True)
    table, ((first, _), (first_key, _)), carry = known[place], sides_of(spans), spans[0].holds
    width, shift = (carry.width, carry.shift) if isinstance(carry, Carry) else (1, 0)
    block = [1, 1, columns, padded]
    read = (
        TensorDescriptor(part, list(part.shape), list(part.stride()), block) for part in map(_aligned, (key, value))
    )
    kernel: Any = _attend_kernel
    kernel[len(table), heads, batch](
        table, query, other, *read, into, log_sum, scale, 1.0 if softcap is None else softcap,
        width, (first + shift) % width, first_key % width, heads // key.shape[1],
        *(states.stride(axis) for states in (query, other) for axis in range(3)),
        into.stride(0), into.stride(1), log_sum.stride(0), log_sum.stride(1),
        dim, padded, carry_query is not None, softcap is not None,
        any(span.farthest is not None for span in spans), added, rows, columns, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def _tile(padded: int, carries: bool, itemsize: int, device: torch.device) -> tuple[int, int, int, int]:
    """The first tile that fits: what a program holds of queries, and at each stage of keys and values."""
    for tile in (_TILES[max(64, padded), carries], *_SMALLER):
        rows, columns, _, stages = tile
        if (rows * (1 + carries) + 2 * columns * stages) * padded * itemsize <= shared_memory(device):
            return tile
    return _SMALLER[-1]


def _aligned(states: Tensor) -> Tensor:
    """States as a descriptor takes them: rows of whole 16 bytes from a multiple of 16 bytes on."""
    size = states.itemsize
    even = states.stride(3) == 1 and all(states.stride(axis) * size % 16 == 0 for axis in range(3))
    if even and states.data_ptr() % 16 == 0:
        return states
    return states.clone(memory_format=torch.contiguous_format)  # `contiguous` may give back what it is given


@triton.jit
def _over_keys(
    query, other, residue, row, key, value, output, most, total, begin, end, last, lowest, highest, scale, softcap,
    width, key_phase, batch, head, PADDED: tl.constexpr, CARRIES: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column, factor = tl.arange(0, COLUMNS), scale * 1.4426950408889634
    for start in range(begin, end, COLUMNS):
        here = start + column
        keys = key.load([batch, head, start, 0]).reshape(COLUMNS, PADDED)
        values = value.load([batch, head, start, 0]).reshape(COLUMNS, PADDED)
        turned = tl.trans(keys)
        scores = tl.dot(query, turned)
        if CARRIES:
            carries = residue[:, None] < ((here + key_phase) % width)[None, :]
            scores = tl.where(carries, tl.dot(other, turned), scores)
        if CAPPED:
            scores = softcap / scale * (1.0 - 2.0 / (tl.exp(2.0 * scale / softcap * scores) + 1.0))
        if MASKED:
            apart = row[:, None] - here[None, :]
            seen = (apart >= lowest) & (here < last)[None, :]
            if WINDOWED:
                seen = seen & (apart <= highest)
            scores = tl.where(seen, scores, float("-inf"))
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


@triton.jit(do_not_specialize=["width", "phase", "key_phase", "log_head"])  # they differ from block to block
def _attend_kernel(
    table, query, other, key, value, into, log_sum, scale, softcap, width, phase, key_phase, group,
    query_batch, query_head, query_token, other_batch, other_head, other_token, into_token, into_head, log_head,
    log_token,
    DIM: tl.constexpr, PADDED: tl.constexpr, CARRIES: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
    ADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tile = table + tl.program_id(0) * 8
    first, end, begin, whole = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    whole_end, last, lowest, highest = tl.load(tile + 4), tl.load(tile + 5), tl.load(tile + 6), tl.load(tile + 7)
    head, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    row, at = first + tl.arange(0, ROWS), tl.arange(0, PADDED)
    inside, far = (row < end)[:, None] & (at < DIM)[None, :], row.to(tl.int64)
    query += batch * query_batch + head * query_head
    queries = tl.load(query + far[:, None] * query_token + at[None, :], mask=inside, other=0.0)
    others = queries
    if CARRIES:
        other += batch * other_batch + head * other_head
        others = tl.load(other + far[:, None] * other_token + at[None, :], mask=inside, other=0.0)
    key_head = tl.program_id(1) // group
    residue = (row + phase) % width
    place = batch * tl.num_programs(1) + head
    into += far[:, None] * into_token + place * into_head + at[None, :]
    log_sum += place * log_head + far * log_token
    if ADDED:
        most = tl.load(log_sum, mask=row < end, other=float("-inf")) * 1.4426950408889634
        total = tl.where(most == float("-inf"), 0.0, 1.0)
        output = tl.load(into, mask=inside, other=0.0).to(tl.float32)
    else:
        most = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        output = tl.zeros([ROWS, PADDED], tl.float32)
    if WINDOWED:
        output, most, total = _over_keys(
            queries, others, residue, row, key, value, output, most, total, begin, tl.minimum(whole, last), last,
            lowest, highest, scale, softcap, width, key_phase, tl.program_id(2), key_head,
            PADDED, CARRIES, CAPPED, True, True, COLUMNS,
        )  # fmt: skip
    output, most, total = _over_keys(
        queries, others, residue, row, key, value, output, most, total, whole, whole_end, last, lowest,
        highest, scale, softcap, width, key_phase, tl.program_id(2), key_head,
        PADDED, CARRIES, CAPPED, False, False, COLUMNS,
    )  # fmt: skip
    output, most, total = _over_keys(
        queries, others, residue, row, key, value, output, most, total, whole_end, last, last, lowest,
        highest, scale, softcap, width, key_phase, tl.program_id(2), key_head,
        PADDED, CARRIES, CAPPED, WINDOWED, True, COLUMNS,
    )  # fmt: skip
    blind = total == 0.0
    total = tl.where(blind, 1.0, total)
    output = output / total[:, None]
    logs = tl.where(blind, float("-inf"), (most + tl.log2(total)) * 0.6931471805599453)
    tl.store(into, output.to(into.dtype.element_ty), mask=inside)
    tl.store(log_sum, logs, mask=row < end)
