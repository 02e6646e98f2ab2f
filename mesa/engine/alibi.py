"""ALiBi's families, whose attention modules add the bias themselves: forwards of ours, and the slopes."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mesa.decoder import replaced
from mesa.errors import Refused
from mesa.outside import cache_in


def forwards_replaced(attachment: Any) -> AbstractContextManager[None]:
    """Every ALiBi attention module calls a `plug.Attachment` for as long as this lasts."""
    modules = alibi_modules(attachment.decoder)
    return replaced(
        *((part, _forward_attribute(part), partial(forward, attachment, part)) for part, forward in modules)
    )


def alibi_modules(decoder: nn.Module) -> list[tuple[Any, Callable[..., Any]]]:
    """The decoder's ALiBi attention modules and our forwards; Refused where one has a forward that is not known."""
    modules = list[tuple[Any, Callable[..., Any]]]()
    for module in decoder.modules():
        known = next((base for base in type(module).__mro__ if base.__name__ in _FORWARDS), None)
        if known is None:
            continue
        if type(module).forward is not known.forward or (
            "forward" in module.__dict__ and _forward_attribute(module) == "forward"
        ):
            raise Refused(
                f"a {type(module).__name__} has a forward of its own, which a method would replace; remove it "
                "(`del module.forward` where it was set on the module), or put what it does into hooks"
            )
        modules.append((module, _FORWARDS[known.__name__]))
    if not modules:
        raise Refused(f"the model has none of the attention modules {', '.join(_FORWARDS)}, which are needed")
    return modules


def _forward_attribute(module: nn.Module) -> str:
    """The attribute that holds what the module computes; accelerate's hooks stand before it."""
    return "_old_forward" if hasattr(module, "_hf_hook") else "forward"


def slopes(decoder: Any) -> Tensor:
    """ALiBi's slopes (head,) as the model was trained with; warns where the model itself computes others."""
    module, forward = alibi_modules(decoder)[0]
    if type(module).__name__ == "ConstructedAttention":
        return module.slopes
    if forward is _bloom_forward:
        from transformers.models.bloom.modeling_bloom import build_alibi_tensor

        return build_alibi_tensor(torch.ones(1, 2), module.num_heads, torch.float32)[:, 0, 1]  # of keys 0 and 1
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    stated = decoder.config.attn_config.alibi_bias_max
    slopes = -build_mpt_alibi_tensor(module.n_heads, 2, stated)[:, 0, 0].float()
    used = -decoder.build_mpt_alibi_tensor(module.n_heads, 2)[:, 0, 0].float().cpu()
    if not torch.equal(used, slopes):
        warnings.warn(
            f"the config states alibi_bias_max={stated}, which methods follow, Origin included, and transformers' own "
            "MPT does not: without a method this model is not what was trained",
            stacklevel=2,
        )
    return slopes


def _mpt_forward(
    attachment: Any,
    module: Any,
    hidden_states: Tensor,
    attention_mask: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """`MptAttention.forward` with our attention in the middle."""
    batch, length = hidden_states.shape[:2]
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    query, key, value = (part.view(batch, length, module.n_heads, -1).transpose(1, 2) for part in mixed.chunk(3, 2))
    if (cache := cache_in(kwargs)) is not None:
        key, value = cache.update(key, value, module.layer_idx)
    dropout, hooks = module.attn_dropout_p if module.training else 0.0, kwargs.get("attention_hooks")
    output, weights = attachment.attention(
        module, query, key, value, attention_mask, module.softmax_scale, dropout, hooks
    )
    return module.out_proj(output.reshape(batch, length, -1)), weights


def _bloom_forward(
    attachment: Any,
    module: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor | None = None,
    attention_mask: Any = None,
    layer_past: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """`BloomAttention.forward` with our attention in the middle."""
    query, key, value = module._reshape(module.query_key_value(hidden_states))
    if layer_past is not None:
        key, value = layer_past.update(key, value, module.layer_idx)
    dropout, hooks = module.attention_dropout.p if module.training else 0.0, kwargs.get("attention_hooks")
    output, weights = attachment.attention(
        module, query, key, value, attention_mask, module.inv_norm_factor, dropout, hooks
    )
    mixed = torch.nn.functional.dropout(module.dense(output.flatten(2)), module.hidden_dropout, module.training)
    return residual + mixed, weights


_FORWARDS = {"MptAttention": _mpt_forward, "ConstructedAttention": _mpt_forward, "BloomAttention": _bloom_forward}
