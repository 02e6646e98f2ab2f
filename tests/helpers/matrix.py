"""Families of transformers as tiny random models of generic sizes, for tests and for the lists in docs/models.md."""

from copy import deepcopy

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

# fmt: off
SIZES = {
    "bos_token_id": 1, "eos_token_id": 2, "first_k_dense_replace": 1, "head_dim": 16, "hidden_size": 64,
    "intermediate_size": 96, "kv_lora_rank": 16, "max_position_embeddings": 64, "moe_intermediate_size": 32,
    "moe_k": 2, "moe_num_experts": 4, "n_group": 1, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_attention_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "num_local_experts": 4, "pad_token_id": 0, "q_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "shared_expert_intermediate_size": 32, "sliding_window": 17, "topk_group": 1,
    "v_head_dim": 16, "vocab_size": 160,
}
TEXT = """
apertus1p5 aria cohere_compass dots3_note gemma3 gemma3n gemma4 gemma4_unified inkling inkling2 inkling2_loop llama4
minimax_m3_vl qwen3_5 qwen3_5_moe qwen4_exp
""".split()
TYPES = {family: f"{family}_text" for family in TEXT}
TYPES |= {"emu3": "emu3_text_model", "mllama": "mllama_text_model", "modernbert_decoder": "modernbert-decoder"}
"""Model types that are not called like their folder."""

CLASSES = {
    "csm": transformers.CsmForConditionalGeneration,
    "emu3": transformers.Emu3ForCausalLM,
    "mistral4": transformers.Mistral4ForCausalLM,
    "mllama": transformers.MllamaForCausalLM,
}
"""Classes that AutoModelForCausalLM does not give for these types."""

LATENT = """
axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa hy_v4 longcat_flash minicpm3 sarvam_mla youtu
"""
"""Families of multi-head latent attention."""

ROPE = {"rope_type": "default", "rope_theta": 1e4}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 17}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
DELTA = {
    **LINEAR, "linear_key_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
}
MAMBA = {"mamba_d_head": 32, "mamba_d_state": 8, "mamba_n_heads": 4}
MORE = {
    **{family: {"head_dim": 8, "num_key_value_heads": 4} for family in LATENT.split()},
    "bailing_hybrid": {
        **LINEAR, "num_expert_group": 1, "num_experts_per_token": 2, "num_key_value_heads": 4, "topk_group": 1,
    },
    "bamba": {**MAMBA, "attn_layer_indices": [1], "mamba_chunk_size": 8, "mamba_n_groups": 1},
    "bloom": {"n_head": 4, "n_layer": 2, "hidden_size": 64},
    "codegen": {"rotary_dim": 8},
    "cohere_compass": {**SLIDING, "rope_parameters": {
        "full_attention": ROPE, "sliding_attention": {**ROPE, "rope_theta": 1e3},
    }},
    "csm": {
        "codec_config": {
            "codebook_dim": 8, "codebook_size": 16, "head_dim": 8, "hidden_size": 16, "intermediate_size": 16,
            "model_type": "mimi", "num_attention_heads": 2, "num_filters": 4, "num_hidden_layers": 1,
            "num_quantizers": 4, "upsample_groups": 16, "vector_quantization_hidden_dimension": 8,
        },
        "depth_decoder_config": {
            "backbone_hidden_size": 64, "head_dim": 8, "hidden_size": 32, "intermediate_size": 48,
            "num_attention_heads": 4, "num_codebooks": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
            "vocab_size": 160,
        },
        "num_codebooks": 4,
    },
    "dbrx": {
        "attn_config": {"clip_qkv": 8.0, "kv_n_heads": 2, "rope_theta": 10000.0}, "d_model": 64, "n_heads": 4,
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2}, "n_layers": 2,
    },
    "dots3_note": {"num_key_value_heads": 4},
    "falcon_h1": {**MAMBA, "mamba_chunk_size": 8, "mamba_d_head": 16, "mamba_d_ssm": 64},
    "gemma3": SLIDING,
    "gemma3n": {
        "activation_sparsity_pattern": [0.0, 0.0], "hidden_size_per_layer_input": 4, "intermediate_size": [96, 96],
        "laurel_rank": 8, "layer_types": SLIDING["layer_types"], "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 160,
    },
    "gemma4": {
        **SLIDING, "global_head_dim": 32, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 160,
    },
    "gemma4_unified": {**SLIDING, "global_head_dim": 32},
    "gpt_oss": {**SLIDING, "rope_parameters": ROPE},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {**LINEAR, **MAMBA, "position_embedding_type": "rope"},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_state": 8, "use_mamba_kernels": False},
    "kimi_linear": {**LINEAR, "head_dim": 8, "num_key_value_heads": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama4": {
        "attention_chunk_size": 16, "intermediate_size_mlp": 96, "layer_types": ["chunked_attention", "full_attention"],
        "moe_layers": [], "no_rope_layers": [1, 0],
    },
    "mistral4": {"head_dim": 8, "num_key_value_heads": 4, "rope_parameters": {
        **ROPE, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64, "partial_rotary_factor": 1.0,
    }},
    "mllama": {"cross_attention_layers": []},
    "modernbert_decoder": {
        "cls_token_id": 1, "layer_types": SLIDING["layer_types"], "local_attention": 34, "sep_token_id": 2,
    },
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2},
    "nemotron_h": {
        "layers_block_type": LINEAR["layer_types"], "mamba_head_dim": 16, "mamba_num_heads": 4, "ssm_state_size": 8,
        "n_groups": 1, "chunk_size": 8,
    },
    "phi4_multimodal": {
        "audio_config": {
            "audio_token_id": 6, "depthwise_separable_out_channel": 16, "ext_pw_out_channel": 16, "hidden_size": 16,
            "input_size": 16, "intermediate_size": 16, "nemo_conv_channels": 16, "num_attention_heads": 2,
            "num_blocks": 1,
        },
        "vision_config": {
            "crop_size": 28, "hidden_size": 16, "image_size": 28, "image_token_id": 5, "intermediate_size": 16,
            "num_attention_heads": 2, "num_hidden_layers": 1, "patch_size": 14,
        },
    },
    "qwen3_5": DELTA,
    "qwen3_5_moe": DELTA,
    "qwen3_next": DELTA,
    "qwen4_exp": {
        **DELTA, "hc_lowrank": 8, "indexer_budget": 8, "indexer_compress_ratio": 2, "indexer_head_dim": 16,
        "indexer_kv_heads": 1, "indexer_n_heads": 2, "layer_types": ["linear_attention", "indexed_attention"],
        "ngram_vocab_size_base": 100,
    },
    "recurrent_gemma": {"attention_window_size": 64, "block_types": ["recurrent", "attention"], "lru_width": 64},
    "zamba2": {
        "chunk_size": 8, "hybrid_layer_ids": [1, 3], "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "mamba_d_state": 8, "n_mamba_heads": 8, "num_hidden_layers": 4, "num_mem_blocks": 1, "use_mem_rope": True,
    },
    "zaya": {"layer_types": ["hybrid", "hybrid"], "num_experts_per_tok": 1},
}
"""What a family's config needs more."""
# fmt: on

WORKS = """
afmoe apertus apertus1p5 arcee aria axk1 bailing_hybrid bamba beam bitnet cohere cohere2 cohere2_moe cohere_compass cwm
dbrx deepseek_v2 deepseek_v3 diffllama dots1 emu3 ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe falcon_h1 flex_olmo
flint gemma gemma2 gemma3 gemma3n gemma4 gemma4_unified glm glm4 glm4_moe glm4_moe_lite gpt_neox gpt_oss granite
granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe
hy_v3 hyperclovax internlm3 iquestcoder jais2 jamba jetmoe kimi_linear kolibri1 laguna lara_mini lfm2 lfm2_moe lfm3
llama llama4 longcat_flash mellum mimo_v2_flash minicpm3 minimax minimax_m2 minimax_m3_vl ministral ministral3 mistral
mistral4 mixtral mllama modernbert_decoder moshi nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe
persimmon phi phi3 phi4_multimodal phimoe qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next recurrent_gemma
sarvam_mla sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu zamba2 zaya
""".split()
REFUSED = """
axk2 codegen csm deepseek_v32 deepseek_v4 doge dory dots3_note falcon glm_moe_dsa gpt_neox_japanese gptj hy_v4 inkling
inkling2 inkling2_loop qwen4_exp
""".split()
ALIBI = ("bloom", "mpt")
BRIDGED = """
afmoe apertus arcee bamba bitnet bloom cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone exaone4
falcon_h1 flex_olmo gemma gemma2 gemma3 gemma4 glm glm4 glm4_moe glm4_moe_lite gpt_neox gpt_oss granite granitemoe
granitemoehybrid hrm_text hunyuan_v1_dense internlm3 iquestcoder jais2 jamba jetmoe laguna lfm2 lfm2_moe llama llama4
minimax_m2 ministral3 mistral mixtral modernbert_decoder mpt nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid
olmoe phi phi3 qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next recurrent_gemma sarvam_mla sarvam_moe
seed_oss smollm3 stablelm starcoder2 vaultgemma youtu zamba2
""".split()
"""Those of them that TransformerLens has an adapter for."""

BRIDGED_ALONE = ("deepseek_v4", "falcon", "glm_moe_dsa", "gptj")
"""Those that no method can be attached to, and it has an adapter for; CodeGen's fails in transformers 5.24."""

UNTURNED = ("jamba", "kimi_linear", "nemotron_h")
"""No layer rotates, so that ReRoPE changes nothing."""

ABSOLUTE = ("hunyuan_v1_dense", "hunyuan_v1_moe")
"""Where a distance does not say a score, see tests/mesa/engine/test_structures.py."""


def build(family, times=1, **changes):
    """A family's model, with its layers so many times, and with changes to its config."""
    kind, more = TYPES.get(family, family), MORE.get(family, {})
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind)
    full = config.to_dict()
    given = {name: value for name, value in SIZES.items() if name in full or hasattr(config, name)}
    if kind == "falcon":  # its config computes it
        del given["head_dim"]
    if full.get("layer_types"):
        kinds = list(dict.fromkeys(full["layer_types"]))
        given["layer_types"] = (kinds * 2)[:2]
    given |= deepcopy(more) | changes  # whose parts configs change in place
    for name, value in given.items():
        if name == "num_hidden_layers" or (isinstance(value, list) and len(value) == SIZES["num_hidden_layers"]):
            given[name] = value * times
    config = AutoConfig.for_model(kind, **given)
    model_class = CLASSES.get(family)
    model = (model_class(config) if model_class else AutoModelForCausalLM.from_config(config)).float().eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
        elif weight.any():
            weight.data.mul_(torch.rand_like(weight) + 0.5)
        else:  # such as zaya's factors on keys, without which its attention sees no position
            weight.data.add_(torch.rand_like(weight))
    return model
