"""Attention over one block of keys, with its log-sum-exp, and merging: by the CPU's kernel or in few launches."""

from __future__ import annotations

import functools
import importlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mesa.engine.compiled import one_launch
from mesa.engine.layout import RotaryLayout, turned

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


def turn(into: Tensor, *given: Any) -> None:
    """States of tokens, turned as `layout.turned` does, written to `into` (batch, head, token, dim) in one launch."""
    kernels = _triton_kernels(into.device, into.dtype)
    kernels.turn(into, *given) if kernels else one_launch(_turned_plainly, into, *given)


def turned_states(states: Tensor, cos: Tensor, sin: Tensor, layout: RotaryLayout) -> Tensor:
    """States (batch, head, token, dim) turned by cos and sin (token, pair), in one launch."""
    if torch.is_grad_enabled():  # Triton's kernels have no gradients
        return one_launch(turned, states, cos, sin, None, None, layout)
    into = states.new_empty(states.shape)
    with torch.cuda.device_of(states):  # Triton launches on the current device
        turn(into, None, states, cos, sin, None, None, layout)
    return into


def _turned_plainly(
    into: Tensor, rows: Tensor | None, states: Tensor, cos: Tensor | None, sin: Tensor | None, *given: Any
) -> None:
    """`turned`, to where it is wanted, by those rows of cos and sin."""
    if rows is not None and cos is not None and sin is not None:
        cos, sin = cos[rows], sin[rows]
    into.copy_(turned(states, cos, sin, *given))


def merge(total: Tensor, *given: Any) -> None:
    """Merges a part's output into `total` (query, head, dim), in place and in one launch; see `merge_plainly`."""
    kernels = _triton_kernels(total.device, total.dtype)
    kernels.merge(total, *given) if kernels else one_launch(merge_plainly, total, *given)


def merge_plainly(total: Tensor, log_sum: Tensor, output: Tensor, other: Tensor, sinks: Tensor | None = None) -> None:
    """Adds a part's output (query, head, dim) and log-sum-exp (head, query) to what is there, over disjoint keys.

    sinks: a further term of each head's softmax as well, as a score (head,).
    """
    both = torch.logaddexp(log_sum, other)
    share = (other - both).exp().nan_to_num(nan=0.0).t().unsqueeze(-1)  # NaN: neither part saw a key
    accurate = total.to(share.dtype)
    accurate = accurate + share * (output.to(share.dtype) - accurate)
    if sinks is not None:
        accurate, both = accurate * _beside(both, sinks), torch.logaddexp(both, _scores_of(sinks, both))
    total.copy_(accurate)
    log_sum.copy_(both)


def add_sinks(total: Tensor, log_sum: Tensor, sinks: Tensor) -> None:
    """Adds each head's sink, a score (head,) without value, to the softmax of `total`, in one launch."""
    one_launch(_sink, total, log_sum, sinks)


def _sink(total: Tensor, log_sum: Tensor, sinks: Tensor) -> None:
    """Takes in a further term of each head's softmax, as a score (head,)."""
    total.copy_(total * _beside(log_sum, sinks))


def _beside(log_sum: Tensor, sinks: Tensor) -> Tensor:
    """What is left to keys beside sinks (query, head, 1)."""
    return (log_sum - _scores_of(sinks, log_sum)).sigmoid().t().unsqueeze(-1)


def _scores_of(sinks: Tensor, log_sum: Tensor) -> Tensor:
    """Sinks (batch * head, 1)."""
    return sinks.to(log_sum).repeat(log_sum.shape[0] // sinks.shape[0]).unsqueeze(1)


@functools.cache
def _triton_kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """The module of Triton kernels where they run on the device and were found to do right; None where not."""
    if device.type not in ("cuda", "xpu") or dtype == torch.float64:
        return None
    return tried_kernels("triton_kernels", lambda kernels: _difference(kernels, device), device)


def tried_kernels(name: str, difference: Callable[[Any], str | None], device: torch.device) -> Any:
    """A module of Triton kernels if it runs on the device and a trial says nothing against it; else None.

    difference: how the kernels differ from plain operations, if they do.
    """
    try:
        kernels = importlib.import_module(f"mesa.engine.{name}")
    except ImportError:
        return None
    try:
        error = difference(kernels)
    except torch.OutOfMemoryError:
        raise
    except Exception as refusal:  # Triton's own errors have no class in common
        error = str(refusal).partition("\n")[0]
    if error is None:
        return kernels
    warnings.warn(f"no {name} on {device}: {error}; other operations in their place", stacklevel=2)
    return None


def _difference(kernels: Any, device: torch.device) -> str | None:
    """How the kernels differ from plain operations, if they do."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).to(device)

    pairs = []
    for layout in (RotaryLayout(2, 4), RotaryLayout(0, 6, interleaved=True, backwards=True)):
        given = torch.arange(40, device=device).flip(0), drawn(1, 3, 40, 12), drawn(40, layout.pairs)
        given = *given, drawn(40, layout.pairs), drawn(40, 1), drawn(12), layout
        pairs.append([torch.zeros_like(given[1]) for _ in range(2)])
        _turned_plainly(pairs[-1][0], *given)
        kernels.turn(pairs[-1][1], *given)
    states = drawn(40, 6, 12), drawn(6, 40), drawn(40, 6, 12), drawn(6, 40), drawn(3)
    plain, by_kernel = ([part.clone() for part in states] for _ in range(2))
    merge_plainly(*plain)
    kernels.merge(*by_kernel)
    largest = max(float((one - other).abs().max()) for one, other in [*pairs, *zip(plain, by_kernel, strict=True)])
    return None if largest <= 1e-4 else f"off by {largest:.2g}"
