"""Captures what a `CaptureSpec` names in one forward pass of a bridged model under a method."""

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
from mesa.device import not_finite
from mesa.engine.bridge import LayerHooks
from mesa.errors import Failed, Refused
from mesa.methods import Method
from probe.capture.spec import HOOKS, OF_LAYERS, CaptureSpec, Selection


def capture_states(
    bridge: TransformerBridge | LayerHooks,
    token_ids: Sequence[int],
    method: Method,
    spec: CaptureSpec | None = None,
    *,
    executor: str = "fused",
) -> xr.Dataset:
    """Hidden states of one pass over a prompt under a method.

    Args:
        bridge: What `mesa.bridge` or `mesa.engine.bridge.hooked` returns.
        token_ids: The prompt, with the tokenizer's own first token.
        method: The method.
        spec: What to keep; values are float32 whatever dtype it names. Default: all of resid_post.
        executor: 'fused' or 'dense', as in `mesa.applied`; default 'fused'.

    Returns:
        A Dataset, a variable a hook, (layer, position, dim), of other widths (layer, position, dim_HOOK); the method is
        a coordinate, so that `xr.concat(passes, "method")` is what `search` and `find_drift` take.

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
    values = capture(bridge, token_ids, method, selection, executor=executor)
    labels = {name: each for axes in selection.axes.values() for name, each in axes.items()}
    return xr.Dataset(
        {
            hook: (("layer", *axes), values[hook], {"long_name": hook, "units": "activation"})
            for hook, axes in selection.axes.items()
        },
        {"layer": selection.layers, **labels, "method": method.name},
        {"trained_length": method.trained_length},
    )


@torch.no_grad()
def capture(
    bridge: TransformerBridge | LayerHooks,
    token_ids: Sequence[int],
    method: Method,
    selection: Selection,
    *,
    executor: str = "fused",
) -> dict[str, np.ndarray]:
    """What is selected by hook, float32 (layer, its axes), of one pass over `token_ids` under `method`.

    Slices are copied inside the hook, once, so that memory is what is selected, not what is computed. The pass ends
    with the last selected layer: no layers above, no logits, and no key-value cache. Raises Refused for a prompt of
    identical tokens and hooks that the model lacks or has in another size, RuntimeError when the method's executor did
    not run once in every layer up to it, or values are not finite.
    """
    model: Any = bridge.original_model
    sizes = {hook: [size and size(model.config) for size in HOOKS[hook].axes.values()] for hook in selection.axes}
    axes = {hook: [*axes.values()] for hook, axes in selection.axes.items()}
    values = {hook: np.empty((len(selection.layers), *map(len, each)), np.float32) for hook, each in axes.items()}
    index = {hook: _index(each) for hook, each in axes.items()}

    def keep(tensor: Tensor, hook: Any, *, name: str, row: int) -> None:
        kept = HOOKS[name].kept(tensor[0])
        if any(size not in (None, there) for size, there in zip(sizes[name], kept.shape, strict=True)):
            raise missing(name, row, f"has another size, {tuple(kept.shape)}")
        torch.from_numpy(values[name][row]).copy_(kept[index[name]])
        seen.add((name, row))

    def missing(name: str, row: int, problem: str) -> Refused:
        kind, layer = model.config.model_type, selection.layers[row]
        return Refused(f"hook {name!r} {problem} in layer {layer} of this {kind} model; take {', '.join(OF_LAYERS)}")

    def stop(tensor: Tensor, hook: Any) -> None:
        raise StopAtLayerException(tensor)

    check_distinct(token_ids, "the prompt")
    depth = max(selection.layers) + 1
    seen, known, forward_hooks = set[tuple[str, int]](), getattr(bridge, "hook_dict", None), list[Any]()
    for name in axes:
        for row, layer in enumerate(selection.layers):
            path = HOOKS[name].path.format(layer=layer)
            if known is not None and path not in known:
                raise missing(name, row, "is not there")
            forward_hooks.append((path, partial(keep, name=name, row=row)))
    forward_hooks.append((HOOKS["resid_post"].path.format(layer=depth - 1), stop))  # those that keep come first
    ids = torch.tensor([list(token_ids)], device=model.device)
    with mesa.applied(model, method, executor=executor) as attachment:
        bridge.run_with_hooks(ids, fwd_hooks=forward_hooks, return_type=None, use_cache=False)
    attending = [layer for layer in attachment.layers if layer < depth]
    if any(not attachment.calls[layer] for layer in attending):
        raise Failed(f"{method.name} ran {dict(attachment.calls)} times by layer, in each of {attending} expected")
    for name, rows in values.items():
        for row, kept in enumerate(rows):
            if (name, row) not in seen:
                raise missing(name, row, "is never reached")
            if not np.isfinite(kept).all():
                raise not_finite(model, f"values of {name} in layer {selection.layers[row]} under {method.name}")
    return values


def check_distinct(ids: Sequence[int], what: str) -> None:
    """Refused for a prompt whose tokens are all the same: its hidden states cannot depend on position."""
    if len(ids) > 1 and len(set(ids)) == 1:
        raise Refused(
            f"all {len(ids)} tokens of {what} are the same (id {ids[0]}): every value is then the same, attention "
            "gives it back whatever its weights, and hidden states cannot depend on position; put another token first"
        )


def _index(axes: Sequence[Sequence[int]]) -> tuple[slice | Tensor, ...]:
    """An index of all axes; those without a gap are slices, which need no copy, where at most one has gaps."""
    gaps = [axis[-1] - axis[0] + 1 != len(axis) for axis in axes]
    if sum(gaps) > 1:
        return tuple(torch.meshgrid(*(torch.tensor(list(axis)) for axis in axes), indexing="ij"))
    return tuple(
        torch.tensor(axis) if gap else slice(axis[0], axis[-1] + 1) for axis, gap in zip(axes, gaps, strict=True)
    )
