"""What makes scores of queries and keys, beyond their product: soft caps, ALiBi's bias, and their softmax."""

import torch
from torch import Tensor

from mesa.engine.rope import positions
from mesa.engine.spans import Part
from mesa.plan import Region


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


def softmax(scores: Tensor, sinks: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Weights (batch, head, query, key) in `dtype`; with sinks (head,), they sum to less than 1."""
    accurate = torch.promote_types(dtype, torch.float32)
    if sinks is None:
        return scores.softmax(-1) if scores.dtype == dtype == accurate else scores.softmax(-1, dtype=accurate).to(dtype)
    sink = sinks.to(scores)[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, sink], -1).softmax(-1, dtype=accurate)[..., :-1].to(dtype)


_SHARE = 64.0
"""The part of ALiBi's bias that goes with queries."""

_PARTS = 3
"""Parts of ALiBi's bias that go with keys: of bfloat16's 8 bits each, they hold what float32 does."""


def biased(scores: Tensor, slopes: Tensor, region: Region, queries: Tensor, keys: Tensor) -> Tensor:
    """Scores (batch, head, query, key) with ALiBi's bias, in float32 or better: half precision would lose it."""
    accurate = torch.promote_types(scores.dtype, torch.float32)
    relative = positions(region.query_position, queries) - positions(region.key_position, keys)
    slopes, relative = (part.to(accurate).to(scores.device) for part in (slopes, relative))
    return scores.to(accurate) - slopes[:, None, None] * relative


def with_bias(
    states: tuple[Tensor, Tensor, Tensor],
    slopes: Tensor,
    scale: float,
    region: Region | Part,
    queries: tuple[int, int],
    keys: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ALiBi's bias as further dims of queries and keys, and what is to be added to the log-sum-exp (head, query).

    The bias is separable: slope * key position goes with the key (in parts, so that bfloat16 keeps it, and a factor of
    it with the query, so that float16 holds it at any length in use),
    -slope * query position is the same for all keys of a query and so matters to the merge alone.
    """
    query, key, value = states
    accurate = torch.promote_types(query.dtype, torch.float32)
    at = [(region.query_position, queries), (region.key_position, keys)]
    parts = slopes, *(positions(position, torch.arange(*span)) for position, span in at)
    slopes, query_position, key_position = (part.to(accurate).to(query.device) for part in parts)
    relative = key_position - key_position[-1]
    rest = slopes[: key.shape[1], None] * relative / scale / _SHARE
    parts = list[Tensor]()
    for _ in range(_PARTS):
        parts.append(rest.to(key.dtype))
        rest = rest - parts[-1]
    extra = 8  # dims, of which some carry the bias; the kernel likes round numbers
    bias = torch.stack(parts, -1).expand(key.shape[0], -1, -1, -1)
    key = torch.cat([key, bias, key.new_zeros(*key.shape[:3], extra - _PARTS)], -1)
    ones = query.new_zeros(*query.shape[:3], extra)
    ones[..., :_PARTS] = _SHARE
    offset = slopes[:, None] * (key_position[-1] - query_position)
    return torch.cat([query, ones], -1), key, torch.nn.functional.pad(value, (0, extra)), offset
