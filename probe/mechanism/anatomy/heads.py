"""What each attention head looks at under a method: attention by distance, entropy, mean distance, sinks.

Weights are exact, made from what the engine hands to the executor, for sampled queries only: memory grows with the
length, not with its square.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformers import PreTrainedModel

from mesa.engine.rows import rows
from mesa.engine.schedule import Schedule
from mesa.methods import Method
from probe.mechanism.anatomy.queries import chosen_queries, common_length, labelled, look_at

FIRST = 4
"""Keys (tokens) at the start of a prompt that are counted by themselves."""

PARTS = ("first", "near", "window", "beyond")
"""Disjoint parts of the keys: the first 4; of the others those at distance <= N, those < M, and those of M or more."""

_UNITS = {
    "mass": ("attention mass", "share"),
    "entropy": ("entropy of attention", "nats"),
    "mean_distance": ("mean distance attended to", "tokens"),
    "sink": ("attention on token 0", "share"),
    "previous": ("attention on the token before", "share"),
}


def head_statistics(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    method: Method,
    *,
    near: int | None = None,
    queries: Sequence[int] | None = None,
) -> xr.Dataset:
    """What every head attends to in `prompts` (token ids, all of one length) under `method`.

    `mass` (prompt, layer, head, query, part): attention by true distance t - i in the disjoint `PARTS`; sums to 1.
    `entropy` (nats), `mean_distance` (tokens), `sink` and `previous` (shares on token 0 and on the token before):
    (prompt, layer, head, query). `by_span` makes means of them.
    near: N in tokens, M / 8 if None. queries: token positions; `sampled_queries` if None. Raises ValueError for
    positions or an N that cannot be, and for prompts of several lengths.
    """
    length, trained = common_length(prompts), method.trained_length
    near = max(1, trained // 8) if near is None else near
    if not 1 <= near < trained:
        raise ValueError(f"near={near} is not between 1 and the trained length {trained}")
    chosen = chosen_queries(queries, length, trained)
    parts = torch.from_numpy(_parts(np.array(chosen), length, near, trained))

    def look(schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> dict[str, Tensor]:
        return _statistics(rows(schedule, query, key, scale, chosen)[0].cpu(), chosen, parts)

    found = [look_at(model, ids, method, look) for ids in prompts]
    data = labelled(found, {"part": PARTS}, chosen, trained)
    for name, (long_name, units) in _UNITS.items():
        data[name].attrs.update(long_name=long_name, units=units)
    return data.assign_attrs(trained_length=trained, near=near, length=length)


def _parts(chosen: np.ndarray, length: int, near: int, trained_length: int) -> np.ndarray:
    """Which part each key is in for each query: (query, key, part), 0 or 1, float64."""
    distance = chosen[:, None] - np.arange(length)
    later = np.broadcast_to(np.arange(length) >= FIRST, distance.shape)
    parts = [~later, later & (distance <= near), later & (distance > near) & (distance < trained_length)]
    return np.stack([*parts, later & (distance >= trained_length)], -1).astype(np.float64)


def _statistics(weights: Tensor, chosen: Sequence[int], parts: Tensor) -> dict[str, Tensor]:
    """Statistics (head, query, ...) of weights (head, query, key)."""
    weights = weights.double()
    distance = torch.tensor(chosen)[:, None] - torch.arange(weights.shape[-1])
    return {
        "mass": torch.einsum("hqk,qkp->hqp", weights, parts),
        "entropy": torch.special.entr(weights).sum(-1),
        "mean_distance": (weights * distance).sum(-1),
        "sink": weights[..., 0],
        "previous": (weights * (distance == 1)).sum(-1),
    }
