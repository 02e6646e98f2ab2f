"""Turning states and merging outputs by a Triton kernel each, in float32.

A launch takes the host a fraction of what a call of a function does that torch compiled. Triton comes with torch for
CUDA, ROCm and XPU; importing this without it is an ImportError.
"""

import functools
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from mesa.engine.layout import RotaryLayout

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


def turn(
    into: Tensor, rows: Tensor | None, states: Tensor, cos: Tensor | None, sin: Tensor | None, factors: Tensor | None,
    weight: Tensor | None, layout: RotaryLayout | None,
) -> None:  # fmt: skip
    """`layout.turned` of states (batch, head, token, dim) to where it is wanted, by those rows of cos and sin."""
    batch, heads, tokens, dim = into.shape
    states = states if states.stride(3) == 1 else states.contiguous()
    turns = cos is not None and sin is not None and layout is not None
    table = (cos.contiguous(), sin.contiguous()) if cos is not None and sin is not None else (into, into)
    layout = layout or RotaryLayout(0, 1)
    by_row = rows if rows is not None else into
    single = turns and (len(rows) if rows is not None else len(table[0])) == 1
    grid = triton.cdiv(tokens, _TOKENS), heads, batch
    kernel: Any = _turn_kernel
    kernel[grid](
        into, states, by_row, *table, into if factors is None else factors, into if weight is None else weight,
        tokens, *(into.stride(axis) for axis in range(3)), *(states.stride(axis) for axis in range(3)),
        0 if single else 1, 0 if factors is None or len(factors) == 1 else factors.stride(0),
        layout.pairs, layout.begin, dim, triton.next_power_of_2(dim), layout.interleaved, layout.backwards,
        turns, rows is not None, factors is not None, weight is not None, _TOKENS,
    )  # fmt: skip


def merge(total: Tensor, log_sum: Tensor, output: Tensor, other: Tensor, sinks: Tensor | None = None) -> None:
    """Adds a part's output (token, head, dim) and log-sum-exp (head, token) to what is there, over disjoint keys.

    sinks: a further term of each head's softmax as well, as a score (head,).
    """
    tokens, heads, dim = total.shape
    kernel: Any = _merge_kernel
    kernel[triton.cdiv(tokens, _TOKENS), heads](
        total, log_sum, output, other, total if sinks is None else sinks, tokens,
        *total.stride()[:2], *output.stride()[:2], *log_sum.stride(), *other.stride(),
        1 if sinks is None else len(sinks), dim, triton.next_power_of_2(dim), sinks is not None, _TOKENS,
    )  # fmt: skip


@triton.jit
def turned_states(
    source, row, inside, cos, sin, PAIRS: tl.constexpr, BEGIN: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    INTERLEAVED: tl.constexpr, BACKWARDS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """States (token, PADDED) in float32 from a pointer for each token, 0 outside, turned by these rows of cos, sin."""
    at = tl.arange(0, PADDED)
    values = tl.load(source[:, None] + at[None, :], mask=inside[:, None] & (at < DIM)[None, :], other=0.0)
    values = values.to(tl.float32)
    if TURNS:
        offset = at - BEGIN
        turning = (at >= BEGIN) & (offset < 2 * PAIRS)
        if INTERLEAVED:
            pair, first = offset // 2, offset % 2 == 0
            partner = tl.where(first, at + 1, at - 1)
        else:
            pair, first = offset % PAIRS, offset < PAIRS
            partner = tl.where(first, at + PAIRS, at - PAIRS)
        there = inside[:, None] & turning[None, :]
        place = row[:, None] * PAIRS + pair[None, :]
        cosine = tl.load(cos + place, mask=there, other=1.0).to(tl.float32)
        sine = tl.load(sin + place, mask=there, other=0.0).to(tl.float32)
        partners = tl.load(source[:, None] + partner[None, :], mask=there, other=0.0).to(tl.float32)
        if BACKWARDS:
            sine = -sine
        values = values * cosine + partners * tl.where(first[None, :], -sine, sine)
    return values


@triton.jit
def _turn_kernel(
    into, states, rows, cos, sin, factors, weight, tokens, into_batch, into_head, into_token, batch_stride,
    head_stride, token_stride, row_stride, factor_stride, PAIRS: tl.constexpr, BEGIN: tl.constexpr,
    DIM: tl.constexpr, PADDED: tl.constexpr, INTERLEAVED: tl.constexpr, BACKWARDS: tl.constexpr,
    TURNS: tl.constexpr, BY_ROWS: tl.constexpr, SCALED: tl.constexpr, WEIGHED: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    inside, at = token < tokens, tl.arange(0, PADDED)
    here = inside[:, None] & (at < DIM)[None, :]
    source = states + batch * batch_stride + head * head_stride + token * token_stride
    row = token * row_stride
    if TURNS and BY_ROWS:
        row = tl.load(rows + row, mask=inside, other=0).to(tl.int64)
    values = turned_states(source, row, inside, cos, sin, PAIRS, BEGIN, DIM, PADDED, INTERLEAVED, BACKWARDS, TURNS)
    if WEIGHED:
        values = values * tl.load(weight + at, mask=at < DIM, other=0.0).to(tl.float32)[None, :]
    if SCALED:
        values = values * tl.load(factors + token * factor_stride, mask=inside, other=0.0).to(tl.float32)[:, None]
    target = into + batch * into_batch + head * into_head + token[:, None] * into_token + at[None, :]
    tl.store(target, values.to(into.dtype.element_ty), mask=here)


@triton.jit
def _merge_kernel(
    total, log_sum, output, other, sinks, tokens, total_token, total_head, output_token, output_head, log_head,
    log_token, other_head, other_token, sinks_count, DIM: tl.constexpr, PADDED: tl.constexpr,
    SINKS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token, head = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64), tl.program_id(1).to(tl.int64)
    inside, at = token < tokens, tl.arange(0, PADDED)
    here = inside[:, None] & (at < DIM)[None, :]
    log_at = log_sum + head * log_head + token * log_token
    one = tl.load(log_at, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(other + head * other_head + token * other_token, mask=inside, other=0.0).to(tl.float32)
    largest = tl.maximum(one, two)
    nothing = largest == float("-inf")  # neither part saw a key
    safe = tl.where(nothing, 0.0, largest)
    both = safe + tl.log(tl.exp(one - safe) + tl.exp(two - safe))
    share = tl.where(nothing, 0.0, tl.exp(two - tl.where(nothing, 0.0, both)))
    place = total + token[:, None] * total_token + head * total_head + at[None, :]
    values = tl.load(place, mask=here, other=0.0).to(tl.float32)
    added = output + token[:, None] * output_token + head * output_head + at[None, :]
    values += share[:, None] * (tl.load(added, mask=here, other=0.0).to(tl.float32) - values)
    if SINKS:
        sink = tl.load(sinks + head % sinks_count).to(tl.float32)
        values = values * (1.0 / (1.0 + tl.exp(sink - both)))[:, None]
        highest = tl.maximum(both, sink)
        both = highest + tl.log(tl.exp(both - highest) + tl.exp(sink - highest))
    tl.store(place, values.to(total.dtype.element_ty), mask=here)
    tl.store(log_at, both, mask=inside)
