"""Mean and variance over texts of what a hook sees, by layer and position: one pass a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from mesa.methods import Method
from probe.capture.capture import Hooked, run_hooked
from probe.capture.memory import check_memory, peak_bytes
from probe.capture.spec import HOOKS, CaptureSpec, Kept
from probe.mechanism.anatomy import moments


def collect(
    bridge: TransformerBridge,
    prompts: Sequence[Sequence[int]],
    method: Method,
    spec: CaptureSpec | None = None,
    *,
    dtype: str = "float64",
    known: xr.Dataset | None = None,
    executor: str = "fused",
    report: Callable[[], None] = lambda: None,
) -> xr.Dataset:
    """Moments (see moments.py) over `prompts` of one length under `method`, of the one hook that `spec` names.

    Every second prompt goes to one half: give prompts in an order in which the halves share no text. dtype: of the
    stored means. known: moments to be continued, in place, as if these prompts had come after theirs; `moments.save`
    them every few prompts, and go on from the file after an error. `report` is called after every prompt.
    Raises ValueError for prompts that differ in length, for two hooks and for moments of something else, MemoryError
    before any pass, RuntimeError for states that are not finite, and what `run_hooked` raises.
    """
    model: Any = bridge.original_model
    lengths, spec = sorted({len(ids) for ids in prompts}), spec or CaptureSpec()
    if len(lengths) != 1:
        raise ValueError(f"prompts of one length are needed; their lengths are {lengths or 'none'}")
    kept = spec.resolve(model.config, lengths[0])
    if known is None:
        check_memory(collect_bytes(model.config, kept, lengths[0], model.dtype.itemsize, dtype), lengths[0], "cpu")
    known = continued(known, kept, method, spec, dtype)
    for ids in prompts:
        add(known, states_of(bridge, ids, method, kept, known.attrs["hook"], executor=executor))
        report()
    return known


def continued(known: xr.Dataset | None, kept: Kept, method: Method, spec: CaptureSpec, dtype: str) -> xr.Dataset:
    """The `known` moments or, where there are none, those of no text.

    Raises ValueError for two hooks, and for moments of something else.
    """
    if len(spec.hooks) != 1:
        raise ValueError(f"moments are of one hook, not of {', '.join(spec.hooks)}; collect them one by one")
    attrs = {"hook": spec.hooks[0], "method": json.dumps(method.describe(), sort_keys=True)}
    if known is None:
        return moments.empty(kept, method.trained_length, dtype, attrs)
    _check_known(known, kept, {**attrs, "trained_length": method.trained_length})
    return known


def states_of(
    bridge: TransformerBridge, ids: Sequence[int], method: Method, kept: Kept, hook: str, *, executor: str = "fused"
) -> list[np.ndarray]:
    """What a hook sees of one text, (position, dim) by layer in float32.

    Raises RuntimeError for states that are not finite, and what `run_hooked` raises.
    """
    places, found = np.ix_(kept.positions, kept.dims), []

    def look(tensor: Tensor, hook: Any) -> None:
        states = tensor[0].flatten(1).float().cpu().numpy()[places]
        if not np.isfinite(states).all():
            layer = kept.layers[len(found)]
            raise RuntimeError(
                f"the states of layer {layer} are not finite; run the model with a wider --dtype (float32, float64)"
            )
        found.append(states)

    hooked: list[Hooked] = [(HOOKS[hook].format(layer=layer), look) for layer in kept.layers]
    run_hooked(bridge, ids, method, hooked, max(kept.layers) + 1, executor=executor)
    return found


def add(known: xr.Dataset, states: Sequence[np.ndarray]) -> None:
    """Adds the states of one text, by layer, in place."""
    for row, each in enumerate(states):
        moments.add(known, row, each.astype(np.float64))
    moments.added(known)


def collect_bytes(config: Any, kept: Kept, length: int, number_bytes: int, dtype: str = "float64") -> int:
    """Estimate of the memory that `collect` and the mean made of it take beside the weights."""
    one_layer = 4 * 8 * len(kept.positions) * len(kept.dims)  # float64: states, their deviations, before and after
    held = moments.moments_bytes(kept, dtype) + states_bytes(kept) + one_layer
    return peak_bytes(config, length, number_bytes, held)


def states_bytes(kept: Kept) -> int:
    """Memory of what `states_of` gives."""
    return 4 * kept.values


def _check_known(known: xr.Dataset, kept: Kept, attrs: dict[str, Any]) -> None:
    """ValueError where moments are of another hook, method, or other layers, positions and dims."""
    for name, value in attrs.items():
        if known.attrs.get(name) != value:
            raise ValueError(f"the known moments are of {name} {known.attrs.get(name)}, not {value}; begin new ones")
    for name, wanted in (("layer", kept.layers), ("position", kept.positions), ("dim", kept.dims)):
        if known[name].values.tolist() != list(wanted):
            raise ValueError(
                f"the known moments have {known.sizes[name]} {name}s, others than asked for; begin new ones"
            )
