"""Inputs and outputs of a model's attention, layer by layer, recorded during a forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, Cache
from transformers.masking_utils import AttentionMaskInterface

from mesa.decoder import layers_of, removed
from mesa.engine.plug import Attachment

_NAME = "mesa_lens_check"


@dataclass(frozen=True)
class AttentionCall:
    """A call of an attention function: query, key, value (batch, head, token, dim), and the output, tokens first."""

    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    window: int | None
    output: Tensor


@dataclass
class Calls:
    """The calls of a pass by layer: of attention modules, and of the attention functions in them."""

    modules: dict[int, tuple[Any, tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    functions: dict[int, AttentionCall] = field(default_factory=dict)


def _recording(calls: Calls, inner: Callable[..., Any]) -> Callable[..., Any]:
    """The attention function `inner`, whose calls are recorded."""

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **kwargs: Any) -> Any:
        output, weights = inner(module, query, key, value, mask, *args, **kwargs)
        scaling = args[0] if args else kwargs.get("scaling")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        calls.functions[module.layer_idx] = AttentionCall(
            query, key, value, scaling, kwargs.get("sliding_window"), output
        )
        return output, weights

    return attention


@contextmanager
def _record_modules(model: Any, calls: Calls) -> Iterator[None]:
    """The calls of every rotary attention module are recorded, as its decoder layer makes them."""

    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], layer: int) -> None:
        calls.modules[layer] = module, args, kwargs

    handles = [
        module.register_forward_pre_hook(partial(keep, layer=layer), with_kwargs=True, prepend=True)
        for layer, whole in enumerate(layers_of(model))
        for module in whole.modules()
        if module is not whole and "position_embeddings" in inspect.signature(module.forward).parameters
    ]
    with removed(handles):
        yield


@contextmanager
def _attention_replaced(model: Any, function: Callable[..., Any]) -> Iterator[None]:
    """The model calls an attention function of ours, with masks as for sdpa."""
    before = model.config._attn_implementation
    AttentionInterface.register(_NAME, function)
    AttentionMaskInterface.register(_NAME, AttentionMaskInterface._global_mapping["sdpa"])
    try:
        model.config._attn_implementation = _NAME
        yield
    finally:
        model.config._attn_implementation = before
        AttentionInterface._global_mapping.pop(_NAME)
        AttentionMaskInterface._global_mapping.pop(_NAME)


@contextmanager
def record_stock(model: Any) -> Iterator[Calls]:
    """The calls of the stock model, whose attention is sdpa meanwhile."""
    calls = Calls()
    with (
        _attention_replaced(model, _recording(calls, AttentionInterface._global_mapping["sdpa"])),
        _record_modules(model, calls),
    ):
        yield calls


@contextmanager
def record_method(attachment: Attachment) -> Iterator[Calls]:
    """The calls of a model under a method."""
    calls, function = Calls(), attachment.attention
    attachment.attention = _recording(calls, function)  # pyright: ignore[reportAttributeAccessIssue]
    AttentionInterface.register(attachment.name, attachment.attention)
    try:
        with _record_modules(attachment.model, calls):
            yield calls
    finally:
        del attachment.__dict__["attention"]
        AttentionInterface.register(attachment.name, function)


def before_rotation(model: Any, calls: Calls) -> Mapping[int, AttentionCall]:
    """The calls' queries, keys and values before rotation: the attention modules are run once more, without it.

    Those of models without rotary embeddings are as they were call.
    """
    if not calls.modules:
        return calls.functions
    unrotated = Calls()

    def nothing(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Any:
        output = value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        return output, None

    with _attention_replaced(model, _recording(unrotated, nothing)), torch.no_grad():
        for module, args, kwargs in calls.modules.values():
            cos, sin = kwargs["position_embeddings"]
            without_cache = {name: None if isinstance(value, Cache) else value for name, value in kwargs.items()}
            module(*args, **{**without_cache, "position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))})
    return unrotated.functions
