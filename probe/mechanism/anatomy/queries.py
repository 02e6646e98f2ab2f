"""Which queries are looked at, the attention a method gives them, and means over those inside and beyond M."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformers import PreTrainedModel

import mesa
from mesa.engine.attention import Schedule
from mesa.methods import Method

SPANS = ("inside M", "beyond M")

Look = Callable[[int, Schedule, Tensor, Tensor, float], None]


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
def look_at(model: PreTrainedModel, ids: Sequence[int], method: Method, look: Look) -> None:
    """Runs `ids` under `method`; `look` is shown what every layer's executor is given (see mesa.engine.plug.Observer).

    Raises RuntimeError where a layer was not seen exactly once with all its heads.
    """
    seen: list[tuple[int, int]] = []

    def observer(layer: int, schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> None:
        seen.append((layer, query.shape[1]))
        look(layer, schedule, query, key, scale)

    with mesa.applied(model, method) as attachment:
        attachment.observer = observer
        model(torch.tensor([list(ids)], device=model.device), use_cache=False, logits_to_keep=1)
    config = model.config
    if sorted(seen) != [(layer, config.num_attention_heads) for layer in range(config.num_hidden_layers)]:
        raise RuntimeError(f"{method.name}: seen were (layer, heads) {sorted(seen)}, not every layer once with all heads")


def labelled(
    values: Mapping[str, np.ndarray], dims: Mapping[str, Sequence[str]], chosen: Sequence[int], method: Method
) -> xr.Dataset:
    """Values (prompt, layer, head, query, ...) with their further dims' names, positions and spans as coordinates."""
    spans = [SPANS[token >= method.trained_length] for token in chosen]
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
