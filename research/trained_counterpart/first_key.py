"""The attention of every head on the first key, and what the head's output tells of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import mesa
from mesa.engine.attention import rows
from mesa.engine.schedule import Schedule
from mesa.methods import Method
from probe.capture.spec import HOOKS

MAX_APART = 1000.0


@torch.no_grad()
def first_key(
    bridge: TransformerBridge, ids: Sequence[int], method: Method, queries: Sequence[int]
) -> dict[str, np.ndarray]:
    """`attention` a_1 on token 0, `output` (layer, head, query) and `apart` (layer, head), of a pass over `ids`.

    output: what the head's output z tells of a_1. With u = v_1 - v, v_1 the first key's value and v the mean of the
    others, it is (z - v).u / u.u: a_1 itself where all other values are v, and a_1 with their mean's noise elsewhere.
    apart: how far v_1 is from v, in root mean square distances of the others from it; at most `MAX_APART`.
    Raises RuntimeError where a head was not seen exactly once.
    """
    model: Any = bridge.original_model
    depth, count = model.config.num_hidden_layers, model.config.num_attention_heads
    chosen = torch.tensor(list(queries))
    attention = np.full((depth, count, len(queries)), np.nan)
    values: dict[int, Tensor] = {}
    by_layer: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    seen: list[tuple[int, int]] = []

    def observer(
        layer: int, heads: Sequence[int], schedule: Schedule, query: Tensor, key: Tensor, scale: float
    ) -> None:
        weights = rows(schedule, query, key, scale, queries)[0, :, :, 0]
        attention[layer, list(heads)] = weights.double().cpu().numpy()
        seen.extend((layer, head) for head in heads)

    def keep(layer: int) -> Any:
        def look(tensor: Tensor, hook: Any) -> None:
            values[layer] = tensor[0].reshape(tensor.shape[1], -1)

        return look

    def compare(layer: int) -> Any:
        def look(tensor: Tensor, hook: Any) -> None:
            states = tensor[0].reshape(tensor.shape[1], count, -1)
            by_layer[layer] = _output_and_apart(states, values.pop(layer), chosen)

        return look

    hooks: list[Any] = [(HOOKS["v"].path.format(layer=layer), keep(layer)) for layer in range(depth)]
    hooks += [(HOOKS["z"].path.format(layer=layer), compare(layer)) for layer in range(depth)]
    with mesa.applied(model, method) as attachment, bridge.hooks(fwd_hooks=hooks):
        attachment.observer = observer
        model(torch.tensor([list(ids)], device=model.device), use_cache=False, logits_to_keep=1)
    if sorted(seen) != [(layer, head) for layer in range(depth) for head in range(count)]:
        raise RuntimeError(f"{method.name}: seen were (layer, head) {sorted(seen)}, not all of {depth} x {count} once")
    output, apart = (np.stack(each) for each in zip(*(by_layer[layer] for layer in range(depth)), strict=True))
    return {"attention": attention, "output": output, "apart": apart}


def _output_and_apart(states: Tensor, values: Tensor, chosen: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """`output` and `apart` of a layer's head outputs (token, head, dim) and values (token, key head * dim)."""
    states, chosen = states.double().cpu(), chosen.cpu()
    values = values.double().cpu().reshape(len(states), -1, states.shape[-1])
    values = values.repeat_interleave(states.shape[1] // values.shape[1], 1)
    others = values[1:].mean(0)
    apart = values[0] - others
    along = ((states[chosen] - others) * apart).sum(-1) / apart.square().sum(-1).clamp(min=1e-300)
    spread = (values[1:] - others).square().sum(-1).mean(0).sqrt()
    ratio = (apart.norm(dim=-1) / spread.clamp(min=1e-300)).clamp(max=MAX_APART)
    return along.T.numpy(), ratio.numpy()
