"""A tiny random model of each structure that attention comes in, and its attention by loops over pairs.

The queries and keys are the model's own from before the rotation: its rotary modules are given position 0 everywhere.
"""

import math

import numpy as np
import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

TRAINED = 24
SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": TRAINED, "bos_token_id": 0,
    "eos_token_id": None, "pad_token_id": 1,
}  # fmt: skip
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "head_dim": 8, "first_k_dense_replace": 2,
}  # fmt: skip
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip

STRUCTURES = {
    "soft cap": ("gemma2", {**SLIDING, "attn_logit_softcapping": 2.0}),
    "sinks": ("gpt_oss", {**SLIDING, **ROPE, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "some layers do not rotate": ("smollm3", {"no_rope_layers": [1, 0]}),
    "no layer rotates": ("smollm3", {"no_rope_layers": [0, 0]}),
    "sliding, and full without rotary": ("cohere2", SLIDING),
    "MLA": ("deepseek_v3", MLA),
    "MLA, complex": ("deepseek_v2", MLA),
    "a rotary module for each kind": ("olmo3", SLIDING),
    "interleaved, half of a head": ("glm4", ROPE | {"partial_rotary_factor": 0.5}),
    "chunks": (
        "llama4_text",
        {"layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0], "attention_chunk_size": 9,
         "intermediate_size_mlp": 48, "moe_layers": [], "num_local_experts": 2},
    ),
    "linear layers": ("qwen3_5_text", LINEAR),
    "norms after the rotation": ("hunyuan_v1_dense", {}),
    "the other way round": ("nanochat", {}),
    "factors by position": ("ministral3", {}),
    "beside a recurrence": (
        "falcon_h1",
        {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    ),
    "a scale of its own": ("granite", {"attention_multiplier": 0.2}),
}  # fmt: skip
"""Model type and what its config has besides SIZES."""


def build(name):
    kind, options = STRUCTURES[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **options})).eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.3)
            elif "norm" in path:
                weight += 0.5 * torch.rand_like(weight)
            elif "sinks" in path:
                weight.copy_(torch.linspace(-1, 2, weight.numel()))
    return model


@torch.no_grad()
def by_pairs(model, ids, positions, factor=lambda t: 1.0):
    """The model's logits with attention pair by pair, by `positions(t, i)` of its query and key (None: masked).

    Each row of a batch has all tokens at one position, so that row r holds the queries and keys that the model itself
    turns by r. All rows go on with what the pairs give. factor: on a query's scores.
    """
    tokens = ids.shape[1]
    at = torch.arange(tokens)[:, None].expand(-1, tokens)

    def attention(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **kwargs):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        query, keys, values = (states.double().numpy() for states in (query, key, value[0]))
        seen = attention_mask[0, 0].numpy()
        output = np.zeros((tokens, query.shape[1], values.shape[-1]))
        for head in range(query.shape[1]):
            its = head // (query.shape[1] // keys.shape[1])
            for t in range(tokens):
                pairs = [(i, positions(t, i)) for i in range(t + 1) if seen[t, i]]
                pairs = [(i, *at) for i, at in pairs if at is not None]
                scores = [factor(t) * scale * (query[q, head, t] @ keys[k, its, i]) for i, q, k in pairs]
                if softcap is not None:
                    scores = [softcap * math.tanh(score / softcap) for score in scores]
                scores += [] if s_aux is None else [float(s_aux[head])]
                weights = np.exp(np.array(scores) - max(scores))
                weights /= weights.sum()
                output[t, head] = sum(weights[n] * values[its, i] for n, (i, *_) in enumerate(pairs))
        return torch.from_numpy(output).float().expand(tokens, -1, -1, -1), None

    def placed(module, args, kwargs):
        given = dict(zip(("x", "position_ids", "layer_type"), args, strict=False)) | kwargs
        return (), given | {"position_ids": at if given["position_ids"].dim() == 2 else at.expand(3, -1, -1)}

    rotary = [module for module in model.modules() if any("inv_freq" in name for name in vars(module)["_buffers"])]
    hooks = [module.register_forward_pre_hook(placed, with_kwargs=True) for module in rotary]
    before = model.config._attn_implementation
    AttentionInterface.register("by_pairs", attention)
    masks = AttentionMaskInterface._global_mapping["sdpa"]
    AttentionMaskInterface.register("by_pairs", lambda **given: masks(**given | {"allow_is_causal_skip": False}))
    try:
        model.config._attn_implementation = "by_pairs"
        return model(ids.expand(tokens, -1), use_cache=False).logits[:1]
    finally:
        model.config._attn_implementation = before
        for hook in hooks:
            hook.remove()
