"""The public code of methods, on transformers 4.31: run by peers.py under an environment of its own."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

CHECKOUTS = {
    "mesa, reference": "Mesa-Extrapolation",
    "lm-infinite": "LM-Infinite",
    "rerope": "rerope",
    "leaky-rerope": "rerope",
    "self-extend": "LongLM/legacy_patch_before_4_38",
}
"""By configuration: the folder of the code, under that of all checkouts."""


def prefills(name: str, sizes: dict[str, Any], weights: Path, code: Path) -> dict[str, Callable[[Any], Any]]:
    """By 'stock' and 'own': what takes token ids and returns the last one's logits, on the same weights."""
    stock = built(sizes, weights)
    for layer in stock.model.layers:
        layer.self_attn.forward = MethodType(sdpa, layer.self_attn)
    stock.model._prepare_decoder_attention_mask = lambda *_: None
    runs = {"stock": partial(decoded, stock)}
    if name != "stock":
        sys.path.insert(0, str(code / CHECKOUTS[name]))
        runs["own"] = PREPARED[name](sizes, weights)
    return runs


def built(sizes: dict[str, Any], weights: Path) -> Any:
    """A Llama of these sizes with the saved weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**sizes["model"])).eval()
    own = {name: part for name, part in model.state_dict().items() if name.endswith("inv_freq")}
    model.load_state_dict(torch.load(weights) | own)
    return model


def decoded(model: Any, ids: Any) -> Any:
    """The last token's logits, with a cache kept as in generation."""
    return model.lm_head(model.model(ids, use_cache=True).last_hidden_state[:, -1])


def sdpa(self: Any, hidden_states: Any, position_ids: Any = None, **_: Any) -> Any:
    """Llama's attention by PyTorch's kernel, as later transformers have it (4.31 has the eager one only)."""
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    batch, length, _ = hidden_states.shape
    query, key, value = (
        project(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
        for project in (self.q_proj, self.k_proj, self.v_proj)
    )
    cos, sin = self.rotary_emb(value, seq_len=length)
    query, key = apply_rotary_pos_emb(query, key, cos, sin, position_ids)
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return self.o_proj(output.transpose(1, 2).reshape(batch, length, -1)), None, (key, value)


def _mesa(sizes: dict[str, Any], weights: Path) -> Callable[[Any], Any]:
    position_set = importlib.import_module("methods.mesa_extrapolation").position_set
    position_set.train_length, position_set.push_width = sizes["trained"], sizes["width"]
    position_set.first_chunk = position_set.first_chunk_cache = sizes["first"]
    position_set.last_context = sizes["last"]
    model = built(sizes, weights)

    def prefill(ids: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            return model(ids, use_cache=True).logits[:, -1]

    return prefill


def _lm_infinite(sizes: dict[str, Any], weights: Path) -> Callable[[Any], Any]:
    convert = importlib.import_module("models.llama").convert_llama_model
    model = convert(built(sizes, weights), sizes["trained"], sizes["first"])
    model.model._prepare_decoder_attention_mask = lambda *_: None  # as their own class has it
    return partial(decoded, model)


def _rerope(name: str, window: str, sizes: dict[str, Any], weights: Path) -> Callable[[Any], Any]:
    patch: Any = importlib.import_module(name)
    patch.training_length, patch.window = sizes["trained"], sizes[window]
    return partial(decoded, built(sizes, weights))


def _self_extend(sizes: dict[str, Any], weights: Path) -> Callable[[Any], Any]:
    patch, model = importlib.import_module("llama_self_extend_patch"), built(sizes, weights)
    groups = {"group_size_1": sizes["group"], "group_size_2": sizes["self-extend"]}
    for layer in model.model.layers:
        layer.self_attn.forward = MethodType(partial(patch.self_extend_forward, **groups), layer.self_attn)
    return partial(decoded, model)


PREPARED: dict[str, Callable[[dict[str, Any], Path], Callable[[Any], Any]]] = {
    "mesa, reference": _mesa,
    "lm-infinite": _lm_infinite,
    "rerope": partial(_rerope, "rerope_patch", "rerope"),
    "leaky-rerope": partial(_rerope, "leaky_rerope_patch", "rerope"),
    "self-extend": _self_extend,
}
