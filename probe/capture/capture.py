"""Captures what a `CaptureSpec` names in one forward pass of a bridged model under a method."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import psutil
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


def peak_bytes(config: Any, length: int, bytes_a_number: int, kept_bytes: int) -> int:
    """Estimate of the memory one captured pass takes beside the weights.

    Counted for each token: the residual stream and its normed copy, the MLP's three intermediates, queries, keys and
    values raw and rotated, and one attention output being merged in float32.
    """
    hidden, heads = config.hidden_size, config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    attention = heads * head_dim
    intermediate = getattr(config, "intermediate_size", None) or 4 * hidden
    token_bytes = bytes_a_number * (4 * hidden + 3 * intermediate + 8 * attention) + 3 * 4 * attention
    return length * token_bytes + kept_bytes


def free_bytes(device: torch.device | str = "cpu") -> int:
    """Free memory of a CUDA device, or of the machine."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    return psutil.virtual_memory().available


def check_memory(needed: int, length: int, device: torch.device | str = "cpu") -> None:
    """MemoryError when `needed` bytes are more than what is free, before any work."""
    free = free_bytes(device)
    if needed > free:
        raise MemoryError(
            f"length={length} needs about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free; "
            "shorten --length or keep fewer --layers, --dims, --positions"
        )
