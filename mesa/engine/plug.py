"""`applied`: attaches a method to a Hugging Face causal language model for the length of a `with` block.

How: while attached, the model's rotary module gives every token the method's `cached_position` in place of its own, so
that its attention caches keys there and hands them to our attention function, which turns them on as the plan says.
A cached key is never rotated anew where its position does not change.
"""

from __future__ import annotations

import inspect
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from threading import Lock, RLock, local
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mesa.decoder import decoder_of, layers_of, removed
from mesa.engine import alibi, passes, rotary, structure
from mesa.engine.attention import EXECUTORS, AttentionHooks, by_head, check_executor, hooked_attention, scores_only
from mesa.engine.compiled import check_eager, check_not_traced, is_accelerator
from mesa.engine.cpu import BLOCK
from mesa.engine.passes import LayerKind
from mesa.engine.rope import STEPS, Rotation, positions
from mesa.engine.schedule import Schedule
from mesa.errors import Refused
from mesa.methods import METHODS, Method, Origin
from mesa.methods.base import check_length
from mesa.outside import attention_called, attention_function, cache_in, check_cache_name
from mesa.plan import check_plan
from mesa.support import check_method, heads_of, is_rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "mesa_lens_"
"""What the name of every attention function that we register begins with."""

_ATTACHING = RLock()
"""One thread attaches or detaches at a time: of two that attach to one model the later one is refused."""

_LONG = 1024
"""Tokens of a pass from which on a warning says that attention is slow."""

Observer = Callable[[int, Sequence[int], Schedule, Tensor, Tensor, float], None]
"""Is shown what an executor is about to be given: (layer, query heads, schedule, query, key, scaling)."""


class Attachment:
    """A method on a model.

    `calls` counts, per layer, how often the method's executor ran; `heads` names the query heads in which it last
    obeyed the method's plan, under tensor parallelism those of this rank: the others attended as trained. `state`: of
    the layers that carry one, if any. `observer`, if set, sees what executors are given.
    """

    def __init__(self, model: PreTrainedModel, method: Method, executor: str, prompt_length: int | None) -> None:
        self.model, self.method, self.executor, self.prompt_length = model, method, executor, prompt_length
        self.name = f"{NAME}{id(self):x}"
        self.decoder: Any = decoder_of(model)
        self._names = list(inspect.signature(self.decoder.forward).parameters)
        turned = is_rotary(model.config.model_type)
        self._modules = structure.paths(self.decoder)
        originals = structure.rotaries(self.decoder, self._modules) if turned else {}
        self.turning: dict[str, nn.Module] = {path: self._modules[path] for path, _ in originals}
        self._fresh: dict[Any, Any] = {
            place: rotary.fresh_rotary(module) for place, module in originals.items() if method.uses_model_rope
        }
        self._frozen: dict[Any, Any] = {place: rotary.frozen_rotary(module) for place, module in originals.items()}
        self._attends = self._attending() if turned else {}
        self.state = structure.state_of(model) if turned else None
        self._check_chosen()
        self._kinds = {attends.kind for attends in self._attends.values() if attends.kind is not None}
        self._by_length = any(frozen.by_length for frozen in self._frozen.values())
        self._chosen: dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._cached_at: tuple[int, Tensor] | None = None
        self._kept: dict[LayerKind, dict[Any, Any]] = {}
        self.slopes = None if turned else alibi.slopes(self.decoder)
        self.attached = self._warned = self._hinted = False
        self.calls: Counter[int] = Counter()
        self.observer: Observer | None = None
        self.heads: dict[int, tuple[int, ...]] = {}
        self._origin = Origin(trained_length=method.trained_length)
        self._block, self.generating = passes.AppliedBlock(method.name), passes.Generating()
        self._running = local()
        self._lock = Lock()

    def __reduce__(self) -> Any:
        """Raises Refused: a copy would run by what is attached to another model."""
        raise Refused(
            f"{self.method.name} is attached to this model: copy or pickle it before or after the `with` block"
        )

    def _attending(self) -> dict[int, structure.Attends]:
        """How each attention module, by its id, attends."""
        layers, modules = structure.structure_of(self.model), self._modules
        return {id(modules[path]): attends for path, attends in layers.items()}

    def _check_chosen(self) -> None:
        """Refused for a chosen layer that the method would leave as it is."""
        method = self.method
        option, chosen = ("heads", dict(method.heads or ())) if method.layers is None else ("layers", method.layers)
        idle = structure.idle_layers(self.model, method) if chosen else {}
        for layer in chosen:
            if layer in idle:
                raise Refused(f"{method.name}: {option} names layer {layer}, {idle[layer]}")

    def attends(self, module: Any) -> structure.Attends:
        """How an attention module attends."""
        known = self._attends.get(id(module)) if self.slopes is None else structure.Attends(module.layer_idx, None)
        if known is None:
            raise passes.MethodNotApplied(
                f"{self.method.name}: a {type(module).__name__} attends that did not when it was tried"
            )
        return known

    @property
    def running(self) -> passes.ForwardPass | None:
        """The pass that runs in this thread."""
        return getattr(self._running, "now", None)

    def before_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes whether the coming pass is `generate`'s own; the inputs may be moved before the decoder has them."""
        check_not_traced()
        self.generating.claimed = None
        self.generating.claim((*args, *kwargs.values()))
        if self.generating.claimed is None:  # `generate` was asked when it began
            check_eager(self.model)

    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Lays out the coming pass: lengths, padding, and one plan for each padding."""
        check_not_traced()
        kwargs = {**dict(zip(self._names, args, strict=False)), **kwargs} if args else kwargs
        inputs = kwargs.get("input_ids")
        inputs = kwargs["inputs_embeds"] if inputs is None else inputs
        batch, new = inputs.shape[:2]
        cache = cache_in(kwargs)
        if cache is None:
            check_cache_name(kwargs, f"the forward of a {type(self.decoder).__name__}")
        elif not isinstance(cache, tuple(passes.CACHES)):
            supported = ", ".join(cls.__name__ for cls in passes.CACHES)
            raise Refused(
                f"a {type(cache).__name__} is not supported; pass a {supported}, or cache_implementation='dynamic' to "
                "`generate`"
            )
        past = 0 if cache is None else int(cache.get_seq_length())
        if not past and self.model.config._attn_implementation != self.name:  # in later passes `check_ran` tells
            raise passes.MethodNotApplied(self.why())
        filled_for = passes.prompt_length_of(cache, self._block) if past else None
        if past and filled_for is None:
            raise Refused(f"the cache of {past} tokens was not filled under {self.method.name}; start with a new one")
        wanted = kwargs.get("output_attentions") or (not past and self.decoder.config.output_attentions)
        if wanted and self.executor == "fused":
            raise Refused("the fused executor has no attention weights for output_attentions; use executor='dense'")
        generated = self.generating.length(inputs)
        prompt_length = filled_for or self.prompt_length or generated or new
        whole = max(prompt_length, self.prompt_length or generated or 0)
        mask, at = kwargs.get("attention_mask"), kwargs.get("position_ids")
        real = None
        if generated is not None and past >= generated:  # both are generate's own
            real, at = passes.going_on(cache, batch, past, new), None
        if real is None:
            mask, at = passes.on_cpu(mask, kwargs.get("position_ids"))
            real = passes.real_tokens(mask, batch, past + new, whole, generated is not None)
        if filled_for and not self.prompt_length and generated and generated != filled_for:
            prompt_length = passes.continued(self.method, self._frequencies, real, past, filled_for, generated)
            self.generating.settle(prompt_length)
        if self.state is not None:
            self.state.check(real, past, self.model.config.model_type)
        if cache is not None:
            passes.fill(cache, self._block, prompt_length, real)
        padded = not bool(real.all())
        index = torch.arange(past, past + new)[None]
        if padded:
            index = torch.where(real, real.cumsum(1) - 1, -1)[:, past:]
            passes.check_prompt(real, past, prompt_length)
        passes.check_positions(at, real, index)
        now = self._laid_out(real, index, prompt_length, padded)
        vars(self._running).update(now=now, prompt_length=prompt_length, cache=cache, real=real)

    def _laid_out(self, real: Tensor, index: Tensor, prompt_length: int, padded: bool) -> passes.ForwardPass:
        """The pass of the last tokens, with an index among those of their row; -1: padding. real: all tokens so far."""
        total, groups = real.shape[1], list[passes.RowGroup]()
        if not padded:
            groups.append(self._group(torch.arange(len(real)), real[0], total - index.shape[1], total, prompt_length))
            return passes.ForwardPass(groups, total, self._cached(index).expand(len(real), -1), self)
        later = max(0, prompt_length - total)
        prompts, lengths = (real[:, :prompt_length].sum(1) + later).tolist(), real.sum(1).tolist()
        paddings, of_row = torch.unique(real, dim=0, return_inverse=True)
        for number, padding in enumerate(paddings):
            rows = (of_row == number).nonzero()[:, 0]
            if length := lengths[rows[0]]:
                start = length - int((index[rows[0]] >= 0).sum())
                groups.append(self._group(rows, padding, start, length, prompts[rows[0]]))
        return passes.ForwardPass(groups, total, positions(self.method.cached_position, index.clamp(min=0)), self)

    def _cached(self, index: Tensor) -> Tensor:
        """The positions (1, token) that keys of some tokens (1, token) are cached at; of one, out of those of STEPS."""
        if index.shape[1] > 1:
            return positions(self.method.cached_position, index)
        number, place = divmod(int(index), STEPS)
        known = self._cached_at
        if known is None or known[0] != number:
            steps = torch.arange(number * STEPS, (number + 1) * STEPS)[None]
            known = self._cached_at = number, positions(self.method.cached_position, steps)
        return known[1][:, place : place + 1]

    def _group(self, rows: Tensor, padding: Tensor, start: int, length: int, prompt: int) -> passes.RowGroup:
        """Rows with one padding, of whose `length` tokens those from `start` on are given."""
        plan = self.method.plan(length, prompt)
        if type(self.method) not in METHODS.values():
            check_plan(self.method.name, plan, length, start)
        everywhere = self.method.layers is None and self.method.heads is None
        schedule, baseline = (
            plan and Schedule(plan, start, self.method.cached_position, slopes=self.slopes)
            for plan in (plan, None if everywhere else self._origin.plan(length))
        )
        assert schedule is not None
        return passes.RowGroup(rows, padding, schedule, baseline, self._turns(prompt))

    def _turns(self, prompt_length: int) -> Mapping[LayerKind, Rotation | None]:
        """What turns states in each kind of layer, in a row with a prompt of this length."""
        turns: dict[LayerKind, Rotation | None] = {}
        with self._lock if self._by_length else nullcontext():
            for frozen in self._frozen.values() if self._by_length else ():
                rotary.settle(frozen, prompt_length)
            for kind in self._kinds:
                frozen = self._frozen[kind[:2]]
                frequencies, kept = frozen.inv_freq, self._kept.setdefault(kind, {})
                if frozen.by_length:  # `settle` writes into them
                    frequencies, kept = frequencies.clone(), None
                turns[kind] = Rotation(kind.layout, frequencies, frozen.angle_dtype, frozen.base, kept)
        return turns

    def _frequencies(self, prompt_length: int) -> list[list[float]]:
        """The inverse frequencies in each kind of layer, in a row with a prompt of this length."""
        return [turn.frequencies.tolist() for turn in self._turns(prompt_length).values() if turn is not None]

    def rotary_forward(self, path: str, module: Any, *args: Any, **kwargs: Any) -> Any:
        """What a rotary module gives for the running pass: cos and sin, or both as one, as keys are cached."""
        running = self.running
        if running is None:
            raise passes.MethodNotApplied(self.why())
        place = (path, structure.requested_kind(module, args, kwargs))
        running.placed.add(place)
        positions = running.cached if running.padded else running.cached[:1]
        given = structure.with_positions(module, args, kwargs, positions)
        if not (self._frozen[place].by_length and len(running.groups) > 1):
            return self._rotary_output(place, running.groups[:1], given)
        parts = [  # each group chooses its frequencies by its own length
            self._rotary_output(place, [group], _of_rows(given, group.rows)) for group in running.groups
        ]
        whole = tuple(part.new_zeros(len(running.cached), *part.shape[1:]) for part in parts[0])
        for group, part in zip(running.groups, parts, strict=True):
            for into, some in zip(whole, part, strict=True):
                into[group.rows] = some
        return whole

    def _rotary_output(self, place: Any, groups: list[passes.RowGroup], given: dict[str, Any]) -> Any:
        """What the model's rotary module gives: as on its first text, or with the frequencies of the first group."""
        with self._lock:
            if self.method.uses_model_rope:
                module = self._fresh[place]
                rotary.restart(module)
            else:
                module = self._frozen[place]
                turns = (turn for group in groups for kind, turn in group.turns.items() if kind[:2] == place)
                for turn in turns if module.by_length else ():
                    assert turn is not None
                    module.inv_freq = turn.frequencies.clone()  # `settle` writes into it
            inner = module.module if place[1] else module
            states = next(states for states in given.values() if isinstance(states, Tensor))
            apart = {
                name: value.to(states.device)
                for name, value in given.items()
                if isinstance(value, Tensor) and value.device != states.device
            }
            return inner(**{**given, **apart})

    def mask(self, *args: Any, **kwargs: Any) -> passes.ForwardPass | None:
        """What the model's layers are given in the mask's place: the pass; the plan masks, padding included."""
        return self.running and self.running.seeing(passes.span_of(kwargs))

    def check_ran(self, layer: int, *_: Any) -> None:
        """Raises `MethodNotApplied` when the method's executor did not run in a layer of the running pass."""
        running = self.running
        if running is not None and layer not in running.ran:
            raise passes.MethodNotApplied(self.why(layer))

    def why(self, layer: int | None = None) -> str:
        """Why another attention than the method's is computed, and what to do."""
        name = self.method.name
        if not self.attached:
            return (
                f"the `with` block of {name} has ended, but a pass from inside it goes on (another thread, or a layer "
                "that gradient checkpointing computes anew); let it end, backward() included, in the block"
            )
        where = "a layer" if layer is None else f"layer {layer}"
        return (
            f"{name} is attached, but {where} does not run it: its attention is not called through transformers' "
            "AttentionInterface, or was chosen anew inside the block; leave set_attn_implementation alone there, and "
            "for a TransformerBridge use mesa.bridge(model, tokenizer)"
        )

    def after_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Ends the pass; remembers the prompt's length for a cache that the model made by itself."""
        noted = dict(vars(self._running))
        vars(self._running).clear()  # else a pass's cache would live until the next pass of this thread
        running: passes.ForwardPass | None = noted.get("now")
        if running is None:
            return
        cache = noted["cache"]
        if cache is not None and output is not None:
            held = int(cache.get_seq_length())
            if held != running.total:
                raise passes.MethodNotApplied(
                    f"{self.method.name}: the model was given a cache, which holds {held} tokens after a pass up to "
                    f"token {running.total}: its layers fill another, or none, so that the next pass would begin anew"
                )
        cache = cache_in(output) if isinstance(output, dict) else None
        if cache is not None and passes.prompt_length_of(cache, self._block) is None:
            passes.fill(cache, self._block, noted["prompt_length"], noted["real"])

    def attention(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        scaling: float | None = None,
        dropout: float = 0.0,
        attention_hooks: AttentionHooks | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """What the model calls in place of its attention: output (batch, query, head, dim), and weights or None.

        attention_hooks: a bridge's. Where they watch scores or weights, or gradients are on, the layer is computed as
        the dense executor does, whichever is attached, and so is a short padded batch: listening changes none of it.
        """
        if dropout:
            raise Refused(f"attention dropout={dropout} is not supported while a method is attached; use model.eval()")
        if not isinstance(attention_mask, passes.ForwardPass):
            raise passes.MethodNotApplied(self.why(getattr(module, "layer_idx", None)))
        running = attention_mask
        arguments = structure.known_arguments(module, self.model, kwargs)
        if (
            arguments["softcap"] is not None
            and self.executor == "fused"
            and query.shape[2] > _LONG
            and not is_accelerator(query.device)
            and not self._hinted
        ):
            self._hinted = True
            warnings.warn(
                f"the scores of this {self.model.config.model_type} model are soft-capped, which no kernel knows: "
                "attention is in plain operations, several times slower on long prompts",
                stacklevel=2,
            )
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        if torch.is_autocast_enabled(query.device.type):  # rotary's output is float32 there, values are not
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (states.to(dtype) for states in (query, key, value))
        if running.owner is not self:  # a layer of an earlier block, computed anew by gradient checkpointing
            raise passes.MethodNotApplied(running.owner.why())
        attends = self.attends(module)
        layer, kind = attends.layer, attends.kind
        if kind is not None and kind[:2] not in running.placed:
            raise passes.MethodNotApplied(
                f"{self.method.name} is attached, but the model's rotary module, which gives it its positions, was "
                "replaced inside the block; replace it before the block"
            )
        dim, value_dim = query.shape[-1], value.shape[-1]
        if value_dim < dim:
            value = torch.nn.functional.pad(value, (0, dim - value_dim))
        with self._lock:
            self.calls[layer] += 1
        hooks = attention_hooks
        if hooks is not None:
            query, key = hooks.rotated(query, key)
            full = self.executor == "dense" or hooks.watched or self._differentiated(query, key, value)
            if not (full or (running.padded and running.total <= BLOCK)):
                hooks = None
        weight = None
        if attends.norms is not None:
            norms = [self._modules[path] for path in attends.norms]
            weights = [structure.weight_of(norm, query) for norm in norms]
            query, key, weight = query / weights[0], key / weights[1], weights[0] * weights[1]
        if value_dim > dim:
            query, key = (torch.nn.functional.pad(states, (0, value_dim - dim)) for states in (query, key))
            weight = weight if weight is None else torch.nn.functional.pad(weight, (0, value_dim - dim), value=1.0)
        executor: Callable[..., Any] = scores_only if hooks else EXECUTORS[self.executor]
        every, chosen = self._heads_in(layer, module, query.shape[1])
        self.heads[layer] = chosen

        def execute(places: Sequence[int], schedule: Schedule, *given: Any) -> tuple[Tensor, Tensor | None]:
            """What the executor returns for the heads at these places; the observer, if any, is shown its input."""
            if self.observer is not None:
                heads = tuple(every[place] for place in places)
                self.observer(layer, heads, schedule, given[0], given[1], given[3])
            return executor(schedule, *given)

        def by_plan(group: passes.RowGroup, first_key: int, *states: Tensor) -> tuple[Tensor, Tensor | None]:
            """A group's attention output and weights: by the method's plan in the chosen heads, else as trained."""

            def schedule(by_method: bool) -> Schedule:
                whole = group.schedule(by_method, kind, running.span, first_key)
                return whole.scoring(arguments["softcap"], arguments["s_aux"], weight)

            if chosen in (every, ()):
                return execute(range(len(every)), schedule(chosen == every), *states, scaling)
            places = [every.index(head) for head in chosen]
            return by_head(execute, schedule(True), schedule(False), places, *states, scaling)

        first_key = running.total - key.shape[2]  # above 0 where a sliding layer's cache has dropped keys
        kept = running.span.size - 1 + query.shape[2] if running.span else running.total
        if first_key > 0 and key.shape[2] < min(kept, running.total):
            raise Refused(
                f"the cache has dropped {first_key} tokens that layer {layer} of this {self.model.config.model_type} "
                "model sees, or is not the one that the model was given: give past_key_values=DynamicCache()"
            )
        if not running.padded:
            output, weights = by_plan(running.groups[0], first_key, query, key, value)
        else:
            unseen = -math.inf if hooks else 0.0
            output, weights = _padded(by_plan, running.groups, unseen, first_key, query, key, value)
        if hooks:
            if weights is None:  # all rows are padding
                weights = query.new_full((*query.shape[:3], key.shape[2]), -math.inf)
            output, weights = hooked_attention(hooks, weights, value, arguments["s_aux"])
        if value_dim < dim:
            output = output[..., :value_dim]
        running.ran.add(layer)
        return output.transpose(1, 2).contiguous(), weights

    def _heads_in(self, layer: int, module: Any, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The query heads of a layer that are in this process, `count` of them, and of those the method's."""
        if (layer, count) not in self._chosen:
            heads, total = self.method.heads_in(layer), heads_of(self.model.config, layer)
            every = _heads_here(module, count, total)
            if heads and (every is None or heads[-1] >= total):
                raise Refused(
                    f"{self.method.name}: heads={{{layer}: {heads}}} cannot be found: attention of layer {layer} has "
                    f"{count} heads here, the config states {total}, and its weights do not tell which these are; "
                    "leave heads= out, or load the model without tensor parallelism"
                )
            every = tuple(range(count)) if every is None else every
            chosen = every if heads is None else tuple(head for head in heads if head in every)
            self._chosen[layer, count] = every, chosen
        return self._chosen[layer, count]

    def _differentiated(self, *states: Tensor) -> bool:
        """Whether gradients of these are wanted; warns the first time, as the fused executor has none."""
        wanted = torch.is_grad_enabled() and any(part.requires_grad for part in states)
        if wanted and not self._warned:
            self._warned = True
            warnings.warn(
                f"gradients are on, and the fused executor has none: {self.method.name} runs the dense one, with "
                "O(T^2) memory; use torch.no_grad() where none are needed",
                stacklevel=2,
            )
        return wanted

    @contextmanager
    def on(self) -> Iterator[None]:
        """The model attends by the method for as long as this lasts."""
        replaced = rotary.rotary_replaced if self.slopes is None else alibi.forwards_replaced
        layers = layers_of(self.model)
        hooks = [
            self.model.register_forward_pre_hook(self.before_model, with_kwargs=True),
            self.decoder.register_forward_pre_hook(self.before_forward, with_kwargs=True),
            self.decoder.register_forward_hook(self.after_forward, with_kwargs=True, always_call=True),
        ]
        attend = {attends.layer for attends in self._attends.values()} or range(len(layers))
        hooks += [layers[layer].register_forward_hook(partial(self.check_ran, layer)) for layer in attend]
        try:
            called = attention_called(self.model, self.name, self.attention, self.mask)
            with removed(hooks), replaced(self), passes.generating_noted(self.model, self.generating), called:
                self.attached = True
                yield
        finally:
            self.attached = False
            self._block.open = False


def _heads_here(module: nn.Module, count: int, total: int) -> tuple[int, ...] | None:
    """Which of a layer's `total` query heads an attention module computes in this process, if it computes `count`.

    Tensor parallelism gives each rank as many, in rising order, and its weights (DTensors) know the rank. None where
    they do not tell.
    """
    if count == total:
        return tuple(range(total))
    ranks = {
        mesh.get_local_rank(dim)
        for part in module.parameters()
        if (mesh := getattr(part, "device_mesh", None)) is not None
        for dim, placement in enumerate(part.placements)  # pyright: ignore[reportAttributeAccessIssue], a DTensor's
        if placement.is_shard() and mesh.size(dim) * count == total
    }
    if len(ranks) != 1:
        return None
    first = count * ranks.pop()
    return tuple(range(first, first + count))


def _padded(
    by_plan: Callable[..., Any], groups: Sequence[passes.RowGroup], unseen: float, first_key: int, *states: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Attention output and weights of a padded batch, group by group; zeros and `unseen` at padding."""
    query, key, value = states
    output, weights = torch.zeros_like(query), None
    for group in groups:
        rows, queries, keys, first = group.places(first_key, query.shape[2], query.device)
        if isinstance(queries, slice) and queries.start == queries.stop:
            continue
        parts = [passes.taken(query, rows, queries), *(passes.taken(states, rows, keys) for states in (key, value))]
        row_output, row_weights = by_plan(group, first, *parts)
        passes.put(output, rows, queries, row_output)
        if row_weights is not None:
            if weights is None:
                weights = row_weights.new_full((*query.shape[:3], key.shape[2]), unseen)
            queries, keys = group.real_places(first_key, query.shape[2])
            weights[group.rows[:, None, None], :, queries[:, None], keys] = row_weights.permute(0, 2, 3, 1)
    return output, weights


def _of_rows(given: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """A rotary module's arguments for some rows of the batch."""
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in given.items()}


def attachment_of(model: PreTrainedModel) -> Attachment | None:
    """What is attached to the model, if anything is."""
    owner = getattr(attention_function(str(model.config._attn_implementation)), "__self__", None)
    return owner if isinstance(owner, Attachment) else None


def check_free(model: PreTrainedModel) -> None:
    """Refused when a method is attached to the model already."""
    if str(model.config._attn_implementation).startswith(NAME):
        raise Refused("a method is already attached to this model; leave its `with` block first")


@contextmanager
def applied(
    model: PreTrainedModel,
    method: Method,
    *,
    executor: str = "fused",
    prompt_length: int | None = None,
) -> Iterator[Attachment]:
    """Attaches a method to a model for the length of a `with` block.

    The model is restored after it, also by an error. Batches may be padded on either side; `generate` needs left
    padding, as without a method. A KV cache filled in the block serves only there. Threads may share the block; passes,
    and backward() under gradient checkpointing, must end in it.

    Args:
        model: A Hugging Face model, also one within `bridge`.
        method: The method.
        executor: 'fused': O(T) memory, no gradients; 'dense': O(T^2) memory, gradients, attention weights. Default
            'fused'. On a `bridge` layers whose scores or weights are hooked are dense in either case, as are all where
            gradients are on.
        prompt_length: Tokens of the whole prompt, padding included, where several calls give it; chunks follow from it.
            Default: what `generate` is given, or the first call with an empty cache. Your own loop without a cache must
            state it.

    Yields:
        An `Attachment`: `calls` counts passes by layer; `heads` has the query heads, by layer, that the method was
        applied to.

    Raises:
        Refused: The model or the executor is not supported.
        RuntimeError: In a pass a layer's attention was not the method's.

    Examples:
        >>> loaded = mesa.load()
        >>> prompt = loaded.tokenizer("import os" * 200, return_tensors="pt")
        >>> with mesa.applied(loaded.model, mesa.ReRoPE(trained_length=256, layers=(0, 1))) as attachment:
        ...     output = loaded.model.generate(**prompt, max_new_tokens=3, do_sample=False)
        >>> loaded.tokenizer.decode(output[0, -3:])
        'import osimport'
        >>> attachment.calls[0], attachment.heads[0], attachment.heads[3]
        (3, (0, 1, 2, 3, 4, 5, 6, 7), ())
    """
    check_executor(executor)
    if isinstance(model, Method):
        raise Refused(f"applied({model.name}, ...): the model comes first, then the method: applied(model, method)")
    if not isinstance(model, nn.Module) or getattr(model, "config", None) is None:
        raise Refused(f"applied: a {type(model).__name__} is not a Hugging Face model; give applied(model, method)")
    check_method(model.config, method)
    if prompt_length is not None:
        check_length("applied", "prompt_length", prompt_length, 1)
    block = ExitStack()
    with _ATTACHING:
        check_free(model)
        check_eager(model)
        attachment = Attachment(model, method, executor, prompt_length)
        block.enter_context(attachment.on())
    try:
        with _no_length_warning(method):
            yield attachment
    finally:
        with _ATTACHING:
            block.close()


@contextmanager
def _no_length_warning(method: Method) -> Iterator[None]:
    """Under a method other than Origin `generate` does not warn of texts longer than the config's window."""

    def keep(record: logging.LogRecord) -> bool:
        return "exceeded the model's predefined maximum length" not in record.getMessage()

    logger = logging.getLogger("transformers.generation.stopping_criteria")
    if not isinstance(method, Origin):
        logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
