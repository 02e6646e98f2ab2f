"""Where a model keeps its decoder layers."""

from __future__ import annotations

from typing import Any

from torch import nn


def layers_of(model: Any) -> nn.ModuleList:
    """The model's decoder layers; ValueError where its decoder has no list of them."""
    count = model.config.num_hidden_layers
    for module in model.get_decoder().children():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"a {model.config.model_type} decoder has no list of its {count} layers")
