"""The logit lens: what the model would predict if it stopped after a layer."""

from __future__ import annotations

from collections.abc import Sequence
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
) -> xr.DataArray:
    """NLL (nats) of the true next token read from every layer, (prompt, layer, bucket): the mean over a bucket.

    Read: the model's final norm and unembedding of resid_post; after the last layer, the model's own prediction.
    ends: the buckets of predicted tokens, each from the end before (the first from token 1) up to its own, exclusive,
    as in the task nll-position. sample: of each bucket at most so many tokens, evenly spread; a layer's logits take
    as long as many layers where the vocabulary is large. Raises ValueError for buckets that a prompt does not fill, and
    what `run_hooked` raises.
    """
    model: Any = bridge.original_model
    buckets, depth = _buckets(ends, sample), model.config.num_hidden_layers
    chosen = list(range(depth) if layers is None else layers)
    if not chosen or not all(0 <= layer < depth for layer in chosen):
        raise ValueError(f"layers={chosen} are not all among the model's, 0-{depth - 1}")
    values = np.empty((len(prompts), len(chosen), len(buckets)))
    for row, ids in enumerate(prompts):
        if len(ids) < max(ends):
            raise ValueError(f"a prompt of {len(ids)} tokens does not fill the bucket that ends at {max(ends)}")
        hooks = _hooks(bridge, ids, chosen, buckets, values[row])
        run_hooked(bridge, ids, method, hooks, max(chosen) + 1, executor=executor)
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
        {"long_name": "NLL read from the layer", "units": "nats/token", "trained_length": method.trained_length},
    )


def _hooks(
    bridge: TransformerBridge,
    ids: Sequence[int],
    layers: Sequence[int],
    buckets: Sequence[np.ndarray],
    values: np.ndarray,
) -> list[Hooked]:
    """They fill `values` (layer, bucket)."""
    predicted = torch.from_numpy(np.concatenate(buckets))  # each from the token before
    targets = torch.tensor(list(ids))[predicted]
    bounds = np.cumsum([len(bucket) for bucket in buckets])[:-1]

    def look(tensor: Tensor, hook: Any, *, row: int) -> None:
        states = tensor[0][(predicted - 1).to(tensor.device)]
        parts = zip(states.split(SLICE), targets.split(SLICE), strict=True)
        losses = torch.cat([_nll(bridge.unembed(bridge.ln_final(part[None]))[0], right) for part, right in parts])
        values[row] = [part.mean() for part in np.split(losses.double().numpy(), bounds)]

    return [(HOOKS["resid_post"].format(layer=layer), partial(look, row=row)) for row, layer in enumerate(layers)]


def _nll(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.float(), targets.to(logits.device), reduction="none").cpu()


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
    return [span[np.linspace(0, len(span) - 1, min(sample, len(span))).round().astype(int)] for span in spans]
