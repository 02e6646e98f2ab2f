"""One forward pass with activations edited on the way, the two runs of a prompt, and the loss that it is measured by.

A pass may begin in the middle: layers below `Start.layer` are left out and their output is injected. This halves the
cost of a sweep over all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import mesa
from mesa.decoder import decoder_of, layers_of
from mesa.engine.structure import idle_layers
from mesa.errors import Failed, Refused
from mesa.methods import Method
from probe.capture.spec import HOOKS
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.likelihood import TAIL, tail_tokens
from probe.eval_tasks.retrieval_tasks import PASSKEY
from probe.eval_tasks.score import token_losses

HookPoint = tuple[str, int]
"""A hook of `HOOK_NAMES`, and a layer."""
HOOK_NAMES = {name: hook.path for name, hook in HOOKS.items()} | {"pattern": "blocks.{layer}.attn.hook_pattern"}
"""`probe.capture.spec.HOOKS`, and attention weights (head, query, key) under executor 'dense'."""
BASELINE, PATCHED = "baseline", "patched"
"""The two runs of a prompt: Origin, which fails beyond the trained length, and the same under a method."""
BLOCKS = 8
"""Parts that the scored tokens of a text are averaged in, so that one text has an interval too."""


@dataclass(frozen=True)
class Item:
    """Token ids whose last `scored` tokens are scored.

    prompt: how many of them are the prompt, which the method's structure follows; the rest is an answer. None: all.
    """

    ids: tuple[int, ...]
    scored: int
    prompt: int | None = None


@dataclass(frozen=True)
class Edit:
    """`change` maps the activations (token, ...) at a hook point to the same shape, and may write in place."""

    point: HookPoint
    change: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Start:
    """The residual stream (token, dim) before `layer`, with which a pass begins."""

    layer: int
    states: Tensor


@dataclass(frozen=True)
class PassOutcome:
    """NLL (nats) of each scored token, and the recorded activations, each (token, ...)."""

    losses: Tensor
    activations: Mapping[HookPoint, Tensor]


def items(measure: str, tokenizer: Any, length: int, setting: PromptSpec) -> list[Item]:
    """`setting.samples` items of a measure.

    nll: texts of `length` tokens, the last M/4 scored. passkey: the paper's prompts of `length` tokens followed by the
    right answer, which is scored. Raises Refused where the text or the tokenizer cannot give them.
    """
    if measure == "nll":
        texts = TAIL.prepare(tokenizer, length, setting, setting.samples)
        return [Item(tuple(ids.tolist()), tail_tokens(setting.trained_length)) for ids in texts]
    prompts = PASSKEY.prepare(tokenizer, length, setting, setting.samples)
    return [Item((*prompt.ids, *prompt.answer_ids), len(prompt.answer_ids), len(prompt.ids)) for prompt in prompts]


def blocks(measure: str, losses: Sequence[float] | np.ndarray) -> list[float]:
    """Mean loss by block of scored tokens; a passkey's answer is one block."""
    parts = np.array_split(np.asarray(losses, float), min(BLOCKS, len(losses)) if measure == "nll" else 1)
    return [float(part.mean()) for part in parts]


def run(
    bridge: TransformerBridge,
    item: Item,
    method: Method,
    edits: Sequence[Edit] = (),
    *,
    record: Sequence[HookPoint] = (),
    start: Start | None = None,
    executor: str = "fused",
) -> PassOutcome:
    """The outcome of one pass over `item` under `method` with `edits` applied in order; records what follows them.

    Gradients flow under executor 'dense' where they are enabled. Raises Refused for a hook point that the pass does
    not reach, RuntimeError unless every edit and, in every layer from the start on, the method ran exactly once.
    """
    model: Any = bridge.original_model
    depth, first = model.config.num_hidden_layers, start.layer if start else 0
    for hook, layer in (*(edit.point for edit in edits), *record):
        if hook not in HOOK_NAMES or not first <= layer < depth:
            raise Refused(f"{hook!r} of layer {layer} is not reached by a pass over layers {first}-{depth - 1}")
    counts, recorded = [0] * len(edits), dict.fromkeys(record)
    hooks: list[Any] = []
    if start is not None:
        hooks.append((_name(("resid_pre", first)), lambda tensor, hook: start.states[None].to(tensor)))

    def change(tensor: Tensor, hook: Any, *, number: int) -> Tensor:
        counts[number] += 1
        return edits[number].change(tensor[0].clone())[None]

    def look(tensor: Tensor, hook: Any, *, point: HookPoint) -> None:
        recorded[point] = tensor[0].clone()

    hooks += [(_name(edit.point), partial(change, number=number)) for number, edit in enumerate(edits)]
    hooks += [(_name(point), partial(look, point=point)) for point in record]
    attached = mesa.applied(model, method, executor=executor, prompt_length=item.prompt)
    with attached as attachment, _from_layer(model, first), bridge.hooks(fwd_hooks=hooks):
        losses = token_losses(model, torch.tensor([item.ids], device=model.device), item.scored)
    if set(counts) > {1}:
        raise Failed(f"edits at {[edit.point for edit in edits]} ran {counts} times, once each expected")
    expected = dict.fromkeys(range(first, depth), 1)
    all_heads = tuple(range(model.config.num_attention_heads))
    heads = {layer: all_heads if method.heads_in(layer) is None else method.heads_in(layer) for layer in expected}
    if dict(attachment.calls) != expected or attachment.heads != heads:
        raise Failed(
            f"{method.name} ran {dict(attachment.calls)} times by layer, in heads {attachment.heads}; expected "
            f"{expected}, in heads {heads}"
        )
    if missing := [point for point, value in recorded.items() if value is None]:
        raise Failed(f"nothing passed the hooks {missing}")
    return PassOutcome(losses, {point: value for point, value in recorded.items() if value is not None})


def _name(point: HookPoint) -> str:
    return HOOK_NAMES[point[0]].format(layer=point[1])


@contextmanager
def _from_layer(model: Any, first: int) -> Iterator[None]:
    """Inside, the decoder runs its layers from `first` on."""
    decoder, layers = decoder_of(model), layers_of(model)
    (name,) = (name for name, module in decoder.named_children() if module is layers)
    setattr(decoder, name, torch.nn.ModuleList(list(layers)[first:]))
    try:
        yield
    finally:
        setattr(decoder, name, layers)


@dataclass
class RunPair:
    """The baseline and the patched run of one item, computed when first needed, with the states before every layer."""

    bridge: TransformerBridge
    item: Item
    methods: dict[str, Method]
    executor: str = "fused"
    outcomes: dict[str, PassOutcome] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Layers."""
        return self._config.num_hidden_layers

    @property
    def heads(self) -> int:
        """Attention heads of a layer."""
        return self._config.num_attention_heads

    @property
    def _config(self) -> Any:
        return self.bridge.original_model.config

    def patched_in(self, heads: Mapping[int, tuple[int, ...]]) -> Method:
        """The patched run's method in some heads by layer, without layers in which it would change nothing."""
        idle = idle_layers(self.bridge.original_model, self.methods[PATCHED])
        acting = {layer: heads for layer, heads in heads.items() if layer not in idle}
        return replace(self.methods[PATCHED], heads=acting) if acting else self.methods[BASELINE]

    def outcome(self, of: str) -> PassOutcome:
        """The plain run, `of` BASELINE or PATCHED."""
        if of not in self.outcomes:
            record = [("resid_pre", layer) for layer in range(self.depth)] + [("resid_post", self.depth - 1)]
            self.outcomes[of] = run(self.bridge, self.item, self.methods[of], record=record, executor=self.executor)
        return self.outcomes[of]

    def states_after(self, of: str, layer: int) -> Tensor:
        """The residual stream (token, dim) after a layer of the plain run `of`."""
        point = ("resid_pre", layer + 1) if layer + 1 < self.depth else ("resid_post", layer)
        return self.outcome(of).activations[point]

    def run(self, base: str, layer: int, edits: Sequence[Edit] = (), *, method: Method | None = None) -> PassOutcome:
        """A pass that equals the run `base` below `layer`, and goes on from there under `method` with `edits`."""
        start = Start(layer, self.outcome(base).activations["resid_pre", layer]) if layer else None
        return run(self.bridge, self.item, method or self.methods[base], edits, start=start, executor=self.executor)
