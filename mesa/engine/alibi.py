"""ALiBi's bias, -slope * (query position - key position), at whatever positions a plan gives."""

from __future__ import annotations

import torch
from torch import Tensor

from mesa.engine.rope import positions
from mesa.plan import Region

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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slopes: Tensor,
    scale: float,
    region: Region,
    queries: tuple[int, int],
    keys: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ALiBi's bias as further dims of queries and keys, and what is to be added to the log-sum-exp (head, query).

    The bias is separable: slope * key position goes with the key (in parts, so that bfloat16 keeps it, and a factor of
    it with the query, so that float16 holds it at any length in use),
    -slope * query position is the same for all keys of a query and so matters to the merge alone.
    """
    accurate = torch.promote_types(query.dtype, torch.float32)
    slopes, query_position, key_position = (
        part.to(accurate).to(query.device)
        for part in (
            slopes,
            positions(region.query_position, torch.arange(*queries)),
            positions(region.key_position, torch.arange(*keys)),
        )
    )
    relative = key_position - key_position[-1]
    rest = slopes[: key.shape[1], None] * relative / scale / _SHARE
    parts = []
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
