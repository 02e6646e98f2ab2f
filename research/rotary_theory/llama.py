"""The rotary constructions as Llamas without norms, angles in float64: methods are attached as to any Llama."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from research.rotary_theory.rotary_model import FREE, Turning, inverse_frequencies
from research.theorems.pretrained import filled, hidden_units, matrices, read_out
from theory.model import Construction
from theory.parts import CONST


class ConstructedLlamaConfig(LlamaConfig):
    """Llama's config under a model type of its own."""

    model_type = "constructed_llama"


class ConstructedRotaryEmbedding(LlamaRotaryEmbedding):
    """Llama's rotary embedding whose angles are float64 (Llama's are float32, which moves scores by 1e-6)."""

    angle_dtype = torch.float64

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
    unnormed = True

    def __init__(self, config: ConstructedLlamaConfig) -> None:
        super().__init__(config)
        decoder: Any = self.model
        for layer in decoder.layers:
            layer.input_layernorm, layer.post_attention_layernorm = nn.Identity(), nn.Identity()
        decoder.norm = nn.Identity()
        decoder.rotary_emb = ConstructedRotaryEmbedding(config)
        self.post_init()


AutoConfig.register("constructed_llama", ConstructedLlamaConfig)
AutoModelForCausalLM.register(ConstructedLlamaConfig, ConstructedLlamaForCausalLM)


def as_llama(construction: Construction, M: int) -> PreTrainedModel:
    """As `research.theorems.pretrained.pretrained`, of a rotary construction.

    `save` there stores it; `mesa.load` reads it where this module is imported, with dtype="float64".
    """
    blocks, encoding, units = list(construction.blocks), construction.encoding, hidden_units(construction)
    assert isinstance(encoding, Turning)
    heads, head, width = construction.get_buffer("blocks.0.attn.W_Q").shape
    sizes: dict[str, Any] = {"head_dim": head, "intermediate_size": units, "vocab_size": construction.W_E.shape[1]}
    sizes |= {"num_hidden_layers": len(blocks), "num_attention_heads": heads, "num_key_value_heads": heads}
    sizes |= {"hidden_size": width, "hidden_act": "relu", "bos_token_id": 0, "eos_token_id": None}
    sizes |= {"tie_word_embeddings": False, "max_position_embeddings": M, "dtype": construction.W_E.dtype}
    config = ConstructedLlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": encoding.base}, **sizes)
    weights = {"model.embed_tokens.weight": construction.W_E.T, "lm_head.weight": read_out(construction, FREE)}
    for layer, block in enumerate(blocks):
        q, k, v, output, W_1, W_2 = matrices(block, units)
        const = torch.zeros_like(W_1.T)
        const[:, CONST] = 1  # the gate is the MLP; its other factor is CONST
        named = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": output}
        named |= {"mlp.gate_proj": W_1.T, "mlp.up_proj": const, "mlp.down_proj": W_2}
        weights |= {f"model.layers.{layer}.{name}.weight": matrix for name, matrix in named.items()}
    return filled(ConstructedLlamaForCausalLM(config), weights)
