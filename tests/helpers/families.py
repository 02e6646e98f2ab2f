"""A tiny random model of every supported family, for tests."""

from copy import deepcopy
from functools import cache

import tiny
import torch
from transformers import AutoConfig, AutoModelForCausalLM

# fmt: off
SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": tiny.TRAINED, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 1,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
SLIDING = {**GROUPED, "sliding_window": 27}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
HALF = {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}
LONG_ROPE = {
    "max_position_embeddings": 4 * tiny.TRAINED,
    "original_max_position_embeddings": tiny.TRAINED,
    "rope_parameters": {
        **HALF["rope_parameters"], "rope_type": "longrope", "short_factor": [1.0, 1.1], "long_factor": [2.0, 3.0],
        "original_max_position_embeddings": tiny.TRAINED, "factor": 4.0,
    },
}
UNSCALED = {
    **SLIDING, "head_dim": 8, "query_pre_attn_scalar": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {"sliding_attention": {**ROPE, "rope_theta": 1e2}, "full_attention": ROPE},
}
GEMMA3 = {**UNSCALED, "rope_parameters": {
    **UNSCALED["rope_parameters"], "full_attention": {**ROPE, "rope_type": "linear", "factor": 2.0},
}}
GEMMA4 = {
    **SLIDING, "head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 97,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {**ROPE, "rope_theta": 1e2},
        "full_attention": {**HALF["rope_parameters"], "rope_type": "proportional"},
    },
}
SHARED = {
    **GEMMA4, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "attention_k_eq_v": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "num_global_key_value_heads": 1,
    "use_bidirectional_attention": "vision",
}
MOE = {"head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [0]}
MPT = {"d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 128, "expansion_ratio": 2, "use_cache": False}
TOKENS = {name: SIZES[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
# fmt: on

FAMILIES = {
    "llama": {},
    "mistral": {**GROUPED, "sliding_window": None},
    "mistral sliding": SLIDING,
    "qwen2": GROUPED,
    "qwen2 sliding": {**SLIDING, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": {**GROUPED, "head_dim": 8},
    "phi3": {**GROUPED, "rope_parameters": ROPE},
    "phi3 longrope": {**GROUPED, **LONG_ROPE},
    "gpt_neox": {**SIZES, **HALF},
    "gemma": {**GROUPED, "head_dim": 8},
    "gemma3_text": GEMMA3,
    "gemma3_text unscaled": UNSCALED,
    "gemma4_text": GEMMA4,
    "gemma4_text shared": SHARED,
    "phi": {**GROUPED, **HALF},
    "phi norms": {**GROUPED, **HALF, "qk_layernorm": True},
    "stablelm": {**GROUPED, **HALF},
    "stablelm parallel": {**GROUPED, **HALF, "use_parallel_residual": True, "qk_layernorm": True},
    "olmo2": GROUPED,
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "mixtral sliding": {**SLIDING, "num_local_experts": 4},
    "qwen3_moe": {**GROUPED, **MOE},
    "mpt": {**TOKENS, **MPT},
    "bloom": {**TOKENS, "hidden_size": 32, "n_layer": 3, "n_head": 4},
}
"""Configs by name; the model type is the name's first word."""
DYNAMIC = {**GROUPED, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}
_LOUD = ("q_proj.weight", "k_proj.weight", "qkv_proj.weight", "query_key_value.weight", "Wqkv.weight")


def build(family: str, **changes):
    """A fresh model with large queries and keys, so that positions matter; `changes` go into its config."""
    if family == "llama" and not changes:
        return tiny.model()
    torch.manual_seed(0)
    config = AutoConfig.for_model(family.split()[0], **deepcopy({**FAMILIES[family], **changes}))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(_LOUD):
                weight *= 10
    return model


shared = cache(build)
"""For tests that leave the model as it was."""


def dynamic_llama():
    """A Llama whose frequencies follow the length."""
    return build("llama", **DYNAMIC)
