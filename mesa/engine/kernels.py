"""Attention over one block of keys, with its log-sum-exp, by the CPU's kernel or plain operations; and merging."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 128
"""Queries a call (tokens) where a mask has to be built: as many keys more than needed are read by each query."""

_SMALL = 1024
"""Triangles up to this size (tokens) are done by rows: the kernel takes 512 keys at a time or skips them."""


@dataclass(frozen=True)
class Mask:
    """A mask as the kernels take it: 0 or -inf to add, (query, key), and which queries see nothing, None for none."""

    added: Tensor
    blind: Tensor | None

    @classmethod
    def of(cls, seen: Tensor, dtype: torch.dtype) -> Mask:
        """From booleans, True where a query sees a key."""
        blind = ~seen.any(-1)
        added = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -math.inf)
        return cls(added, blind if bool(blind.any()) else None)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, mask: Mask | None, lead: int = 0,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Softmax attention and its log-sum-exp over the keys (-inf where a query sees none).

    Shapes: query (batch, head, q, dim), key and value (batch, key head, k, dim), mask (q, k); returns
    (batch, head, q, dim) and (batch, head, q). `causal` is the lower triangle from the top left of the keys after the
    first `lead`, which every query sees. softcap: c in c tanh(s / c), which no kernel knows: plain operations, slower.
    """
    if softcap is None and causal and (lead or query.shape[2] > BLOCK) and query.shape[2] <= _SMALL:
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
    output, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=None if mask is None else mask.added, scale=scale
    )
    if mask is not None and mask.blind is not None:  # where the kernel reports 0 or NaN
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


def capped(scores: Tensor, softcap: float | Tensor | None) -> Tensor:
    """Scores s as c tanh(s / c), with c the `softcap`; as they are where it is None."""
    return scores if softcap is None else softcap * (scores / softcap).tanh()


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    """Products (batch, head, query, key) of queries and the keys of their groups, in float32 or better; copies no keys.

    On a CPU those of half precision are converted, for want of a product that sums in float32.
    """
    batch, heads, tokens, dim = query.shape
    grouped = query if heads == key.shape[1] else query.reshape(batch, key.shape[1], -1, dim)
    if query.dtype not in (torch.float16, torch.bfloat16):
        scores = grouped @ key.transpose(-1, -2)
    elif query.device.type == "cuda":
        columns = key.flatten(0, 1).transpose(-1, -2)
        scores = torch.bmm(grouped.flatten(0, 1), columns, out_dtype=torch.float32)
    else:
        scores = grouped.float() @ key.float().transpose(-1, -2)
    return scores.view(batch, heads, tokens, -1)


def attend_plainly(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, mask: Mask | None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`attend` in plain operations, BLOCK queries at a time."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    accurate = torch.promote_types(query.dtype, torch.float32)
    outputs, log_sums = [], []
    for begin in range(0, query.shape[2], BLOCK):
        rows = query[:, :, begin : begin + BLOCK].to(accurate)
        keys = slice(min(begin + BLOCK, key.shape[2]) if causal else key.shape[2])
        scores = capped(rows @ key[:, :, keys].transpose(-1, -2).to(accurate) * scale, softcap)
        if causal:
            ones = torch.ones(scores.shape[2:], dtype=torch.bool)
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
