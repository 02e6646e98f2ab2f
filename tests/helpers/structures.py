"""A tiny random model of each structure that attention comes in, and its attention by loops over pairs.

The queries and keys are the model's own from before the rotation: its rotary modules are given position 0 everywhere.
"""

from dataclasses import replace
from functools import cache

import cases
import numpy as np
import oracle
import tiny
import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

import mesa
from mesa.engine import structure

TRAINED = 24
NAMES = ("rerope", "origin", "self-extend", "stair", "mesa", "lm-infinite", "streaming-llm", "dynamic-ntk")
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
    "the first layer does not rotate": ("smollm3", {"no_rope_layers": [0, 1]}),
    "no layer rotates": ("smollm3", {"no_rope_layers": [0, 0]}),
    "sliding, and full without rotary": ("cohere2", SLIDING),
    "MLA": ("deepseek_v3", MLA),
    "MLA, complex": ("deepseek_v2", MLA),
    "a rotary module for each kind": ("olmo3", SLIDING),
    "two rotary bases, in rows shorter than the window": (
        "gemma3_text",
        {**SLIDING, "sliding_window": 64, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        }},
    ),
    "interleaved, half of a head": ("glm4", ROPE | {"partial_rotary_factor": 0.5}),
    "chunks": (
        "llama4_text",
        {"layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0], "attention_chunk_size": 9,
         "intermediate_size_mlp": 48, "moe_layers": [], "num_local_experts": 2},
    ),
    "factors by place, without rotary": (
        "beam",
        {**SLIDING, "mlp_layer_types": ["dense", "dense"], "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": None,
        }},
    ),
    "linear layers": ("qwen3_5_text", LINEAR),
    "norms after the rotation": ("hunyuan_v1_dense", {}),
    "the other way round": ("nanochat", {}),
    "factors by position": ("ministral3", {}),
    "beside a recurrence": (
        "falcon_h1",
        {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    ),
    "rotary that computes its frequencies again": (
        "phimoe",
        {"rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4,
            "factor": 4.0, "original_max_position_embeddings": 33, "short_mscale": 1.1, "long_mscale": 1.1,
        }, "num_local_experts": 2},
    ),
    "a scale of its own": ("granite", {"attention_multiplier": 0.2}),
}  # fmt: skip
"""Model type and what its config has besides SIZES."""


def build(name):
    kind, options = STRUCTURES[name]
    return built(kind, {**SIZES, **options})


def built(kind, options):
    torch.manual_seed(0)
    stock = {"attn_implementation": "eager"} if "attn_logit_softcapping" in options else {}  # 5.20's sdpa has no caps
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options), **stock).eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.3)
            elif "norm" in path:
                weight += 0.5 * torch.rand_like(weight)
            elif "sinks" in path:
                weight.copy_(torch.linspace(-1, 2, weight.numel()))
    return model


LENGTH, PADDING, DECODED = 36, 5, 3
"""Tokens of a row, those of the first row that are padding, and those that come one by one."""


UNCACHED = ("moshi", "recurrent_gemma", "zamba2")
"""RecurrentGemma holds its cache itself, Moshi's drops tokens that its layers see, Zamba2 decodes otherwise by 1e-2."""


def padded():
    """Token ids of two rows, and the mask in which the first tokens of the first one are padding."""
    return tiny.padded(PADDING, 0, length=LENGTH)


def run(model, ids, mask):
    """Logits (token, vocabulary) of all tokens that are not padding: of a prompt, and of those decoded after it."""
    if model.config.model_type in UNCACHED:
        return model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits[mask.bool()]
    return tiny.in_pieces(model, ids, *range(LENGTH - DECODED, LENGTH), mask=mask, placed=True)[mask.bool()]


def everywhere(model, method):
    """The method in all layers that it can change, also where a window holds no distance of M."""
    if not structure.windows(model) or method.name == "origin":
        return method
    return replace(method, layers=structure.acting_layers(model, method, 0) or None)


@torch.no_grad()
def held_to_pairs(model, name, absolute=False, **options):
    """A padded batch under a method, decoded with a cache, by both executors, held to pairs; gives these logits.

    absolute: a distance does not say a score; the positions of a pair are then the plan's. Logits of each row alone.
    """
    method, sizes = everywhere(model, cases.method(name, **options)), cases.CASES[name]
    (ids, mask), wanted = padded(), []
    padding_of = mask.logical_not().sum(1).tolist()
    if model.config.model_type == "recurrent_gemma":  # whose recurrence takes padding for text
        mask, padding_of = torch.ones_like(mask), [0, 0]
    dynamic = name == "dynamic-ntk"  # the base follows the tokens so far: they are stated
    for row, padding in zip(ids, padding_of, strict=True):
        length = LENGTH - padding
        prompt = length if dynamic or model.config.model_type in UNCACHED else length - DECODED
        given = {"trained": TRAINED, "prompt": prompt, **sizes}
        plan_of = cache(lambda tokens, prompt=prompt: method.plan(tokens, prompt))

        def at(t, i, given=given, prompt=prompt, plan_of=plan_of):
            distance = oracle.relative(name, t, i, **given)
            if distance is None or not absolute:
                return None if distance is None else (distance, 0)
            regions = plan_of(max(prompt, t + 1)).regions
            (region,) = (region for region in regions if region.contains(np.array(t), np.array(i)))
            assert region.query_position(t) - region.key_position(i) == distance
            return region.query_position(t), region.key_position(i)

        def factor(t, given=given):
            return oracle.query_scale(name, t, **given) if getattr(method, "log_n", False) else 1.0

        growth = method.factor * length / TRAINED - (method.factor - 1) if dynamic else 1.0
        wanted.append(by_pairs(model, row[None, padding:], at, factor, growth)[0])
    wanted = torch.cat(wanted)
    allowed = 1e-4 * float(wanted.abs().max())
    for executor in ("dense", "fused"):
        with mesa.applied(model, method, executor=executor, prompt_length=LENGTH if dynamic else None):
            got = run(model, ids, mask)
        message = f"{name}, {executor}: off by {float((got - wanted).abs().max()):.1e} of {allowed:.1e}"
        assert float((got - wanted).abs().max()) <= allowed, message
    return wanted


@torch.no_grad()
def by_pairs(model, ids, positions, factor=lambda t: 1.0, growth=1.0):
    """The model's logits with attention pair by pair, by `positions(t, i)` of its query and key (None: masked).

    Each row of a batch has all tokens at one position, so that a row holds the queries and keys that the model itself
    turns by it. All rows go on with what the pairs give. factor: on a query's scores. growth: of the rotary base, as
    in Dynamic-NTK.
    """
    tokens = ids.shape[1]
    pairs = [[(i, positions(t, i)) for i in range(t + 1)] for t in range(tokens)]
    places = sorted({place for row in pairs for _, at in row if at is not None for place in at})
    row_of = {place: row for row, place in enumerate(places)}
    rows = torch.tensor(places)[:, None].expand(-1, tokens)

    def attention(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **kwargs):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        query, keys, values = (states.double().numpy() for states in (query, key, value[0]))
        seen = attention_mask[0, 0].numpy()
        output = np.zeros((tokens, query.shape[1], values.shape[-1]))
        for head in range(query.shape[1]):
            its = head // (query.shape[1] // keys.shape[1])
            for t in range(tokens):
                seen_too = [(i, row_of[at[0]], row_of[at[1]]) for i, at in pairs[t] if at is not None and seen[t, i]]
                i, q, k = np.array(seen_too).T
                scores = factor(t) * scale * (query[q, head, t] * keys[k, its, i]).sum(-1)
                if softcap is not None:
                    scores = softcap * np.tanh(scores / softcap)
                sink = np.exp(-np.inf if s_aux is None else float(s_aux[head]) - scores.max())
                weights = np.exp(scores - scores.max())
                output[t, head] = weights @ values[its, i] / (weights.sum() + sink)
        return torch.from_numpy(output).float().expand(len(places), -1, -1, -1), None

    def placed(module, args, kwargs):
        given = dict(zip(("x", "position_ids", "layer_type"), args, strict=False)) | kwargs
        return (), given | {"position_ids": rows if given["position_ids"].dim() == 2 else rows.expand(3, -1, -1)}

    rotary = [module for module in model.modules() if any("inv_freq" in name for name in vars(module)["_buffers"])]
    hooks = [module.register_forward_pre_hook(placed, with_kwargs=True) for module in rotary]
    buffers = {id(buffer): buffer for module in rotary for buffer in vars(module)["_buffers"].values()}
    frequencies = [(buffer, buffer.clone()) for buffer in buffers.values()]
    again = {module: module.rope_init_fn for module in rotary if type(module).__name__ == "PhimoeRotaryEmbedding"}
    before = model.config._attn_implementation
    AttentionInterface.register("by_pairs", attention)
    masks = AttentionMaskInterface._global_mapping["sdpa"]
    AttentionMaskInterface.register("by_pairs", lambda **given: masks(**given | {"allow_is_causal_skip": False}))
    try:
        for buffer, kept in frequencies:
            buffer.copy_(_grown(kept, growth))
        for module, by_config in again.items():
            module.rope_init_fn = lambda config, ask=by_config: (_grown(ask(config)[0], growth), ask(config)[1])
        model.config._attn_implementation = "by_pairs"
        return model(ids.expand(len(places), -1), use_cache=False).logits[:1]
    finally:
        model.config._attn_implementation = before
        for buffer, kept in frequencies:
            buffer.copy_(kept)
        for module, by_config in again.items():
            module.rope_init_fn = by_config
        for hook in hooks:
            hook.remove()


def _grown(frequencies, growth):
    """Inverse frequencies as of a base that is growth^(d / (d - 2)) times as large."""
    dims = 2 * len(frequencies)
    return (frequencies.double() * growth ** (-torch.arange(0, dims, 2).double() / max(1, dims - 2))).float()
