"""The model classes of the theorems' transformers; `research/theorems/pretrained.py` fills them.

MPT without norms, ReLU for GELU, one slope of ALiBi, in any precision. The classes are ours, so a saved model is loaded
as any other, without remote code.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, MptForCausalLM
from transformers.models.mpt.modeling_mpt import MptAttention, MptMLP

from mesa.constructed_config import ConstructedConfig
from mesa.outside import cache_in


class ConstructedAttention(MptAttention):
    """Attention by q.k - slope * (t - i), unscaled, whose softmax is as precise as its states (MPT's is float32)."""

    def __init__(self, config: ConstructedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        inner = config.n_heads * config.head_dim
        self.head_dim, self.softmax_scale = config.head_dim, 1.0
        self.Wqkv = nn.Linear(config.d_model, 3 * inner, bias=False)
        self.out_proj = nn.Linear(inner, config.d_model, bias=False)
        self.slope = config.slope

    @property
    def slopes(self) -> Tensor:
        """ALiBi's slopes (head,), float64."""
        return torch.full((self.n_heads,), self.slope, dtype=torch.float64)

    def forward(
        self,
        hidden_states: Tensor,
        position_bias: Tensor | None = None,
        *args: Any,  # the cache, as which transformers passes it under one of two names, and the mask
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Output (batch, position, model size) and weights (batch, head, query, key)."""
        batch, length = hidden_states.shape[:2]
        mixed = self.Wqkv(hidden_states)
        query, key, value = (part.view(batch, length, self.n_heads, -1).transpose(1, 2) for part in mixed.chunk(3, 2))
        if (cache := cache_in(kwargs)) is not None:
            key, value = cache.update(key, value, self.layer_idx)
        index = torch.arange(1 - key.shape[2], 1, device=key.device)
        scores = query @ key.transpose(-1, -2) + (self.slope * index).to(key.dtype)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        return self.out_proj((weights @ value).transpose(1, 2).reshape(batch, length, -1)), weights


class ConstructedMLP(MptMLP):
    """relu between two matrices, added to the residual stream."""

    def __init__(self, config: ConstructedConfig) -> None:
        super().__init__(config)
        self.up_proj = nn.Linear(config.d_model, config.intermediate_size, bias=False)
        self.act = nn.ReLU()
        self.down_proj = nn.Linear(config.intermediate_size, config.d_model, bias=False)


class ConstructedForCausalLM(MptForCausalLM):
    """A transformer of the theorems; methods are attached to it as to any model with ALiBi."""

    config_class = ConstructedConfig
    unnormed = True
    """Norms are identities: `mesa.bridge` leaves them alone."""

    def __init__(self, config: ConstructedConfig) -> None:
        super().__init__(config)
        decoder: Any = self.transformer
        for layer, block in enumerate(decoder.blocks):
            block.norm_1, block.norm_2 = nn.Identity(), nn.Identity()
            block.attn, block.ffn = ConstructedAttention(config, layer), ConstructedMLP(config)
        decoder.norm_f = nn.Identity()
        self.post_init()


AutoModelForCausalLM.register(ConstructedConfig, ConstructedForCausalLM)
