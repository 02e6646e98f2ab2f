"""Mean and variance over texts of what a hook sees, by layer and position: one pass a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
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
    config = model.config
    kept, attrs, length = _planned(config, prompts, method, spec or CaptureSpec())
    if known is None:
        number_bytes = model.dtype.itemsize
        check_memory(collect_bytes(config, kept, length, number_bytes, dtype), length, "cpu")
        known = moments.empty(kept, method.trained_length, dtype, attrs)
    _check_known(known, kept, {**attrs, "trained_length": method.trained_length})
    for ids in prompts:
        run_hooked(bridge, ids, method, _hooked(known, kept, attrs["hook"]), max(kept.layers) + 1, executor=executor)
        moments.added(known)
        report()
    return known


def collect_bytes(config: Any, kept: Kept, length: int, number_bytes: int, dtype: str = "float64") -> int:
    """Estimate of the memory that `collect` and the mean made of it take beside the weights."""
    one_layer = 4 * 8 * len(kept.positions) * len(kept.dims)  # float64: states, their deviations, before and after
    return peak_bytes(config, length, number_bytes, moments.moments_bytes(kept, dtype) + one_layer)


def _hooked(known: xr.Dataset, kept: Kept, hook: str) -> list[Hooked]:
    places = np.ix_(kept.positions, kept.dims)

    def add(tensor: Tensor, hook: Any, *, row: int) -> None:
        states = tensor[0].flatten(1).float().cpu().numpy()[places].astype(np.float64)
        if not np.isfinite(states).all():
            raise RuntimeError(
                f"the states of layer {kept.layers[row]} are not finite; run the model with --dtype float32"
            )
        moments.add(known, row, states)

    return [(HOOKS[hook].format(layer=layer), partial(add, row=row)) for row, layer in enumerate(kept.layers)]


def _planned(
    config: Any, prompts: Sequence[Sequence[int]], method: Method, spec: CaptureSpec
) -> tuple[Kept, dict[str, Any], int]:
    """What is kept, what the moments are of, and the prompts' length; ValueError for what cannot be collected."""
    if len(spec.hooks) != 1:
        raise ValueError(f"moments are of one hook, not of {', '.join(spec.hooks)}; collect them one by one")
    lengths = sorted({len(ids) for ids in prompts})
    if len(lengths) != 1:
        raise ValueError(f"prompts of one length are needed; their lengths are {lengths or 'none'}")
    attrs = {"hook": spec.hooks[0], "method": json.dumps(method.describe(), sort_keys=True)}
    return spec.resolve(config, lengths[0]), attrs, lengths[0]


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
