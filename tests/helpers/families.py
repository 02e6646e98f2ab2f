"""Tiny random models of families other than Llama, for tests of what is special about them."""

import tiny
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MptConfig,
    MptForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
TOKENS = {"vocab_size": 97, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 1}


def _loud(model, *names: str):
    """The model with larger queries and keys, so that positions matter."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(names):
                weight *= 10
    return model.eval()


def bloom(**changes) -> BloomForCausalLM:
    torch.manual_seed(0)
    config = BloomConfig(hidden_size=32, n_layer=3, n_head=4, **{**TOKENS, **changes})
    return _loud(BloomForCausalLM(config), "query_key_value.weight")


def mpt(use_cache: bool = False, **attention) -> MptForCausalLM:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 128, "expansion_ratio": 2}
    config = MptConfig(**sizes, **TOKENS, use_cache=use_cache, attn_config=attention)
    return _loud(MptForCausalLM(config), "Wqkv.weight")


def dynamic_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    config = LlamaConfig(**SIZES, **TOKENS, max_position_embeddings=tiny.TRAINED, rope_parameters=rope)
    return _loud(LlamaForCausalLM(config), "q_proj.weight", "k_proj.weight")


def long_rope() -> Phi3ForCausalLM:
    """Phi-3 with other frequencies for more than `tiny.TRAINED` tokens."""
    torch.manual_seed(0)
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "partial_rotary_factor": 0.5}
    rope |= {"short_factor": [1.0, 1.1], "long_factor": [2.0, 3.0], "original_max_position_embeddings": tiny.TRAINED}
    lengths = {"max_position_embeddings": 4 * tiny.TRAINED, "original_max_position_embeddings": tiny.TRAINED}
    config = Phi3Config(**SIZES, **TOKENS, **lengths, num_key_value_heads=2, rope_parameters=rope)
    return _loud(Phi3ForCausalLM(config), "qkv_proj.weight")


MODELS = {"llama": tiny.model, "bloom": bloom, "mpt": mpt, "dynamic": dynamic_llama, "longrope": long_rope}
