"""What Mesa takes of other packages that they do not promise: every private name, why, and where it was seen."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.cache_utils import Cache

from mesa.decoder import decoder_of
from mesa.errors import Refused

PRIVATE: dict[str, dict[str, str]] = {
    "transformers 5.20 to 5.24": {
        "AttentionInterface._global_mapping": "functions by name; none is taken out by a public call",
        "PreTrainedConfig._attn_implementation": "the attention function's name, also of a part's config",
        "PreTrainedConfig._name_or_path": "where a model came from",
        "configuration_utils:_commit_hash": "its revision",
        "GenerationMixin._get_logits_processor": "guidance by a negative prompt has a cache of its own",
        "models.bloom.modeling_bloom.BloomAttention._reshape": "the joint projection, head by head",
    },
    "transformers 5.23 to 5.24": {
        "models.gemma4.modeling_gemma4.Gemma4TextModel._maybe_slice_kv_shared_inputs": "leaves out prompt tokens",
    },
    "accelerate 1.10 to 1.15": {
        "hooks.add_hook_to_module:_hf_hook": "a module is moved, or its forward wrapped",
        "hooks.add_hook_to_module:_old_forward": "the forward inside",
    },
    "torch 2.12 to 2.15": {
        "Tensor._version": "whether weights were edited",
        "nn.Module._buffers": "inverse frequencies",
        "nn.Module._modules": "a submodule is put back where it was",
        "nn.Module._forward_hooks": "what is more than its weights",
        "nn.Module._forward_pre_hooks": "the same",
        "nn.Module._compiled_call_impl": "a compiled module",
        "_dynamo": "OptimizedModule, a compiled module's class",
        "_dynamo.eval_frame:_torchdynamo_orig_callable": "a compiled forward",
        "_dynamo.eval_frame:compile_wrapper": "a compiled function calls",
        "ops.aten._scaled_dot_product_flash_attention_for_cpu": "attention with its log-sum-exp",
    },
    "gguf 0.17 to 0.19": {
        "GGUFReader._get": "a number at a place in the file",
        "GGUFReader._get_field_parts": "a field of the header; arrays are left out, token by token they take a minute",
    },
    "tqdm 4.66 to 4.70": {
        "tqdm._decr_instances": "a closed bar frees its line, as its own close does",
    },
    "transformer_lens 4.3": {
        "factories.architecture_adapter_factory.ArchitectureAdapterFactory._adapters": "adapters by architecture",
        "model_bridge.TransformerBridge._generate_tokens": "the steps of its own loop",
        "model_bridge.TransformerBridge._gated_hook_reason": "why a hook does not fire",
        "model_bridge.generalized_components.AttentionBridge:_captured_pre_ln_residual": "each head's own input",
        "model_bridge.generalized_components.AttentionBridge._fork_and_norm_per_head": "the same",
        "model_bridge.generalized_components.AttentionBridge._compute_per_head_result": "each head's own result",
        "model_bridge.generalized_components.AttentionBridge._fire_post_hoc_hook": "weights are hooked as made",
        "model_bridge.generalized_components.position_embeddings_attention:_validate_submodule_declarations": "why",
        "model_bridge.generalized_components.base:_original_component": "the module that a bridge's holds",
    },
}
"""By package and the versions they were seen in: a name as it is reached, or after `:` as a module's source has it."""

CACHES = ("cache", "past_key_values")
"""What forwards call their cache: transformers from 5.24 on, and before."""


def cache_in(arguments: dict[str, Any]) -> Any:
    """The cache among a call's arguments or in an output, by either name; None where there is none."""
    given = (dict.get(arguments, name) for name in CACHES)  # an output's own `get` warns of the older name
    return next((cache for cache in given if cache is not None), None)


def check_cache_name(arguments: dict[str, Any], where: str) -> None:
    """Refused for a cache that comes under a name that is not known, which would be left out."""
    for name, value in arguments.items():
        if name not in CACHES and (isinstance(value, Cache) or hasattr(value, "get_seq_length")):
            raise Refused(
                f"{where} is passed a {type(value).__name__} as {name!r}, and methods know caches as "
                f"{' or '.join(map(repr, CACHES))}; without it every token would be a prompt of its own"
            )


def with_cache(model: Any, cache: Any) -> dict[str, Any]:
    """The keyword argument by which a model is passed its cache."""
    names = inspect.signature(decoder_of(model).forward).parameters
    return {next((name for name in CACHES if name in names), CACHES[-1]): cache}


def with_last_logits(model: Any, count: int) -> dict[str, Any]:
    """The keyword argument by which a model computes its last `count` logits only; none where it does not know it.

    Models from elsewhere may lack it, or take and ignore it: read `logits[:, -count:]`.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's hands all on
    names = inspect.signature(inner.forward).parameters
    return {"logits_to_keep": count} if "logits_to_keep" in names else {}


def _interfaces() -> tuple[Any, Any]:
    """Where transformers knows functions of attention and of masks; imported here, since it takes longer than torch."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    return AttentionInterface, AttentionMaskInterface


def attention_function(name: str) -> Any:
    """The attention function that transformers has by this name, if any."""
    return _interfaces()[0]._global_mapping.get(name)


def mask_function(name: str) -> Any:
    """The mask function that transformers has by this name, if any."""
    return _interfaces()[1]._global_mapping.get(name)


def _configs(config: Any) -> Iterator[Any]:
    """A config and its parts, each before its own."""
    yield config
    for key in config.sub_configs:
        if (part := getattr(config, key, None)) is not None:
            yield from _configs(part)


@contextmanager
def attention_called(model: Any, name: str, attention: Callable[..., Any], mask: Callable[..., Any]) -> Iterator[None]:
    """The model calls these, which are known by `name`, for as long as this lasts."""
    before, interfaces = [(part, part._attn_implementation) for part in _configs(model.config)], _interfaces()
    for interface, function in zip(interfaces, (attention, mask), strict=True):
        interface.register(name, function)
    try:
        model.config._attn_implementation = name  # also in its parts
        yield
    finally:
        for part, value in before:
            part._attn_implementation = value
        for interface in interfaces:
            interface._global_mapping.pop(name)
