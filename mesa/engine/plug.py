"""`applied`: attaches a method to a Hugging Face causal language model for the length of a `with` block.

How: while attached, the model's rotary module gives every token the method's `cached_position` in place of its own, so
that its attention caches keys there and hands them to our attention function, which rotates them on as the plan says.
A cached key is never rotated again where its position does not change.
"""

from __future__ import annotations

import inspect
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from threading import Lock, RLock, local
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mesa.decoder import decoder_of, layers_of, removed
from mesa.engine import alibi, passes, rotary, structure
from mesa.engine.attention import (
    EXECUTORS,
    AttentionHooks,
    by_head,
    check_executor,
    fused_jointly,
    hooked_attention,
    scores_only,
)
from mesa.engine.compiled import check_eager, check_not_traced, is_accelerator
from mesa.engine.cpu import BLOCK
from mesa.engine.passes import LayerKind
from mesa.engine.rope import STEPS, Rotation, positions
from mesa.engine.schedule import JointSchedule, Member, Schedule, Span
from mesa.errors import Refused
from mesa.families import Family, family_of, passed
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

_SLOW_FROM_TOKENS = 1024
"""Tokens of a pass from which on a warning says that attention is slow."""

Observer = Callable[[int, Sequence[int], Schedule, Tensor, Tensor, float], None]
"""Is shown what is about to go to an executor: (layer, query heads, schedule, query, key, scaling)."""


class Attachment:
    """A method on a model.

    `layers`: those with attention; `as_trained`: of these, which the method leaves as they are, with their window in
    tokens. `calls` counts, per layer, how often the method's executor ran; `heads` names the query heads in which it
    last obeyed the method's plan, under tensor parallelism those of this rank: the others attended as trained.
    `state`: of the layers that carry one, if any. `observer`, if set, sees what executors are passed.
    """

    def __init__(self, model: PreTrainedModel, method: Method, executor: str, prompt_length: int | None) -> None:
        self.model, self.method, self.executor, self.prompt_length = model, method, executor, prompt_length
        self.name = f"{NAME}{id(self):x}"
        self.decoder: Any = decoder_of(model)
        self._names = list(inspect.signature(self.decoder.forward).parameters)
        self._family, rotates = family_of(model.config.model_type), is_rotary(model.config.model_type)
        self._modules = structure.paths(self.decoder)
        originals = structure.rotaries(self.decoder, self._modules) if rotates else {}
        self.rotary_modules: dict[str, nn.Module] = {path: self._modules[path] for path, _ in originals}
        self._fresh: dict[Any, Any] = {
            key: rotary.fresh_rotary(module) for key, module in originals.items() if method.uses_model_rope
        }
        self._frozen: dict[Any, Any] = {key: rotary.frozen_rotary(module) for key, module in originals.items()}
        self._attends = self._attending() if rotates else {}
        norms = {path for attends in self._attends.values() for path in attends.norms or ()}
        self.norms: dict[str, Callable[..., Tensor]] = {path: self._modules[path].forward for path in norms}
        self._norm_weights: dict[Any, Any] = {}
        self.state = structure.state_of(model) if rotates else None
        self.layers = sorted({attends.layer for attends in self._attends.values()} or range(len(layers_of(model))))
        self._check_chosen()
        self.as_trained = structure.layers_as_trained(model, method)
        self._kinds = {attends.kind for attends in self._attends.values() if attends.kind is not None}
        self._by_length = any(frozen.by_length for frozen in self._frozen.values())
        self._chosen: dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._cached_at: tuple[int, Tensor] | None = None
        self._kept: dict[LayerKind, dict[Any, Any]] = {}
        self.slopes = None if rotates else alibi.slopes(self.decoder)
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
        """Refused for a chosen layer that has no module, or that the method would leave as it is."""
        method, count = self.method, len(layers_of(self.model))
        option, chosen = ("heads", dict(method.heads or ())) if method.layers is None else ("layers", method.layers)
        idle = structure.idle_layers(self.model, method) if chosen else {}
        for layer in chosen:
            if layer >= count:  # configs may count a module once for each run, or its parts
                raise Refused(
                    f"{method.name}: {option} names layer {layer}; this model has modules of layers 0-{count - 1}"
                )
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
        self.generating.generated_length = None
        self.generating.mark_own_pass((*args, *kwargs.values()))
        if self.generating.generated_length is None:  # `generate` was asked when it began
            check_eager(self.model)

    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Lays out the coming pass: lengths, padding, and one plan for each padding."""
        check_not_traced()
        kwargs = {**dict(zip(self._names, args, strict=False)), **kwargs} if args else kwargs
        inputs = kwargs.get("input_ids")
        inputs = kwargs.get("inputs_embeds") if inputs is None else inputs
        if inputs is None:  # which the model refuses
            return
        if inputs.dim() < 2 or not inputs.numel():
            raise Refused(f"the input has shape {tuple(inputs.shape)}: a pass needs (row, token), one of each at least")
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
            raise passes.MethodNotApplied(self.not_applied_message())
        filled_for = passes.prompt_length_of(cache, self._block) if past else None
        if past and filled_for is None:
            raise Refused(f"the cache of {past} tokens was not filled under {self.method.name}; start with a new one")
        requested = kwargs.get("output_attentions") or (not past and self.decoder.config.output_attentions)
        if requested and self.executor == "fused":
            raise Refused("the fused executor has no attention weights for output_attentions; use executor='dense'")
        generated = self.generating.length(inputs)
        prompt_length = filled_for or self.prompt_length or generated or new
        full_length = max(prompt_length, self.prompt_length or generated or 0)
        mask, at = kwargs.get("attention_mask"), kwargs.get("position_ids")
        real = None
        if generated is not None and past >= generated:  # both are generate's own
            real, at = passes.continued_tokens(cache, batch, past, new), None
        if real is None:
            mask, at = passes.on_cpu(mask, kwargs.get("position_ids"))
            real = passes.real_tokens(mask, batch, past + new, full_length, generated is not None)
            if past and isinstance(cache, passes.InBlock):
                passes.check_cached(cache, real, past)
        if filled_for and not self.prompt_length and generated and generated != filled_for:
            prompt_length = passes.resolve_prompt_length(
                self.method, self._frequencies, real, past, filled_for, generated
            )
            self.generating.set_prompt_length(prompt_length)
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
        number, offset = divmod(int(index), STEPS)
        cached = self._cached_at
        if cached is None or cached[0] != number:
            steps = torch.arange(number * STEPS, (number + 1) * STEPS)[None]
            cached = self._cached_at = number, positions(self.method.cached_position, steps)
        return cached[1][:, offset : offset + 1]

    def _group(self, rows: Tensor, padding: Tensor, start: int, length: int, prompt: int) -> passes.RowGroup:
        """Rows with one padding, of whose `length` tokens those from `start` on are passed."""
        plan = self.method.plan(length, prompt)
        if type(self.method) not in METHODS.values():
            check_plan(self.method.name, plan, length, start)
        everywhere = self.method.layers is None and self.method.heads is None and not self.as_trained
        schedule, baseline = (
            plan and Schedule(plan, start, self.method.cached_position, slopes=self.slopes)
            for plan in (plan, None if everywhere else self._origin.plan(length))
        )
        assert schedule is not None
        return passes.RowGroup(rows, padding, schedule, baseline, self._rotations(prompt))

    def _rotations(self, prompt_length: int) -> Mapping[LayerKind, Rotation | None]:
        """What rotates states in each kind of layer, in a row with a prompt of this length."""
        rotations: dict[LayerKind, Rotation | None] = {}
        with self._lock if self._by_length else nullcontext():
            for frozen in self._frozen.values() if self._by_length else ():
                rotary.settle(frozen, prompt_length)
            for kind in self._kinds:
                frozen = self._frozen[kind[:2]]
                frequencies, kept = frozen.inv_freq, self._kept.setdefault(kind, {})
                if frozen.by_length:  # `settle` writes into them
                    frequencies, kept = frequencies.clone(), None
                rotations[kind] = Rotation(kind.layout, frequencies, frozen.angle_dtype, frozen.base, kept)
        return rotations

    def _frequencies(self, prompt_length: int) -> list[list[float]]:
        """The inverse frequencies in each kind of layer, in a row with a prompt of this length."""
        return [
            rotation.frequencies.tolist()
            for rotation in self._rotations(prompt_length).values()
            if rotation is not None
        ]

    def rotary_forward(self, path: str, module: Any, *args: Any, **kwargs: Any) -> Any:
        """What a rotary module gives for the running pass: cos and sin, or both as one, as keys are cached."""
        running = self.running
        if running is None:
            again = any(getattr(part, "gradient_checkpointing", False) for part in self.decoder.modules())
            raise passes.MethodNotApplied(
                f"{self.method.name}: gradient checkpointing is not supported on this {self.model.config.model_type} "
                "model: a layer that it computes again asks its rotary module for positions after the pass; turn it off"
                if again
                else self.not_applied_message()
            )
        key = (path, structure.requested_kind(module, args, kwargs))
        running.placed.add(key)
        positions = running.cached if running.padded else running.cached[:1]
        arguments = structure.with_positions(module, args, kwargs, positions)
        if not (self._frozen[key].by_length and len(running.groups) > 1):
            return self._rotary_output(key, running.groups[:1], arguments)
        parts = [  # each group chooses its frequencies by its own length
            self._rotary_output(key, [group], _of_rows(arguments, group.rows)) for group in running.groups
        ]
        joined = tuple(part.new_zeros(len(running.cached), *part.shape[1:]) for part in parts[0])
        for group, part in zip(running.groups, parts, strict=True):
            for into, some in zip(joined, part, strict=True):
                into[group.rows] = some
        return joined

    def _rotary_output(self, key: Any, groups: list[passes.RowGroup], arguments: dict[str, Any]) -> Any:
        """What the model's rotary module gives: as on its first text, or with the frequencies of the first group."""
        with self._lock:
            if self.method.uses_model_rope:
                module = self._fresh[key]
                rotary.restart(module)
            else:
                module = self._frozen[key]
                rotations = (
                    rotation for group in groups for kind, rotation in group.rotations.items() if kind[:2] == key
                )
                for rotation in rotations if module.by_length else ():
                    assert rotation is not None
                    module.inv_freq = rotation.frequencies.clone()  # `settle` writes into it
            inner = module.module if key[1] else module
            states = next(states for states in arguments.values() if isinstance(states, Tensor))
            apart = {
                name: value.to(states.device)
                for name, value in arguments.items()
                if isinstance(value, Tensor) and value.device != states.device
            }
            return inner(**{**arguments, **apart})

    def mask(self, *args: Any, **kwargs: Any) -> passes.ForwardPass | None:
        """What the model's layers are passed in the mask's place: the pass; the plan masks, padding included."""
        return self.running and self.running.seeing(passes.span_of(kwargs))

    def check_ran(self, layer: int, *_: Any) -> None:
        """Raises `MethodNotApplied` when the method's executor did not run in a layer of the running pass."""
        running = self.running
        if running is not None and layer not in running.ran:
            raise passes.MethodNotApplied(self.not_applied_message(layer))

    def not_applied_message(self, layer: int | None = None) -> str:
        """Why another attention than the method's is computed, and what to do."""
        name = self.method.name
        if not self.attached:
            return (
                f"the `with` block of {name} has ended, but a pass from inside it goes on (another thread, or a layer "
                "that gradient checkpointing computes again); let it end, backward() included, in the block"
            )
        where = "a layer" if layer is None else f"layer {layer}"
        return (
            f"{name} is attached, but {where} does not run it: its attention is not called through transformers' "
            "AttentionInterface, or was chosen again inside the block; leave set_attn_implementation alone there, and "
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
                    f"{self.method.name}: the model was passed a cache, which holds {held} tokens after a pass up to "
                    f"token {running.total}: its layers fill another, or none, so that the next pass would begin again"
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
        running = self._running_pass(module, attention_mask, dropout)
        arguments = structure.known_arguments(module, self.model, self._family, kwargs)
        self._warn_of_soft_cap(arguments["softcap"], query)
        attends = self._attends_in(module, running)
        query, key, value = _autocast(query, key, value)
        dim, value_dim = query.shape[-1], value.shape[-1]
        scale = (dim**-0.5 if scaling is None else scaling) * arguments["factor"]
        if query.shape[2] > 1 or self.slopes is not None:  # a token's attention takes values of fewer dims as cached
            value = _pad_dims(value, dim)
        with self._lock:
            self.calls[attends.layer] += 1
        query, key, hooks = self._hook_states(attention_hooks, running, query, key, value, attends.norms)
        query, key = _pad_dims(query, value_dim), _pad_dims(key, value_dim)
        weight = _pad_dims(self.norm_weights(attends.norms, query), value_dim, 1.0) if attends.norms else None
        heads, chosen = self._heads_in(attends.layer, module, query.shape[1])
        self.heads[attends.layer] = chosen
        first_key = self._check_cached_keys(attends.layer, running, query, key)
        executor = scores_only if hooks else EXECUTORS[self.executor]
        scoring = arguments["softcap"], arguments["s_aux"], weight
        call = _LayerCall(self, attends, running.span, heads, chosen, executor, scale, scoring)
        output, weights = None if hooks else call.jointly(running, first_key, query, key, value), None
        if output is None and running.padded:
            unseen = -math.inf if hooks else 0.0
            output, weights = _padded(call.by_plan, running.groups, unseen, first_key, query, key, value)
        elif output is None:
            output, weights = call.by_plan(running.groups[0], first_key, query, key, value)
        if hooks:
            if weights is None:  # all rows are padding
                weights = query.new_full((*query.shape[:3], key.shape[2]), -math.inf)
            output, weights = hooked_attention(hooks, weights, value, arguments["s_aux"])
        running.ran.add(attends.layer)
        return output[..., :value_dim].transpose(1, 2).contiguous(), weights

    def _running_pass(self, module: Any, attention_mask: Any, dropout: float) -> passes.ForwardPass:
        """The pass that a layer is in, which is in the mask's place; refused where it is not this attachment's."""
        if dropout:
            raise Refused(f"attention dropout={dropout} is not supported while a method is attached; use model.eval()")
        if not isinstance(attention_mask, passes.ForwardPass):
            raise passes.MethodNotApplied(self.not_applied_message(getattr(module, "layer_idx", None)))
        if attention_mask.owner is not self:  # a layer of an earlier block, computed again by gradient checkpointing
            raise passes.MethodNotApplied(attention_mask.owner.not_applied_message())
        return attention_mask

    def _warn_of_soft_cap(self, softcap: float | None, query: Tensor) -> None:
        """Warns once of a soft cap on a CPU, whose kernel has none."""
        slow = softcap is not None and query.shape[2] > _SLOW_FROM_TOKENS and not is_accelerator(query.device)
        if slow and self.executor == "fused" and not self._hinted:
            self._hinted = True
            warnings.warn(
                f"the scores of this {self.model.config.model_type} model are soft-capped, which no kernel knows: "
                "attention is in plain operations, several times slower on long prompts",
                stacklevel=3,
            )

    def _attends_in(self, module: Any, running: passes.ForwardPass) -> structure.Attends:
        """How a module attends; refused where its rotary module did not give it a method's positions."""
        attends = self.attends(module)
        if attends.kind is not None and attends.kind[:2] not in running.placed:
            raise passes.MethodNotApplied(
                f"{self.method.name} is attached, but the model's rotary module, which gives it its positions, was "
                "replaced inside the block; replace it before the block"
            )
        return attends

    def _hook_states(
        self, hooks: AttentionHooks | None, running: passes.ForwardPass, query: Tensor, key: Tensor, value: Tensor,
        norms: tuple[str, ...] | None,
    ) -> tuple[Tensor, Tensor, AttentionHooks | None]:  # fmt: skip
        """Queries and keys through a bridge's hooks, and those if scores and weights are to go through as well.

        norms: those of queries and of keys after the rotation, if any, whose weights hooks are to see.
        """
        if hooks is None:
            return query, key, None
        if norms:
            of_query, of_key = (self.norm_weights((path,), query) for path in norms)
            query, key = hooks.rotated(query * of_query, key * of_key)
            query, key = query / of_query, key / of_key
        else:
            query, key = hooks.rotated(query, key)
        full = self.executor == "dense" or hooks.watched or self._differentiated(query, key, value)
        return query, key, hooks if full or (running.padded and running.total <= BLOCK) else None

    def norm_weights(self, paths: tuple[str, ...], like: Tensor) -> Tensor:
        """The product of the weights (dim,) of norms after the rotation; a token takes what the prompt computed."""
        own: list[Any] = [self._modules[path].weight for path in paths]
        key = None
        if not (torch.is_grad_enabled() or any(weight.is_inference() for weight in own)):
            key = *own, *(weight._version for weight in own), like.dtype, like.device
            if like.shape[-2] == 1 and key in self._norm_weights:
                return self._norm_weights[key]
        first, *others = (structure.weight_of(self.norms[path], like) for path in paths)
        product = math.prod(others, start=first)
        if key:
            self._norm_weights[key] = product
        return product

    def _check_cached_keys(self, layer: int, running: passes.ForwardPass, query: Tensor, key: Tensor) -> int:
        """The first token whose key is there: above 0 where a sliding layer's cache has dropped some."""
        first_key = running.total - key.shape[2]
        seen = running.span.size - 1 + query.shape[2] if running.span else running.total
        if first_key > 0 and key.shape[2] < min(seen, running.total):
            raise Refused(
                f"the cache has dropped {first_key} tokens that layer {layer} of this {self.model.config.model_type} "
                "model sees, or is not the one that the model was passed: pass past_key_values=DynamicCache()"
            )
        return first_key

    def _heads_in(self, layer: int, module: Any, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The query heads of a layer that are in this process, `count` of them, and of those the method's."""
        if (layer, count) not in self._chosen:
            heads = () if layer in self.as_trained else self.method.heads_in(layer)
            total = heads_of(self.model.config, layer)
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
        """Whether gradients of these are requested; warns the first time, as the fused executor has none."""
        requested = torch.is_grad_enabled() and any(part.requires_grad for part in states)
        if requested and not self._warned:
            self._warned = True
            warnings.warn(
                f"gradients are on, and the fused executor has none: {self.method.name} runs the dense one, with "
                "O(T^2) memory; use torch.no_grad() where none are needed",
                stacklevel=2,
            )
        return requested

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
        hooks += [layers[layer].register_forward_hook(partial(self.check_ran, layer)) for layer in self.layers]
        try:
            called = attention_called(self.model, self.name, self.attention, self.mask)
            with removed(hooks), replaced(self), passes.generating_noted(self.model, self.generating), called:
                self.attached = True
                yield
        finally:
            self.attached = False
            self._block.open = False


@dataclass(frozen=True)
class _LayerCall:
    """How one call of a layer's attention goes: by which executor, in which heads by the method's plan.

    heads: the query heads of this process; chosen: those of the method. scoring: soft cap, sinks and query weight.
    """

    attachment: Attachment
    attends: structure.Attends
    span: Span | None
    heads: tuple[int, ...]
    chosen: tuple[int, ...]
    executor: Callable[..., Any]
    scaling: float
    scoring: tuple[Any, Any, Any]

    def by_plan(self, group: passes.RowGroup, first_key: int, *states: Tensor) -> tuple[Tensor, Tensor | None]:
        """A group's attention output and weights: by the method's plan in the chosen heads, else as trained."""
        if self.chosen in (self.heads, ()):
            schedule = self._schedule(group, self.chosen == self.heads, first_key)
            return self._execute(range(len(self.heads)), schedule, *states)
        at = [self.heads.index(head) for head in self.chosen]
        method, baseline = (self._schedule(group, by_method, first_key) for by_method in (True, False))
        return by_head(self._execute, method, baseline, at, *states, self.scaling)

    def jointly(self, running: passes.ForwardPass, first_key: int, *states: Tensor) -> Tensor | None:
        """All rows' and heads' output at once; None where there is one plan for all, or they are done one by one."""
        (query, key, value), apart = states, self.chosen not in (self.heads, ())
        one = not (running.padded or apart) or self.executor is not EXECUTORS["fused"]
        observed = self.attachment.observer is not None or self.attachment.slopes is not None
        if one or observed or not is_accelerator(query.device):
            return None
        sees = self.attends.kind, running.span, first_key, self.chosen
        if sees not in running.joint:
            start, members = running.total - query.shape[2], self._members(running, first_key, query.shape[2])
            joint = JointSchedule.of(members, len(query), start, first_key, running.total) if members else None
            running.joint[sees] = joint
        schedule = running.joint[sees]
        if schedule is None:
            return None
        return fused_jointly(schedule.scoring(*self.scoring), query, key, value, self.scaling)

    def _members(self, running: passes.ForwardPass, first_key: int, new: int) -> list[Member]:
        """The schedules of all rows and heads; none where padding lies between tokens, or no row has a token."""
        heads = tuple(number for number, head in enumerate(self.heads) if head in self.chosen)
        others = tuple({*range(len(self.heads))}.difference(heads))
        split = ((True, heads), (False, others)) if heads and others else ((bool(heads), None),)
        members = list[Member]()
        for group, (by_method, mine) in product(running.groups, split):
            if group.first is None:
                return []
            schedule = group.schedule(by_method, self.attends.kind, self.span, group.dropped(first_key, new))
            rows = tuple(group.rows.tolist()) if running.padded else None
            members.append(Member(schedule, rows, group.first, mine))
        return members

    def _schedule(self, group: passes.RowGroup, by_method: bool, first_key: int) -> Schedule:
        return group.schedule(by_method, self.attends.kind, self.span, first_key).scoring(*self.scoring)

    def _execute(
        self, at: Sequence[int], schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, *_: Any
    ) -> tuple[Tensor, Tensor | None]:
        """What the executor returns for the heads at these places; the observer, if any, is shown its input."""
        if self.attachment.observer is not None:
            heads = tuple(self.heads[index] for index in at)
            self.attachment.observer(self.attends.layer, heads, schedule, query, key, self.scaling)
        return self.executor(schedule, query, key, value, self.scaling)


def _autocast(*states: Tensor) -> tuple[Tensor, ...]:
    """States in autocast's dtype, if it is on: rotary's output is float32 there, values are not."""
    device = states[0].device.type
    if not torch.is_autocast_enabled(device):
        return states
    return tuple(part.to(torch.get_autocast_dtype(device)) for part in states)


def _pad_dims(states: Tensor, dim: int, value: float = 0.0) -> Tensor:
    """States with at least `dim` dims a head: kernels take queries, keys and values of one size."""
    missing = dim - states.shape[-1]
    return torch.nn.functional.pad(states, (0, missing), value=value) if missing > 0 else states


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
    output, weights = query.new_zeros(*query.shape[:3], value.shape[3]), None
    for group in groups:
        rows, queries, keys, first = group.places(first_key, query.shape[2], query.device)
        if isinstance(queries, slice) and queries.start == queries.stop:
            continue
        parts = [
            passes.gather_rows(query, rows, queries),
            *(passes.gather_rows(states, rows, keys) for states in (key, value)),
        ]
        row_output, row_weights = by_plan(group, first, *parts)
        passes.scatter_rows(output, rows, queries, row_output)
        if row_weights is not None:
            if weights is None:
                weights = row_weights.new_full((*query.shape[:3], key.shape[2]), unseen)
            queries, keys = group.real_places(first_key, query.shape[2])
            weights[group.rows[:, None, None], :, queries[:, None], keys] = row_weights.permute(0, 2, 3, 1)
    return output, weights


def _of_rows(arguments: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """A rotary module's arguments for some rows of the batch."""
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in arguments.items()}


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
    family: Family | None = None,
) -> Iterator[Attachment]:
    """Attaches a method to a model for the length of a `with` block.

    A layer whose sliding window or chunk holds no distance of M or more stays as trained, unless the method names it
    (`layers=`, `heads=`); a warning says so where that is every layer. The model is restored after it, also by an
    error. Batches may be padded on either side; `generate` needs left padding, as without a method. A KV cache filled
    in the block serves only there. Threads may share the block; passes, and backward() under gradient checkpointing,
    must end in it.

    Args:
        model: A Hugging Face model, also one within `bridge`.
        method: The method.
        executor: 'fused': O(T) memory, no gradients; 'dense': O(T^2) memory, gradients, attention weights. Default
            'fused'. On a `bridge` layers whose scores or weights are hooked are dense in either case, as are all where
            gradients are on.
        prompt_length: Tokens of the full prompt, padding included, where several calls give it; chunks follow from it.
            Default: what `generate` is given, or the first call with an empty cache. Your own loop without a cache must
            state it.
        family: What no pass finds on the model (docs/new-family.md), for models of its type while the block lasts.
            Default: the row of its type, of this package or of an installed one, if any.

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
    if not (isinstance(model, nn.Module) and getattr(model, "config", None) and hasattr(model, "generate")):
        message = "is not a Hugging Face model that generates; give applied(model, method)"
        raise Refused(f"applied: a {type(model).__name__} {message}")
    if prompt_length is not None:
        check_length("applied", "prompt_length", prompt_length, 1)
    block = ExitStack()
    with passed(model.config.model_type, family):
        check_method(model.config, method)
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
