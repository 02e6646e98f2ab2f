"""Captures what a `CaptureSpec` names in one forward pass of a bridged model under a method."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.exceptions import StopAtLayerException

import mesa
from mesa.errors import Failed, Refused
from mesa.methods import Method
from probe.capture.spec import HOOKS, CaptureSpec, Selection


def capture_states(
    bridge: TransformerBridge,
    token_ids: Sequence[int],
    method: Method,
    spec: CaptureSpec | None = None,
    *,
    executor: str = "fused",
) -> xr.Dataset:
    """Hidden states of one pass over a prompt under a method.

    Args:
        bridge: What `mesa.bridge` returns.
        token_ids: The prompt, with the tokenizer's own first token.
        method: The method.
        spec: What to keep; values are float32 whatever dtype it names. Default: all of resid_post.
        executor: 'fused' or 'dense', as in `mesa.applied`; default 'fused'.

    Returns:
        A Dataset, a variable a hook, (layer, position, dim); the method is a coordinate, so that `xr.concat(passes,
        "method")` is what `search` and `find_drift` take.

    Raises:
        Refused: The model or the prompt does not have what `spec` names.
        RuntimeError: A layer's states are not finite.

    Examples:
        >>> loaded = mesa.load()
        >>> bridge = mesa.bridge(loaded.model, loaded.tokenizer)
        >>> ids = loaded.tokenizer(" hello" * 400)["input_ids"]
        >>> dict(probe.capture_states(bridge, ids, mesa.ReRoPE(trained_length=256))["resid_post"].sizes)
        {'layer': 4, 'position': 401, 'dim': 256}
    """
    spec, model = spec or CaptureSpec(), bridge.original_model
    selection = spec.resolve(model.config, len(token_ids))
    values = capture(bridge, token_ids, method, spec.hooks, selection, executor=executor)
    return xr.Dataset(
        {
            hook: (("layer", "position", "dim"), array, {"long_name": hook, "units": "activation"})
            for hook, array in values.items()
        },
        {"layer": selection.layers, "position": selection.positions, "dim": selection.dims, "method": method.name},
        {"trained_length": method.trained_length},
    )


@torch.no_grad()
def capture(
    bridge: TransformerBridge,
    token_ids: Sequence[int],
    method: Method,
    hooks: Sequence[str],
    selection: Selection,
    *,
    executor: str = "fused",
) -> dict[str, np.ndarray]:
    """Hidden states by hook, each float32 (layer, position, dim), of one pass over `token_ids` under `method`.

    Slices are copied inside the hook, once, so that memory is what is selected, not what is computed. The pass ends
    with the last selected layer: no layers above, no logits, and no key-value cache. Raises Refused for a prompt of
    identical tokens, RuntimeError when the method's executor did not run once in every layer up to it.
    """
    shape = len(selection.layers), len(selection.positions), len(selection.dims)
    values = {hook: np.empty(shape, np.float32) for hook in hooks}
    index = _index(selection.positions, selection.dims)

    def keep(tensor: Tensor, hook: Any, *, name: str, row: int) -> None:
        flat = tensor[0].flatten(1)  # heads, where there are any, side by side
        torch.from_numpy(values[name][row]).copy_(flat[index])

    def stop(tensor: Tensor, hook: Any) -> None:
        raise StopAtLayerException(tensor)

    check_distinct(token_ids, "the prompt")
    depth = max(selection.layers) + 1
    forward_hooks: list[Any] = [
        (HOOKS[hook].format(layer=layer), partial(keep, name=hook, row=row))
        for hook in hooks
        for row, layer in enumerate(selection.layers)
    ]
    forward_hooks.append((HOOKS["resid_post"].format(layer=depth - 1), stop))  # those that keep come first
    model: Any = bridge.original_model
    ids = torch.tensor([list(token_ids)], device=model.device)
    with mesa.applied(model, method, executor=executor) as attachment:
        bridge.run_with_hooks(ids, fwd_hooks=forward_hooks, return_type=None, use_cache=False)
    if any(attachment.calls[layer] != 1 for layer in range(depth)):
        raise Failed(f"{method.name} ran {dict(attachment.calls)} times by layer, once in each of {depth} expected")
    return values


def check_distinct(ids: Sequence[int], what: str) -> None:
    """Refused for a prompt whose tokens are all the same: its hidden states cannot depend on position."""
    if len(ids) > 1 and len(set(ids)) == 1:
        raise Refused(
            f"all {len(ids)} tokens of {what} are the same (id {ids[0]}): every value is then the same, attention "
            "gives it back whatever its weights, and hidden states cannot depend on position; put another token first"
        )


def _index(*axes: Sequence[int]) -> tuple[slice | Tensor, ...]:
    """An index of positions and dims; axes without a gap as slices, which need no copy."""
    parts: list[slice | Tensor] = [
        slice(axis[0], axis[-1] + 1) if axis[-1] - axis[0] + 1 == len(axis) else torch.tensor(axis) for axis in axes
    ]
    rows, columns = parts
    return (rows[:, None], columns) if isinstance(rows, Tensor) and isinstance(columns, Tensor) else (rows, columns)
