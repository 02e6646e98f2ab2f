"""Attention over one block of keys, with its log-sum-exp: each device's own kernel, plain operations elsewhere."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 128
"""Queries a call (tokens) where a mask has to be built: as many keys more than needed are read by each query."""

_SMALL = 1024
"""Triangles up to this size (tokens) are done by rows on the CPU: its kernel takes 512 keys at a time or skips them."""

_TOLERANCE = 0.02
"""Largest difference from plain operations in half precision; forgetting one of 70 keys is 0.1 and more."""


@dataclass(frozen=True)
class Mask:
    """A mask as the kernels take it: 0 or -inf to add, (query, key), and which queries see nothing, None for none."""

    added: Tensor
    blind: Tensor | None

    @classmethod
    def of(cls, seen: Tensor, dtype: torch.dtype) -> Mask:
        """From booleans, True where a query sees a key; whether any sees none is asked on a CPU alone: it waits."""
        hidden = seen.logical_not()
        blind = hidden.all(-1)
        added = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(hidden, -math.inf)
        return cls(added, blind if seen.device.type != "cpu" or bool(blind.any()) else None)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, mask: Mask | None, lead: int = 0,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Softmax attention and its log-sum-exp over the keys (-inf where a query sees none).

    Shapes: query (batch, head, q, dim), key and value (batch, key head, k, dim), mask (q, k); returns
    (batch, head, q, dim) and (batch, head, q). `causal` is the lower triangle from the top left of the keys after the
    first `lead`, which every query sees. softcap: c in c tanh(s / c), which no kernel knows: plain operations, slower.
    """
    device = query.device
    if (
        softcap is None
        and device.type == "cpu"
        and causal
        and (lead or query.shape[2] > BLOCK)
        and query.shape[2] <= _SMALL
    ):
        return _by_rows(query, key, value, scale, lead)
    if lead:
        merged = Merged(query)
        for columns, triangle in ((slice(lead), False), (slice(lead, None), causal)):
            part = attend(query, key[:, :, columns], value[:, :, columns], scale, triangle, None, 0, softcap)
            merged.add(lambda whole: whole, *part, False)
        assert merged.whole is not None
        return merged.whole[0], merged.whole[1][..., 0]
    if softcap is not None:
        return attend_plainly(query, key, value, scale, causal, mask, softcap)
    if device.type == "cpu":
        output, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=None if mask is None else mask.added, scale=scale
        )
    elif device.type == "cuda" and cuda_agrees(device, query.dtype, query.shape[3]):
        output, log_sum = attend_cuda(query, key, value, scale, causal, mask)
    else:
        return attend_plainly(query, key, value, scale, causal, mask)
    if mask is not None and mask.blind is not None:  # where the kernels report 0 or NaN
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


def attend_cuda(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, mask: Mask | None
) -> tuple[Tensor, Tensor]:
    """`attend` by PyTorch's flash kernel (half precision, no mask) or its memory-efficient one."""
    square = query.shape[2] == key.shape[2]  # flash aligns its triangle at the bottom right
    if query.dtype != torch.float32 and mask is None and (square or not causal) and query.shape[3] % 8 == 0:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, 0.0, causal, False, scale=scale)[:2]
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    added = None
    if mask is not None:  # the kernel reads rows of whole blocks of 16
        queries, keys = mask.added.shape
        aligned = torch.nn.functional.pad(mask.added, (0, -keys % 16)).narrow(1, 0, keys)
        added = aligned.expand(*query.shape[:2], queries, keys)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    output, log_sum, *_ = efficient(query, key, value, added, True, 0.0, causal, scale=scale)
    return output, log_sum.narrow(2, 0, query.shape[2])  # the kernel pads it


@functools.cache
def cuda_agrees(device: torch.device, dtype: torch.dtype, dim: int) -> bool:
    """Whether `attend_cuda` gives what plain operations give, tried once; warns where it does not.

    The kernels are PyTorch's inner ones, which may change, and refuse some devices, dtypes and head dims.
    """
    if dtype == torch.float64:
        return False
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, heads, tokens, dim, generator=generator).to(device, dtype)
        for heads, tokens in ((4, 70), (2, 70), (2, 70))
    )
    band = torch.arange(70)[:, None] - torch.arange(45)[None, :]
    cases = (
        (key, value, True, None),
        (key[:, :, :45], value[:, :, :45], True, None),
        (key[:, :, :45], value[:, :, :45], False, None),
        (key[:, :, :45], value[:, :, :45], False, Mask.of(((band >= 5) & (band < 30)).to(device), dtype)),
    )
    try:
        for keys, values, causal, mask in cases:
            got = attend_cuda(query, keys, values, dim**-0.5, causal, mask)
            wanted = attend_plainly(query, keys, values, dim**-0.5, causal, mask)
            sighted = slice(None) if mask is None or mask.blind is None else ~mask.blind
            for one, other in zip(got, wanted, strict=True):
                difference = (one[:, :, sighted].float() - other[:, :, sighted].float()).abs().max()
                if not difference <= _TOLERANCE:
                    raise RuntimeError(f"difference {float(difference):.2g}")
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        warnings.warn(f"no fused attention for {dtype}, head dim {dim}, on {device}: {reason}; slower", stacklevel=2)
        return False
    return True


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores s as c tanh(s / c), with c the `softcap`; as they are where it is None."""
    return scores if softcap is None else softcap * (scores / softcap).tanh()


def attend_plainly(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, mask: Mask | None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`attend` in plain operations, BLOCK queries at a time, for devices without a kernel that returns both."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    accurate = torch.promote_types(query.dtype, torch.float32)
    outputs, log_sums = [], []
    for begin in range(0, query.shape[2], BLOCK):
        rows = query[:, :, begin : begin + BLOCK].to(accurate)
        keys = slice(min(begin + BLOCK, key.shape[2]) if causal else key.shape[2])
        scores = capped(rows @ key[:, :, keys].transpose(-1, -2).to(accurate) * scale, softcap)
        if causal:
            ones = torch.ones(scores.shape[2:], dtype=torch.bool, device=query.device)
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

    total: (batch, head, token, dim), kept as models want the output, token by token; log_sum: (batch, head, token, 1).
    """

    def __init__(self, query: Tensor) -> None:
        self.query, self.accurate = query, torch.promote_types(query.dtype, torch.float32)
        self.whole: tuple[Tensor, Tensor] | None = None
        self.begun = 0  # rows from it on have no part yet

    def begins(self, begin: int, end: int) -> bool:
        """Whether parts of the rows begin .. end - 1, which are about to be added, are their first."""
        begins, self.begun = begin >= self.begun, max(self.begun, end)
        return begins

    def add(self, rows: Callable[[Tensor], Tensor], output: Tensor, log_sum: Tensor, first: bool) -> None:
        """Adds a part; rows: cuts the part's rows out of all."""
        log_sum = log_sum[..., None]
        if self.whole is None:
            if output.shape == self.query.shape:
                self.whole = output, log_sum
                return
            batch, heads, tokens, dim = self.query.shape
            total = self.query.new_zeros(batch, tokens, heads, dim, dtype=self.accurate).transpose(1, 2)
            self.whole = total, total.new_full((batch, heads, tokens, 1), -math.inf)
        if self.whole[0].dtype != self.accurate:
            self.whole = self.whole[0].to(self.accurate), self.whole[1]
        total, total_log = map(rows, self.whole)
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
        if self.whole is None:
            return torch.zeros_like(self.query)
        output, log_sum = self.whole
        if sinks is not None:
            output = output * (log_sum - sinks.to(log_sum)[:, None, None]).sigmoid()
        return output.to(self.query.dtype)
