"""The model class of the theorems' rotary transformers: Llama without norms, its rotary angles in float64.

`theory.build("rotary", ...)` fills it. All else is Llama's own: rotary embedding by its base, the scaled product, the
gated MLP (with ReLU, and a gate's other factor of 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from mesa.support import CONSTRUCTED_LLAMA


def inverse_frequencies(base: float, pairs: int) -> np.ndarray:
    """Rotary's angles a token, base^(-m / pairs) for m = 0 .. pairs - 1, float64."""
    return float(base) ** (-np.arange(pairs) / pairs)


class ConstructedLlamaConfig(LlamaConfig):
    """Llama's config under a model type of its own."""

    model_type = CONSTRUCTED_LLAMA


class ConstructedRotaryEmbedding(LlamaRotaryEmbedding):
    """Llama's rotary embedding whose angles are float64 (Llama's are float32, which moves scores by 1e-6)."""

    @staticmethod
    def compute_default_rope_parameters(config: Any, **kwargs: Any) -> tuple[Tensor, float]:
        """Angles a token (pair,), and no factor on cos and sin."""
        return torch.from_numpy(inverse_frequencies(config.rope_parameters["rope_theta"], config.head_dim // 2)), 1.0

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (batch, token, head dim) in the dtype of `x`."""
        angles = position_ids[..., None].double() * self.inv_freq.double().to(x.device)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class ConstructedLlamaForCausalLM(LlamaForCausalLM):
    """A rotary transformer of the theorems; methods are attached to it as to any Llama."""

    config_class = ConstructedLlamaConfig

    def __init__(self, config: ConstructedLlamaConfig) -> None:
        super().__init__(config)
        decoder: Any = self.model
        for layer in decoder.layers:
            layer.input_layernorm, layer.post_attention_layernorm = nn.Identity(), nn.Identity()
        decoder.norm = nn.Identity()
        decoder.rotary_emb = ConstructedRotaryEmbedding(config)
        self.post_init()


AutoConfig.register(CONSTRUCTED_LLAMA, ConstructedLlamaConfig)
AutoModelForCausalLM.register(ConstructedLlamaConfig, ConstructedLlamaForCausalLM)
