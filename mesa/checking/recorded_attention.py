"""Inputs and outputs of a model's attention, call by call, recorded during a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from mesa.checking.oracle import Positions
from mesa.decoder import decoder_of, removed, replaced
from mesa.engine import structure
from mesa.engine.plug import Attachment
from mesa.outside import attention_called, attention_function, mask_function


@dataclass(frozen=True)
class AttentionCall:
    """A call of an attention function: query, key, value (batch, head, token, dim), and the output, tokens first.

    softcap and sinks (head,): None where there are none. seen: which keys the model's own mask lets a query see
    (query, key), None where that was not asked for.
    """

    attends: structure.Attends
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    softcap: float | None
    sinks: Tensor | None
    output: Tensor
    seen: Tensor | None = None


@dataclass
class Calls:
    """The calls of a pass, in their order, and the frequencies of its rotary modules at that time.

    windows: how many keys a query of a layer sees at most (tokens), of a sliding window or a chunk; empty: all.
    """

    functions: list[AttentionCall] = field(default_factory=list)
    frequencies: dict[tuple[str, str | None], Tensor] = field(default_factory=dict)
    windows: set[int] = field(default_factory=set)

    def positions(self, decoder: nn.Module) -> list[Positions]:
        """How positions enter each call by these frequencies; none where it does not rotate."""
        return [self._of(call.attends, structure.paths(decoder), call.query) for call in self.functions]

    def _of(self, attends: structure.Attends, modules: dict[str, nn.Module], query: Tensor) -> Positions:
        if attends.kind is None:
            return Positions()
        rotary, kind, layout = attends.kind
        norms = [structure.weight_of(modules[path], query) for path in attends.norms or ()]
        return Positions(
            self.frequencies[rotary, kind].double().cpu().numpy()[: layout.pairs],
            layout.begin,
            layout.interleaved,
            layout.backwards,
            weights=np.stack([norm.detach().double().cpu().numpy() for norm in norms]) if norms else None,
        )


def _recording(calls: Calls, known: Callable[[Any], structure.Attends], inner: Callable[..., Any]) -> Any:
    """The attention function `inner`, whose calls are recorded."""

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **kwargs: Any) -> Any:
        output, weights = inner(module, query, key, value, mask, *args, **kwargs)
        scaling = args[0] if args else kwargs.get("scaling")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        special = kwargs.get("softcap"), kwargs.get("s_aux")
        calls.windows.update(filter(None, [kwargs.get("sliding_window")]))
        calls.functions.append(AttentionCall(known(module), query, key, value, scaling, *special, output))
        return output, weights

    return attention


@contextmanager
def _attention_replaced(model: Any, function: Callable[..., Any], calls: Calls) -> Iterator[None]:
    """The model calls an attention function of ours, with whole masks as for sdpa, and computes every token."""

    def mask(**kwargs: Any) -> Any:
        calls.windows.update(filter(None, [kwargs.get("local_size")]))
        return mask_function("sdpa")(**{**kwargs, "allow_is_causal_skip": False})

    whole = structure.whole_prompts(decoder_of(model))
    name = f"mesa_lens_check_{id(model):x}"  # its own: another thread may check another model
    with attention_called(model, name, function, mask), replaced(*whole):
        yield


def _plain(module: Any, *states: Any, scaling: float | None = None, **_: Any) -> Any:
    return attention_function("sdpa")(module, *states, scaling=scaling)


@contextmanager
def record_stock(model: Any) -> Iterator[Calls]:
    """The calls of the stock model, whose attention is sdpa meanwhile, without soft cap and sinks."""
    calls, decoder = Calls(), decoder_of(model)
    modules, attended = structure.paths(decoder), structure.structure_of(model)
    known, places = {id(modules[path]): attends for path, attends in attended.items()}, structure.rotaries(decoder)

    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, path: str) -> None:
        place = path, structure.requested_kind(module, args, kwargs)
        frequencies: Any = places[place].inv_freq
        calls.frequencies[place] = frequencies.clone()  # which a long text may change in place

    handles = [
        modules[path].register_forward_hook(partial(keep, path=path), with_kwargs=True)
        for path in dict.fromkeys(path for path, _ in places)
    ]
    function = _recording(calls, lambda module: known[id(module)], _plain)
    with removed(handles), _attention_replaced(model, function, calls):
        yield calls


@contextmanager
def record_method(attachment: Attachment) -> Iterator[Calls]:
    """The calls of a model under a method."""
    calls, function = Calls(), attachment.attention
    attachment.attention = _recording(calls, attachment.attends, function)
    AttentionInterface.register(attachment.name, attachment.attention)
    try:
        yield calls
    finally:
        del attachment.__dict__["attention"]
        AttentionInterface.register(attachment.name, function)


@torch.no_grad()
def before_rotation(model: Any, ids: Tensor, calls: Calls) -> Sequence[AttentionCall]:
    """The calls' queries and keys before rotation, and what each query may see.

    The model reads the tokens again, all at its rotary modules' position 0, while every attention call gives what was
    recorded. To be called while no method is attached. Calls of models without rotary embeddings stay as they are.
    """
    decoder, unrotated, recorded = decoder_of(model), list[AttentionCall](), iter(calls.functions)
    places = structure.rotaries(decoder)
    if not places:
        return calls.functions

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *_: Any, **__: Any) -> Any:
        call = next(recorded)
        unrotated.append(replace(call, query=query, key=key, seen=mask[0, 0] if mask is not None else None))
        return call.output, None

    def at_zero(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        zeros = torch.zeros(1, ids.shape[1], dtype=torch.long, device=ids.device)
        return (), structure.with_positions(module, args, kwargs, zeros)

    modules = structure.paths(decoder)
    handles = [
        modules[path].register_forward_pre_hook(at_zero, with_kwargs=True)
        for path in dict.fromkeys(path for path, _ in places)
    ]
    with removed(handles), _attention_replaced(model, attention, calls):
        model(ids, use_cache=False)
    return unrotated
