"""What attention heads do under a method: distances, entropy, sinks, and retrieval (Wu et al. 2025).

Weights are exact, computed from what the engine hands to the executor, for sampled queries only: memory grows with the
length, not with its square.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformers import PreTrainedModel

import mesa
from mesa.engine.attention import rows
from mesa.engine.schedule import Schedule
from mesa.engine.structure import new_cache
from mesa.errors import Failed, Refused
from mesa.methods import Method
from mesa.outside import with_cache, with_last_logits
from mesa.support import attending_layers
from probe.eval_tasks.retrieval import Prompt
from probe.eval_tasks.score import nll

SPANS = ("inside M", "beyond M")
FIRST = 4
"""Keys (tokens) at the start of a prompt that are a part by themselves."""
MASS_PARTS = ("first", "near", "window", "beyond")
"""Disjoint parts of the keys: the first 4; of the others those at distance <= N, those < M, and those of M or more."""
QUERIES, STRONGEST = 32, 12
"""Queries whose attention is stored token by token, and how many keys of each."""
OFFSETS = (0, 1)
"""Tokens after the one that is emitted, of the keys that `retrieval_scores` counts."""
HeadMeasure = Callable[[Schedule, Tensor, Tensor, float], Mapping[str, Tensor]]
"""Statistics (head, ...) by name, of some heads of one layer: from schedule, queries, keys and scale."""


def head_statistics(
    model: PreTrainedModel,
    ids: Sequence[int],
    method: Method,
    *,
    near: int | None = None,
    queries: Sequence[int] | None = None,
) -> xr.Dataset:
    """What every head attends to in a prompt (token ids) under `method`.

    `mass` (layer, head, query, part): attention by true distance t - i in the disjoint `MASS_PARTS`; sums to 1.
    `entropy`
    (nats), `mean_distance` (tokens), `sink` and `previous` (shares on token 0 and on the token before): (layer, head,
    query). `by_span` averages over queries. near: N in tokens, M / 8 if None. queries: token positions;
    `sampled_queries` if None. Raises Refused for an N out of range.
    """
    length, trained = len(ids), method.trained_length
    near = max(1, trained // 8) if near is None else near
    if not 1 <= near < trained:
        raise Refused(f"near={near} is not between 1 and the trained length {trained}")
    chosen = sampled_queries(length, trained) if queries is None else sorted(queries)
    distance = np.array(chosen)[:, None] - np.arange(length)
    later = np.broadcast_to(np.arange(length) >= FIRST, distance.shape)
    beyond_near, beyond = distance > near, distance >= trained
    parts = [~later, later & ~beyond_near, later & beyond_near & ~beyond, later & beyond]
    in_part = torch.from_numpy(np.stack(parts, -1).astype(np.float64))  # (query, key, part)

    def measure(schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> dict[str, Tensor]:
        return _statistics(rows(schedule, query, key, scale, chosen)[0].cpu(), chosen, in_part)

    data = recorded_attention(model, ids, method, measure, ("query", "part"))
    return labelled(data, {"part": MASS_PARTS}, chosen, trained)


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


def sampled_queries(length: int, trained_length: int, count: int = 48) -> list[int]:
    """At most `count` token positions: half of them in the second half of the window, half from M on.

    All are within the window where the prompt is. Raises Refused for fewer than 2 tokens or queries.
    """
    if min(length, count) < 2:
        raise Refused(f"length={length} and count={count}: both must be at least 2")
    within = min(length, trained_length)
    spans = [(within // 2, within - 1), (trained_length, length - 1)][: 1 + (length > trained_length)]
    return sorted({int(at) for span in spans for at in np.linspace(*span, count // len(spans)).round()})


@torch.no_grad()
def recorded_attention(
    model: PreTrainedModel, ids: Sequence[int], method: Method, measure: HeadMeasure, axes: Sequence[str] = ("query",)
) -> xr.Dataset:
    """What `measure` gives in one pass over `ids` under `method`, (layer, head, *axes), of the layers with attention.

    `measure` is called once for every layer and group of its heads with a common schedule. Raises RuntimeError where a
    head was not measured exactly once.
    """
    by_head: dict[tuple[int, int], dict[str, np.ndarray]] = {}
    seen: list[tuple[int, int]] = []

    def observer(layer: int, heads: Sequence[int], *arguments: Any) -> None:
        values = measure(*arguments)
        for row, head in enumerate(heads):
            seen.append((layer, head))
            by_head[layer, head] = {name: value[row].cpu().numpy() for name, value in values.items()}

    with mesa.applied(model, method) as attachment:
        attachment.observer = observer
        model(torch.tensor([list(ids)], device=model.device), use_cache=False, **with_last_logits(model, 1))
    layers, heads = attachment.layers, model.config.num_attention_heads
    expected = [(layer, head) for layer in layers for head in range(heads)]
    if len(seen) > len(expected) and {*seen} == {*expected}:
        raise Refused(
            f"layers of this {model.config.model_type} model attend several times in a pass, so that what a head "
            "attends to cannot be told; `mesa-lens locate` finds heads that matter"
        )
    if sorted(seen) != expected:
        raise Failed(f"{method.name}: seen were (layer, head) {sorted(seen)}, not each of {layers} x {heads} once")
    values = {name: np.stack([by_head[key][name] for key in expected]) for name in by_head[expected[0]]}
    dims = ("layer", "head", *axes)
    arrays = {name: value.reshape(len(layers), heads, *value.shape[1:]) for name, value in values.items()}
    labels = {"layer": layers, "head": range(heads)}
    return xr.Dataset({name: (dims[: value.ndim], value) for name, value in arrays.items()}, labels)


def labelled(
    data: xr.Dataset, dims: Mapping[str, Sequence[str]], chosen: Sequence[int], trained_length: int
) -> xr.Dataset:
    """`recorded_attention` (layer, head, query, *dims) with the queries' positions and spans, and labels of dims."""
    spans = [SPANS[token >= trained_length] for token in chosen]
    labels = {"query": list(chosen), "span": ("query", spans)}
    return data.assign_coords({**labels, **{name: list(x) for name, x in dims.items()}})


def by_span(data: xr.Dataset) -> xr.Dataset:
    """Means over the queries inside M and beyond M (dim `span`, those that there are).

    Intervals are to be taken over prompts: queries of one prompt are not independent.
    """
    return data.groupby("span").mean("query").sel(span=[span for span in SPANS if span in data["span"]])


def token_values(model: PreTrainedModel, ids: np.ndarray, method: Method) -> dict[str, xr.DataArray]:
    """Every token of a text (token ids) under `method`, as `mesa-lens anatomy --parts tokens` stores it.

    `nll` (token), in nats, of all but the first. `weight` and `key` (layer, head, query, strongest): of
    `sampled_queries`, the 12 largest attention weights, and the positions that they are on.
    """
    queries = sampled_queries(len(ids), method.trained_length, QUERIES)
    with mesa.applied(model, method):
        losses = nll(model, ids, len(ids) - 1).double().numpy()

    def measure(schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> dict[str, Tensor]:
        weights = rows(schedule, query, key, scale, queries)[0]
        top = weights.topk(min(STRONGEST, weights.shape[-1]))
        return {"weight": top.values.float(), "key": schedule.first_key + top.indices}

    strongest = recorded_attention(model, ids.tolist(), method, measure, ("query", "strongest"))
    return {"nll": xr.DataArray(losses, dims="token"), **{str(name): array for name, array in strongest.items()}}


def needle_positions(prompt: Prompt) -> np.ndarray:
    """Whether each prompt token belongs to the answer where it stands in the context, (position,).

    That is every place at or after `key_position` that reads as the answer's tokens do; a passkey's sentence has two.
    """
    ids, answer = np.array(prompt.ids), np.array(prompt.answer_ids)
    needle = np.zeros(len(ids), bool)
    for begin in range(prompt.key_position, len(ids) - len(answer) + 1):
        if (ids[begin : begin + len(answer)] == answer).all():
            needle[begin : begin + len(answer)] = True
    if not needle.any():
        raise Refused(
            f"the answer {prompt.answer!r} (tokens {list(prompt.answer_ids)}) does not stand in the prompt from "
            f"position {prompt.key_position} on; build the prompt with the model's own tokenizer"
        )
    return needle


@torch.no_grad()
def retrieval_scores(model: PreTrainedModel, prompt: Prompt, method: Method) -> xr.DataArray:
    """How often each head retrieves: (layer, head, offset), the share of the answer's tokens.

    A head retrieves a token when the key it attends to most stands `offset` tokens, 0 or 1, after a place in the needle
    (`needle_positions`) that holds the very token that is emitted. Offset 0 is the paper's score. It misses heads that
    read the token from the one after it, where an earlier layer has moved it: offset 1 counts those. Tokens are decoded
    one by one with a cache; the right answer is emitted whatever the model predicts (teacher-forced). Raises Refused
    for a prompt whose answer does not stand after `key_position`, RuntimeError for logits that are not finite.
    """
    needle, tokens, cache = needle_positions(prompt), list(prompt.ids), new_cache(model)
    layers = attending_layers(model.config)
    top = np.zeros((len(layers), model.config.num_attention_heads), int)
    hits = np.zeros((*top.shape, len(OFFSETS)))

    def observer(
        layer: int, heads: Sequence[int], schedule: Schedule, query: Tensor, key: Tensor, scale: float
    ) -> None:
        weights = rows(schedule, query, key, scale, [len(tokens) - 1])[0, :, 0]
        top[layers.index(layer), heads] = schedule.first_key + weights.argmax(-1).cpu().numpy()

    with mesa.applied(model, method) as attachment:
        attachment.observer = observer
        for emitted in prompt.answer_ids:
            top[:] = -1
            ids = torch.tensor([tokens[cache.get_seq_length() :]], device=model.device)
            if model(ids, **with_cache(model, cache), **with_last_logits(model, 1)).logits.isnan().any():
                raise Failed(
                    f"{method.name}: logits are not finite; run the model with a wider --dtype (float32, float64)"
                )
            if (top < 0).any():
                raise Failed(f"{method.name}: not every head of every layer was seen")
            holds = np.flatnonzero(needle & (np.array(prompt.ids) == emitted))
            for number, offset in enumerate(OFFSETS):
                hits[..., number] += np.isin(top - offset, holds)
            tokens.append(emitted)
    labels = {"layer": layers, "head": range(top.shape[1]), "offset": list(OFFSETS)}
    return xr.DataArray(hits / len(prompt.answer_ids), labels, ("layer", "head", "offset"))
