"""One pass of a bridged model under a method with activations edited on the way, and what it costs in likelihood.

A pass may begin in the middle: layers below `Start.layer` are left out and their output is given, exactly as if
they had run. That halves the cost of going over all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import mesa
from mesa.decoder import layers_of
from mesa.methods import Method
from probe.capture.spec import HOOKS

Place = tuple[str, int]
"""A hook of `PLACES`, and a layer."""
PLACES = {**HOOKS, "pattern": "blocks.{layer}.attn.hook_pattern"}
"""What can be edited or kept: `probe.capture.spec.HOOKS`, and attention weights (head, query, key) under 'dense'."""


@dataclass(frozen=True)
class Item:
    """Token ids whose last `scored` tokens are scored, each after all tokens before it.

    prompt: how many of them are the prompt, which methods' structure follows, where the rest is an answer; None: all.
    """

    ids: tuple[int, ...]
    scored: int
    prompt: int | None = None


@dataclass(frozen=True)
class Edit:
    """What is done to the activations at a place: `change` maps (token, ...) to the same shape, and may write in it."""

    place: Place
    change: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Start:
    """The residual stream (token, dim) before `layer`, with which a pass begins."""

    layer: int
    states: Tensor


@dataclass(frozen=True)
class Outcome:
    """NLL (nats) of each scored token, and the activations that were asked for, each (token, ...)."""

    losses: Tensor
    kept: Mapping[Place, Tensor]


def run(
    bridge: TransformerBridge,
    item: Item,
    method: Method,
    edits: Sequence[Edit] = (),
    *,
    keep: Sequence[Place] = (),
    start: Start | None = None,
    executor: str = "fused",
) -> Outcome:
    """The outcome of one pass over `item` under `method`, with `edits` made, in their order, at their places.

    What is kept is what stands there after the edits. Gradients flow under executor 'dense' where they are enabled.
    Raises ValueError for a place that the pass does not reach, RuntimeError when an edit was not made exactly once or
    the method did not run exactly once in every layer from the start on, in its heads.
    """
    model: Any = bridge.original_model
    depth, first = model.config.num_hidden_layers, start.layer if start else 0
    for hook, layer in (*(edit.place for edit in edits), *keep):
        if hook not in PLACES or not first <= layer < depth:
            raise ValueError(f"{hook!r} of layer {layer} is not reached by a pass over layers {first}-{depth - 1}")
    made, kept = [0] * len(edits), dict.fromkeys(keep)
    hooks: list[Any] = []
    if start is not None:
        hooks.append((_name(("resid_pre", first)), lambda tensor, hook: start.states[None].to(tensor)))

    def change(tensor: Tensor, hook: Any, *, number: int) -> Tensor:
        made[number] += 1
        return edits[number].change(tensor[0].clone())[None]

    def look(tensor: Tensor, hook: Any, *, place: Place) -> None:
        kept[place] = tensor[0].clone()

    hooks += [(_name(edit.place), partial(change, number=number)) for number, edit in enumerate(edits)]
    hooks += [(_name(place), partial(look, place=place)) for place in keep]
    attached = mesa.applied(model, method, executor=executor, prompt_length=item.prompt)
    with attached as attachment, _from_layer(model, first), bridge.hooks(fwd_hooks=hooks):
        losses = _losses(model, item)
    if set(made) > {1}:
        raise RuntimeError(f"edits at {[edit.place for edit in edits]} were made {made} times, once each expected")
    expected = dict.fromkeys(range(first, depth), 1)
    every = tuple(range(model.config.num_attention_heads))
    asked = {layer: every if method.heads_in(layer) is None else method.heads_in(layer) for layer in expected}
    if dict(attachment.calls) != expected or attachment.woven != asked:
        raise RuntimeError(
            f"{method.name} ran {dict(attachment.calls)} times by layer, in heads {attachment.woven}; expected "
            f"{expected}, in heads {asked}"
        )
    missing = [place for place, value in kept.items() if value is None]
    if missing:
        raise RuntimeError(f"nothing passed the hooks {missing}")
    return Outcome(losses, {place: value for place, value in kept.items() if value is not None})


def _name(place: Place) -> str:
    return PLACES[place[0]].format(layer=place[1])


def _losses(model: Any, item: Item) -> Tensor:
    ids = torch.tensor([item.ids], device=model.device)
    logits = model(ids, use_cache=False, logits_to_keep=item.scored + 1).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits.float(), ids[0, -item.scored :].to(logits.device), reduction="none")


@contextmanager
def _from_layer(model: Any, first: int) -> Iterator[None]:
    """The decoder runs its layers from `first` on, for as long as this lasts."""
    decoder, layers = model.get_decoder(), layers_of(model)
    (name,) = (name for name, module in decoder.named_children() if module is layers)
    setattr(decoder, name, torch.nn.ModuleList(list(layers)[first:]))
    try:
        yield
    finally:
        setattr(decoder, name, layers)
