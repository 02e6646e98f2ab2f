"""The logit lens: what the model would say if it stopped after a layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from mesa.methods import Method
from probe.capture.capture import Hooked, run_hooked
from probe.capture.spec import HOOKS
from probe.tasks.score import SLICE


def logit_lens(
    bridge: TransformerBridge,
    prompts: Sequence[Sequence[int]],
    method: Method,
    ends: Sequence[int],
    layers: Sequence[int] | None = None,
    *,
    sample: int | None = None,
    executor: str = "fused",
    report: Callable[[], None] = lambda: None,
) -> xr.DataArray:
    """NLL (nats) of the true next token read from every layer, (prompt, layer, bucket): the mean over a bucket.

    Read: the model's final norm and unembedding of resid_post; after the last layer, what the model itself says.
    ends: the buckets of predicted tokens, each from the end before (the first from token 1) up to its own, left out, as
    in the task nll-position. sample: of each bucket at most so many tokens, evenly spread; a layer's logits take
    as long as many layers where the vocabulary is large. `report` is called after every prompt.
    Raises ValueError for buckets that a prompt does not fill, and what `run_hooked` raises.
    """
    model: Any = bridge.original_model
    buckets, depth = _buckets(ends, sample), model.config.num_hidden_layers
    chosen = list(range(depth) if layers is None else layers)
    if not chosen or not all(0 <= layer < depth for layer in chosen):
        raise ValueError(f"layers={chosen} are not all among the model's, 0-{depth - 1}")
    for ids in prompts:
        if len(ids) < max(ends):
            raise ValueError(f"a prompt of {len(ids)} tokens does not fill the bucket that ends at {max(ends)}")
    values = np.empty((len(prompts), len(chosen), len(buckets)))
    for row, ids in enumerate(prompts):
        run_hooked(
            bridge, ids, method, _hooked(bridge, ids, chosen, buckets, values[row]), max(chosen) + 1, executor=executor
        )
        report()
    return xr.DataArray(
        values,
        {
            "prompt": range(len(prompts)),
            "layer": chosen,
            "bucket": sorted(ends),
            "begin": ("bucket", [1, *sorted(ends)[:-1]]),
        },
        ("prompt", "layer", "bucket"),
        "lens_nll",
        {
            "long_name": "NLL read from the layer",
            "units": "nats/token",
            "trained_length": method.trained_length,
            "method": json.dumps(method.describe(), sort_keys=True),
        },
    )


def token_nll(bridge: TransformerBridge, states: Tensor, wanted: Tensor) -> Tensor:
    """NLL (token,) of `wanted` (token,), read from `states` (token, dim) by the final norm and unembedding."""
    parts = zip(states.split(SLICE), wanted.split(SLICE), strict=True)
    return torch.cat([_nll(bridge.unembed(bridge.ln_final(part[None]))[0], right) for part, right in parts])


def _nll(logits: Tensor, wanted: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.float(), wanted.to(logits.device), reduction="none").cpu()


def _hooked(
    bridge: TransformerBridge,
    ids: Sequence[int],
    layers: Sequence[int],
    buckets: Sequence[np.ndarray],
    values: np.ndarray,
) -> list[Hooked]:
    """Fills `values` (layer, bucket) on the way."""
    read = torch.from_numpy(np.concatenate(buckets))  # tokens that are predicted, each from the one before
    wanted = torch.tensor(list(ids))[read]
    bounds = np.cumsum([len(each) for each in buckets])[:-1]

    def look(tensor: Tensor, hook: Any, *, row: int) -> None:
        losses = token_nll(bridge, tensor[0][(read - 1).to(tensor.device)], wanted)
        values[row] = [part.mean() for part in np.split(losses.double().numpy(), bounds)]

    return [(HOOKS["resid_post"].format(layer=layer), partial(look, row=row)) for row, layer in enumerate(layers)]


def _buckets(ends: Sequence[int], sample: int | None) -> list[np.ndarray]:
    """The predicted tokens of every bucket; ValueError for one without any."""
    if sample is not None and sample < 1:
        raise ValueError(f"sample={sample} is below 1 token a bucket")
    ordered = sorted(ends)
    if not ordered or ordered[0] < 2 or len(set(ordered)) < len(ordered):
        raise ValueError(
            f"buckets that end at {list(ends)} are not all of one token or more; give different ends from 2"
        )
    spans = [np.arange(begin, end) for begin, end in zip([1, *ordered[:-1]], ordered, strict=True)]
    if sample is None:
        return spans
    return [each[np.linspace(0, len(each) - 1, min(sample, len(each))).round().astype(int)] for each in spans]
