"""Whether a checkpoint gave a model all its weights, none too many, and numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_BUFFERS = ("rotary_emb.inv_freq", "masked_bias", "attention.bias")
"""Ends of names that older checkpoints hold and that models compute themselves."""


def check_whole(name: str, info: Mapping[str, Any]) -> None:
    """Raises ValueError for weights that transformers drew at random, or left aside; `info`: its loading info."""
    unexpected = [key for key in info["unexpected_keys"] if not key.endswith(_BUFFERS)]
    mismatched = [key[0] if isinstance(key, tuple) else key for key in info.get("mismatched_keys") or ()]
    for found, said in (
        (info["missing_keys"], "lacks {} weights of its model"),
        (mismatched, "has {} weights of another shape"),
        (unexpected, "has {} weights that its model does not"),
    ):
        if found:
            what = said.format(len(found))
            raise ValueError(f"model {name!r} {what}, e.g. {min(found)}; its config.json and weights do not fit")


def check_finite(name: str, model: torch.nn.Module) -> None:
    """Raises ValueError naming the first tensor of a model that holds a NaN or an infinity."""
    for key, values in model.state_dict().items():
        if values.is_meta or not values.is_floating_point():
            continue
        if not values.sum(dtype=torch.float32).isfinite() and not (finite := values.isfinite()).all():
            count = finite.numel() - int(finite.sum())
            raise ValueError(
                f"model {name!r}: {count} of {finite.numel()} numbers of {key} are not finite; its weights are "
                "damaged, get them again"
            )
