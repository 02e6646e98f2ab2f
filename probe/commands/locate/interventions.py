"""Passes over a model with something changed inside: the method in one layer, head or set of heads, or clamped dims.

A pass may begin in the middle: layers below `Start.layer` are left out and their output is injected. This halves the
cost of a sweep over all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformer_lens.model_bridge import TransformerBridge

import mesa
from mesa.decoder import decoder_of, layers_of, removed, replaced
from mesa.engine.bridge import LayerHooks
from mesa.engine.structure import acting_layers
from mesa.errors import Failed, Refused
from mesa.methods import Method
from mesa.support import attending_layers
from probe.capture.capture import capture_states
from probe.capture.spec import HOOKS
from probe.commands.locate import Way
from probe.commands.locate.result import CLAMP, GRADIENTS
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.score import token_losses
from probe.eval_tasks.tasks import PASSKEY, TAIL, tail_tokens
from probe.thresholds.drift import DriftRule, find_drift, resolution
from probe.thresholds.search import CrossingRule, search

Head = tuple[int, int]
"""A layer, and a head in it."""
Heads = Mapping[int, tuple[int, ...]]
"""Heads by layer, as methods take them."""
JOURNALED = "weave"
"""What journals call a patch, as those of earlier versions do, so that they stay readable."""
_SAME_LOSS = 0.01  # nats/token


@dataclass(frozen=True)
class Patch:
    """Activation patching by a method: in a layer, or a head of it, alone ('only'), or everywhere else ('without').

    Only: is it sufficient there? Without: is it necessary there?
    """

    way: str
    layer: int
    head: int | None = None

    @property
    def key(self) -> tuple[str | int, ...]:
        """Its name in the journal."""
        return (JOURNALED, self.way, self.layer, -1 if self.head is None else self.head)

    def run(self, pair: RunPair) -> PassOutcome:
        """The outcome on one item."""
        everywhere = {(layer, head) for layer in range(pair.depth) for head in range(pair.heads)}
        here = {(layer, head) for layer, head in everywhere if layer == self.layer and self.head in (None, head)}
        heads = here if self.way == "only" else everywhere - here
        base = BASELINE if self.way == "only" else PATCHED
        return pair.run(base, self.layer, method=pair.patched_in(by_layer(heads)))


@dataclass(frozen=True)
class Plain:
    """The run itself, `of` BASELINE or PATCHED; inside: of the last M tokens of a text."""

    of: str
    inside: bool = False
    layer = 0

    @property
    def key(self) -> tuple[str]:
        """Its name in the journal."""
        return ("run-inside" if self.inside else "run",)

    def run(self, pair: RunPair) -> PassOutcome:
        """The outcome on one item."""
        return pair.outcome(self.of)


@dataclass(frozen=True)
class PatchedHeads:
    """The baseline with the method in some heads, by layer."""

    heads: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, heads: Heads) -> PatchedHeads:
        """The method in these heads."""
        return cls(tuple(heads.items()))

    @property
    def layer(self) -> int:
        """The first that differs."""
        return min(layer for layer, _ in self.heads)

    @property
    def key(self) -> tuple[str, str]:
        """Its name in the journal."""
        return "set", ";".join(f"{layer}:{','.join(map(str, heads))}" for layer, heads in self.heads)

    def run(self, pair: RunPair) -> PassOutcome:
        """The outcome on one item."""
        return pair.run(BASELINE, self.layer, method=pair.patched_in(dict(self.heads)))


@dataclass(frozen=True)
class Gradients:
    """Attribution patching (Nanda 2023; Syed et al. 2023, arXiv 2310.10348): each head's patch to first order.

    A head's estimate is the gradient of the baseline's loss by what the head gives to the output projection, times the
    method's change of that in the layer's own input. It takes a pass under the method, one of the unmodified model and
    its gradient, however many heads there are. Each layer is computed again for the gradient: memory grows with tokens.
    """

    layer, passes = 0, 5
    key: tuple[str] = (GRADIENTS,)

    def run(self, pair: RunPair) -> np.ndarray:
        """Nats/token recovered (layer, head). Refused where the unmodified model's loss is not the baseline's."""
        model: Any = pair.bridge.original_model
        bridge: Any = pair.bridge
        if isinstance(bridge, LayerHooks):
            raise Refused(f"--try {GRADIENTS} needs an adapter of TransformerLens for this model; take patch")
        outputs = {layer: bridge.blocks[layer].attn.o.original_component for layer in attending_layers(model.config)}
        baseline, changed = pair.outcome(BASELINE), dict[int, Tensor]()
        edits = [_replacing(point, states) for point, states in baseline.activations.items() if point[0] == "resid_pre"]
        with _before(outputs, lambda layer, states: changed.update({layer: states})):
            run(bridge, pair.item, pair.methods[PATCHED], edits, executor=pair.executor)
        shares = torch.zeros(pair.depth, pair.heads, 1, device=model.device, requires_grad=True)

        def mixed(layer: int, states: Tensor) -> Tensor:
            """A layer's heads with `shares` of their change: none of it, but differentiated."""
            change = (changed[layer].to(states) - states.detach()).float().unflatten(-1, (pair.heads, -1))
            return states + (change * shares[layer]).flatten(-2).to(states)

        ids = torch.tensor([pair.item.ids], device=model.device)
        with torch.enable_grad(), _before(outputs, mixed), _layers_computed_again(model):
            loss = token_losses(model, ids, pair.item.scored).mean()
            (gradient,) = torch.autograd.grad(loss, shares)
        if abs(loss.item() - baseline.losses.mean().item()) > _SAME_LOSS:
            raise Refused(
                f"--try gradients: the unmodified model's loss is {loss.item():z.2f}, Origin's "
                f"{baseline.losses.mean().item():z.2f} nats/token; take patch"
            )
        return -gradient[..., 0].double().cpu().numpy()


def _replacing(point: HookPoint, states: Tensor) -> Edit:
    return Edit(point, lambda former: states.to(former))


@contextmanager
def _before(modules: Mapping[int, Any], change: Callable[[int, Tensor], Tensor | None]) -> Iterator[None]:
    """Calls `change(layer, input)` before each module, which goes on with what that returns, if anything."""

    def hook(layer: int, module: Any, args: tuple[Any, ...]) -> Any:
        changed = change(layer, args[0])
        return None if changed is None else (changed, *args[1:])

    with removed([part.register_forward_pre_hook(partial(hook, layer)) for layer, part in modules.items()]):
        yield


@contextmanager
def _layers_computed_again(model: Any) -> Iterator[None]:
    """Inside, a gradient computes each layer again, in place of keeping what it needs of all."""
    layers = [getattr(layer, "original_component", layer) for layer in layers_of(model)]  # a bridge has its own forward
    with replaced(*((layer, "forward", partial(checkpoint, layer.forward, use_reentrant=False)) for layer in layers)):
        yield


def by_layer(heads: Iterable[Head]) -> dict[int, tuple[int, ...]]:
    """(layer, head) pairs by layer, both rising."""
    ordered = sorted(heads)
    return {layer: tuple(head for at, head in ordered if at == layer) for layer, _ in ordered}


def patches(layers: Sequence[int], heads: Sequence[Head], ways: Sequence[str]) -> Iterator[Patch]:
    """The method in every layer and (layer, head), in each of these ways."""
    for way in (way for way in get_args(Way) if way in ways):
        yield from (Patch(way, layer) for layer in layers)
        yield from (Patch(way, layer, head) for layer, head in heads)


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
    bridge: TransformerBridge | LayerHooks,
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
    noted = _outputs_noted(model)
    with attached as attachment, noted, _from_layer(model, first), bridge.hooks(fwd_hooks=hooks):
        losses = token_losses(model, torch.tensor([item.ids], device=model.device), item.scored)
    if set(counts) > {1}:
        raise Failed(f"edits at {[edit.point for edit in edits]} ran {counts} times, once each expected")
    expected = [layer for layer in attachment.layers if layer >= first]
    all_heads = tuple(range(model.config.num_attention_heads))
    chosen = {layer: () if layer in attachment.as_trained else method.heads_in(layer) for layer in expected}
    heads = {layer: all_heads if some is None else some for layer, some in chosen.items()}
    if sorted(attachment.calls) != expected or attachment.heads != heads:
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
    names = [name for name, module in decoder.named_children() if module is layers]
    if not names and first:
        raise Failed(f"the layers of a {type(decoder).__name__} are in several lists: no pass can begin in the middle")
    parts = torch.nn.ModuleList([*map(_LeftOut, list(layers)[:first]), *list(layers)[first:]])
    with replaced(*((decoder, name, parts) for name in names if first)):
        yield


_in_tuple: WeakKeyDictionary[torch.nn.Module, bool] = WeakKeyDictionary()
"""Whether a layer's output is a tuple, noted as it runs."""


class _LeftOut(torch.nn.Module):
    """Stands in a layer's place and gives its input, as the layer would: models choose a layer's mask by its number."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        vars(self)["layer"] = layer

    def __getattr__(self, name: str) -> Any:
        """The layer's, such as its kind of attention."""
        return getattr(vars(self)["layer"], name)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The input."""
        return (hidden_states,) if _in_tuple.get(vars(self)["layer"]) else hidden_states


@contextmanager
def _outputs_noted(model: Any) -> Iterator[None]:
    """Inside, it is noted which layers give tuples."""

    def note(layer: torch.nn.Module, args: Any, output: Any) -> None:
        _in_tuple[layer] = isinstance(output, tuple)

    with removed([layer.register_forward_hook(note) for layer in layers_of(model) if layer not in _in_tuple]):
        yield


@dataclass
class RunPair:
    """The baseline and the patched run of one item, computed when first needed, with the states before every layer."""

    bridge: TransformerBridge | LayerHooks
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
        layers = acting_layers(self.bridge.original_model, self.methods[PATCHED])
        acting = {layer: heads for layer, heads in heads.items() if layer in layers}
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


CLAMPS = ("at-M", "range")
"""at-M: beyond M each dim keeps its value at the last position before M. range: it is cut to [5%, 95%] of its values in
the second half of the window.
"""
RULES = ("drift", "paper")
CONTROLS = 5
"""Sets of random dims."""
LayerDims = tuple[int, Sequence[int], Sequence[Sequence[int]]]
"""A layer, its dims by a rule, and `CONTROLS` sets of as many others."""


def clamped_dims(
    bridge: TransformerBridge | LayerHooks,
    ids: Sequence[int],
    methods: Sequence[Method],
    top: int,
    *,
    period: int = 1,
    executor: str = "fused",
) -> dict[str, list[LayerDims]]:
    """By rule, then layer: up to `top` dims that leave their range beyond M in a pass over `ids`, and control sets.

    methods: the reference, whose dims these are, and the method. period: tokens of the word that `ids` repeat.
    drift: the drift dims, of the drifting layers those with the largest shares. paper: the threshold dims of `search`,
    those of highest rank. Control dims are others of the layer, drawn from those nearest in variance between M/4 and
    M. A layer without dims is left out.
    """
    passes = [capture_states(bridge, ids, method, executor=executor)["resid_post"] for method in methods]
    hidden = xr.concat(passes, "method")
    trained = methods[0].trained_length
    rule = DriftRule.scaled(trained, resolution(str(bridge.original_model.dtype).removeprefix("torch.")), period)
    plans = {method.name: method.plan(len(ids)) for method in methods}
    drift = find_drift(hidden, trained, rule, plans=plans, reference=methods[0].name).sel({"method": methods[0].name})
    rank = search(hidden, trained, CrossingRule.scaled(trained), methods[0].name)["rank"].values
    variance = hidden[0, :, trained // 4 : trained].var("position").values
    share = np.where(np.isfinite(drift["first"].values)[:, None], drift["share"].values, 0.0)

    def chosen(name: str, row: int) -> list[int]:
        if name == "drift":
            return [dim for dim in np.argsort(-share[row], kind="stable")[:top].tolist() if share[row, dim] > 0]
        ranked = np.flatnonzero(rank[row] > 0)
        return ranked[np.argsort(rank[row][ranked])][:top].tolist()

    layers = hidden["layer"].values.tolist()
    return {
        name: [
            (layer, dims, control_dims(variance[row], dims).tolist())
            for row, layer in enumerate(layers)
            if (dims := chosen(name, row))
        ]
        for name in RULES
    }


def control_dims(variance: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """`CONTROLS` sets (set, dim) of other dims, each near one of `chosen` in `variance`; seeded.

    Raises Refused where the layer does not have twice as many dims.
    """
    if 2 * len(chosen) > len(variance):
        raise Refused(f"{len(chosen)} of {len(variance)} dims leave too few to draw controls from; take fewer")
    rng, sets = np.random.default_rng(0), []
    log_variance = np.log(variance + 1e-30)
    for _ in range(CONTROLS):
        free, drawn = [dim for dim in range(len(variance)) if dim not in set(chosen)], []
        for dim in chosen:
            nearest = np.argsort(np.abs(log_variance[free] - log_variance[dim]), kind="stable")[: min(5, len(free))]
            drawn.append(free.pop(int(rng.choice(nearest))))
        sets.append(drawn)
    return np.array(sets)


@dataclass(frozen=True)
class Clamp:
    """The baseline with some dims clamped. layer: None is all of `dims`.

    which: 'threshold', the dims by the rule, or 'random N'.
    inside: the control inside the window: items of M tokens, clamped from M/2 on as if that were M.
    """

    way: str
    rule: str
    which: str
    layer: int | None
    dims: tuple[tuple[int, tuple[int, ...]], ...]
    inside: bool = False

    @property
    def key(self) -> tuple[str | int, ...]:
        """Its name in the journal."""
        span = "inside" if self.inside else "beyond"
        return (CLAMP, self.way, self.rule, self.which, span, -1 if self.layer is None else self.layer)

    def run(self, pair: RunPair) -> PassOutcome:
        """The outcome on one item."""
        trained = pair.methods[BASELINE].trained_length
        begin = trained // 2 if self.inside else trained
        edits = []
        for layer, dims in self.dims:
            at = list(dims)
            low, high = _bounds(pair.states_after(BASELINE, layer)[:begin, at], self.way)
            edits.append(Edit(("resid_post", layer), _clamping(begin, at, low, high)))
        return pair.run(BASELINE, self.dims[0][0], edits)


def _bounds(before: torch.Tensor, way: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest value allowed, by dim; `before` (position, dim) are the values inside."""
    if way == "at-M":
        return before[-1], before[-1]
    ends = torch.tensor([0.05, 0.95], dtype=torch.float32, device=before.device)
    low, high = before[len(before) // 2 :].float().quantile(ends, dim=0)
    return low.to(before), high.to(before)


def _clamping(begin: int, dims: list[int], low: torch.Tensor, high: torch.Tensor) -> Callable[..., torch.Tensor]:
    def change(states: torch.Tensor) -> torch.Tensor:
        states[begin:, dims] = states[begin:, dims].clamp(low, high)
        return states

    return change


def clamps(rules: Mapping[str, Sequence[LayerDims]], layers: Sequence[int]) -> Iterator[Clamp]:
    """Every clamp of each rule's dims and of their controls: in all layers that have any, also inside, and by layer."""
    for rule, by_layer in rules.items():
        sets = {"threshold": {layer: tuple(dims) for layer, dims, _ in by_layer}}
        for number in range(CONTROLS):
            sets[f"random {number}"] = {layer: tuple(controls[number]) for layer, _, controls in by_layer}
        for way in CLAMPS if by_layer else ():
            for which, dims in sets.items():
                every = tuple(dims.items())
                yield Clamp(way, rule, which, None, every)
                yield from (Clamp(way, rule, which, at, ((at, dims[at]),)) for at in dims if at in layers)
                yield Clamp(way, rule, which, None, every, inside=True)
