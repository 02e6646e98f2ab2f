"""Captures what a `CaptureSpec` names in one forward pass of a bridged model under a method."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import mesa
from mesa.methods import Method
from probe.capture.spec import HOOKS, Kept


@torch.no_grad()
def capture(
    bridge: TransformerBridge,
    token_ids: Sequence[int],
    method: Method,
    hooks: Sequence[str],
    kept: Kept,
    *,
    executor: str = "fused",
) -> dict[str, np.ndarray]:
    """Hidden states by hook, each float32 (layer, position, dim), of one pass over `token_ids` under `method`.

    Slices are copied inside the hook, so that memory is what is kept, not what is computed. Layers above the last
    kept one are not run. Raises RuntimeError when the method's executor did not run once in every layer below.
    """
    values = {hook: np.empty((len(kept.layers), len(kept.positions), len(kept.dims)), np.float32) for hook in hooks}
    positions, dims = torch.tensor(kept.positions), torch.tensor(kept.dims)

    def keep(tensor: Tensor, hook: Any, *, name: str, row: int) -> None:
        flat = tensor[0].flatten(1)  # heads, where there are any, side by side
        part = flat.index_select(0, positions.to(flat.device)).index_select(1, dims.to(flat.device))
        values[name][row] = part.float().cpu().numpy()

    forward_hooks: list[Any] = [
        (HOOKS[hook].format(layer=layer), partial(keep, name=hook, row=row))
        for hook in hooks
        for row, layer in enumerate(kept.layers)
    ]
    depth = max(kept.layers) + 1
    model: Any = bridge.original_model
    ids = torch.tensor([list(token_ids)], device=model.device)
    with mesa.applied(model, method, executor=executor) as attachment:
        bridge.run_with_hooks(ids, fwd_hooks=forward_hooks, stop_at_layer=depth, return_type=None)
    if any(attachment.calls[layer] != 1 for layer in range(depth)):
        raise RuntimeError(
            f"{method.name} ran {dict(attachment.calls)} times by layer, once in each of {depth} expected"
        )
    return values
