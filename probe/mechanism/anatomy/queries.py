"""Which queries are looked at, the attention a method gives them, and means over those inside and beyond M."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformers import PreTrainedModel

import mesa
from mesa.engine.schedule import Schedule
from mesa.methods import Method

SPANS = ("inside M", "beyond M")

Look = Callable[[Schedule, Tensor, Tensor, float], Mapping[str, Tensor]]
"""What is measured of some heads of one layer: values (head, ...) by name."""


def sampled_queries(length: int, trained_length: int, count: int = 48) -> list[int]:
    """At most `count` token positions: half of them in the second half of the window, half from M on.

    All are within the window where the prompt is. Raises ValueError for fewer than 2 tokens or queries.
    """
    if min(length, count) < 2:
        raise ValueError(f"length={length} and count={count}: both must be at least 2")
    within = min(length, trained_length)
    each = count if length <= trained_length else count // 2
    spans = [(within // 2, within - 1), (trained_length, length - 1)][: 1 if length <= trained_length else 2]
    return sorted({int(place) for span in spans for place in np.linspace(*span, each).round()})


def chosen_queries(queries: Sequence[int] | None, length: int, trained_length: int) -> list[int]:
    """`queries` in rising order, or `sampled_queries`; ValueError for a position that the prompts do not have."""
    if queries is None:
        return sampled_queries(length, trained_length)
    chosen = sorted({int(token) for token in queries})
    if not chosen or chosen[0] < 0 or chosen[-1] >= length:
        raise ValueError(f"queries={chosen} are not positions of a prompt of {length} tokens, 0 to {length - 1}")
    return chosen


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """The prompts' length in tokens; ValueError where they have none or several."""
    lengths = sorted({len(ids) for ids in prompts})
    if len(lengths) != 1:
        raise ValueError(f"prompts have lengths {lengths}; give prompts of one length")
    return lengths[0]


@torch.no_grad()
def look_at(model: PreTrainedModel, ids: Sequence[int], method: Method, look: Look) -> dict[str, np.ndarray]:
    """What `look` measures in one pass over `ids` under `method`, (layer, head, ...) by name.

    `look` is called once for every layer, and for every group of its heads with a schedule of their own. Raises
    RuntimeError where a head was not seen exactly once.
    """
    found: list[tuple[int, int, dict[str, np.ndarray]]] = []

    def observer(layer: int, heads: Sequence[int], *seen: Any) -> None:
        values = look(*seen)
        for row, head in enumerate(heads):
            found.append((layer, head, {name: value[row].cpu().numpy() for name, value in values.items()}))

    with mesa.applied(model, method) as attachment:
        attachment.observer = observer
        model(torch.tensor([list(ids)], device=model.device), use_cache=False, logits_to_keep=1)
    found.sort(key=lambda each: each[:2])
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    seen = [each[:2] for each in found]
    if seen != [(layer, head) for layer in range(layers) for head in range(heads)]:
        raise RuntimeError(f"{method.name}: seen were (layer, head) {seen}, not each of {layers} x {heads} once")
    values = {name: np.stack([each[2][name] for each in found]) for name in found[0][2]}
    return {name: value.reshape(layers, heads, *value.shape[1:]) for name, value in values.items()}


def labelled(
    prompts: Sequence[Mapping[str, np.ndarray]],
    dims: Mapping[str, Sequence[str]],
    chosen: Sequence[int],
    trained_length: int,
) -> xr.Dataset:
    """What `look_at` found in each prompt as (prompt, layer, head, query, *dims), with positions and their spans."""
    spans = [SPANS[token >= trained_length] for token in chosen]
    values = {name: np.stack([each[name] for each in prompts]) for name in prompts[0]}
    axes = ("prompt", "layer", "head", "query", *dims)
    data = xr.Dataset({name: (axes[: value.ndim], value) for name, value in values.items()})
    return data.assign_coords(
        layer=range(data.sizes["layer"]), head=range(data.sizes["head"]), query=list(chosen), span=("query", spans)
    ).assign_coords({name: list(labels) for name, labels in dims.items()})


def by_span(data: xr.Dataset) -> xr.Dataset:
    """Means over the queries inside M and beyond M (dim `span`, those that there are), a value for each prompt.

    Intervals are to be taken over `prompt`: queries of one prompt are not independent.
    """
    spans = [span for span in SPANS if (data["span"] == span).any()]
    means = [data.isel(query=(data["span"] == span).values).mean("query", keep_attrs=True) for span in spans]
    return xr.concat(means, "span").assign_coords(span=spans)
