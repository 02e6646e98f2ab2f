"""Attention weights of a few queries only, as the dense executor gives them; O(keys) memory a query."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mesa.engine.alibi import biased
from mesa.engine.schedule import Schedule


def rows(schedule: Schedule, query: Tensor, key: Tensor, scale: float, chosen: Sequence[int]) -> Tensor:
    """Weights (batch, head, chosen, key) of the tokens `chosen` as queries; arguments as an executor's.

    Keys are those from `schedule.first_key` on. Raises ValueError for a token whose query is not there.
    """
    start, length, first_key = schedule.start, schedule.plan.length, schedule.first_key
    for token in chosen:
        if not start <= token < length:
            raise ValueError(f"no query of token {token} is in this pass; it has those of {start} to {length - 1}")
    groups = query.shape[1] // key.shape[1]
    scores = query.new_full((*query.shape[:2], len(chosen), key.shape[2]), -math.inf)
    for region in schedule.plan.regions:
        mine = [row for row, token in enumerate(chosen) if region.queries[0] <= token < region.queries[1]]
        low, high = max(region.keys[0], first_key), min(region.keys[1], length)
        if not mine or low >= high:
            continue
        tokens = [chosen[row] for row in mine]
        parts = [schedule.query(query[:, :, token - start, None], region, token, token + 1) for token in tokens]
        keys = schedule.key(key[:, :, low - first_key : high - first_key], region, low, high)
        part = torch.cat(parts, 2) @ keys.repeat_interleave(groups, 1).transpose(-1, -2) * scale
        queries = torch.tensor(tokens, device=query.device)[:, None]
        index = torch.arange(low, high, device=query.device)[None, :]
        if schedule.slopes is not None:
            part = biased(part, schedule.slopes, region, queries, index)
            scores = scores.to(part.dtype)
        columns = slice(low - first_key, high - first_key)
        scores[:, :, mine, columns] = torch.where(region.contains(queries, index), part, scores[:, :, mine, columns])
    return scores.softmax(-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
