"""Attaches a method to a Hugging Face causal language model, and always takes it off again.

How: while attached, the model's rotary module gives every token the method's `cached_position` in place of its own, so
that its attention caches keys there and hands them to our attention function, which turns them on as the plan says.
A cached key is never rotated anew where its position does not change.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from mesa.engine import families
from mesa.engine.attention import EXECUTORS, Schedule
from mesa.engine.heads import by_head
from mesa.engine.rope import CachedRotary, Rotary
from mesa.methods import Method, Origin
from mesa.support import ROTARY, check_method

_NAME = "mesa_lens_"
"""What the name of every attention function that we register begins with."""


Observer = Callable[[int, Sequence[int], Schedule, Tensor, Tensor, float], None]
"""Is shown what an executor is about to be given: (layer, query heads, schedule, query, key, scaling)."""


@dataclass
class _Group:
    """Rows of a batch with the same left padding, and their schedule."""

    rows: Tensor
    pad: int
    woven: Schedule
    as_trained: Schedule
    windowed: dict[tuple[bool, int, int], Schedule] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens so far, padding left out."""
        return self.woven.plan.length

    def schedule(self, weave: bool, window: int | None, first_key: int) -> Schedule:
        """A layer's schedule: woven or not, with a sliding window or none; its cache holds keys from `first_key` on."""
        whole = self.woven if weave else self.as_trained
        if not window or window >= self.length:
            return whole
        known = (weave, window, first_key)
        if known not in self.windowed:
            self.windowed[known] = whole.within(window, first_key)
        return self.windowed[known]


class Attachment:
    """A method on a model.

    `calls` counts, per layer, how often the method's executor ran; `woven` names the query heads in which it last
    obeyed the method's plan: the others attended as trained. `observer`, if set, sees what executors are given.
    """

    def __init__(self, model: PreTrainedModel, method: Method, executor: str, prompt_length: int | None) -> None:
        self.model, self.method, self.executor, self.prompt_length = model, method, executor, prompt_length
        self.decoder: Any = model.get_decoder()
        self._names = list(inspect.signature(self.decoder.forward).parameters)
        self.rotary: Rotary | None = None
        self.cached_rotary: CachedRotary | None = None
        self.slopes: Tensor | None = None
        self._frozen: Any = None
        if model.config.model_type in ROTARY:
            self._frozen = families.frozen_rotary(self.decoder.rotary_emb)
            self.rotary = Rotary(self._frozen)
            self.cached_rotary = CachedRotary(self.decoder.rotary_emb if method.as_trained else self._frozen)
        else:
            self.slopes = families.slopes(self)
        self.calls: Counter[int] = Counter()
        self.observer: Observer | None = None
        self.woven: dict[int, tuple[int, ...]] = {}
        self._origin = Origin(trained_length=method.trained_length)
        self._prompt_lengths: WeakKeyDictionary[Cache, int] = WeakKeyDictionary()
        self._groups: list[_Group] = []
        self._attention_module: Any = None

    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Lays out the coming pass: lengths, padding, and one plan for each padding."""
        kwargs = {**dict(zip(self._names, args, strict=False)), **kwargs}
        inputs = kwargs.get("input_ids")
        inputs = kwargs["inputs_embeds"] if inputs is None else inputs
        batch, new = inputs.shape[:2]
        cache = kwargs.get("past_key_values")
        if cache is not None and not isinstance(cache, DynamicCache):
            raise ValueError(f"a {type(cache).__name__} is not supported; pass a DynamicCache")
        past = 0 if cache is None else int(cache.get_seq_length())
        if past and cache not in self._prompt_lengths:
            raise ValueError(
                f"the cache of {past} tokens was not filled under {self.method.name}; start with a new one"
            )
        if self.executor == "fused" and (kwargs.get("output_attentions") or self.decoder.config.output_attentions):
            raise ValueError("the fused executor has no attention weights for output_attentions; use executor='dense'")
        prompt_length = self._prompt_lengths[cache] if past and cache is not None else self.prompt_length or new
        if cache is not None:
            self._prompt_lengths[cache] = prompt_length
        pads = _left_padding(kwargs.get("attention_mask"), batch, past + new)
        index = torch.arange(past, past + new) - torch.tensor(pads)[:, None]
        _check_positions(kwargs.get("position_ids"), index)
        if self.rotary is not None and self.cached_rotary is not None:
            families.settle(self._frozen, prompt_length - min(pads))
            self.rotary.frequencies = self._frozen.inv_freq.clone()
            self.rotary.forget()
            self.cached_rotary.positions = self.method.cached_position(index.clamp(min=0))
        self._groups = []
        for pad in sorted(set(pads)):
            length, start = past + new - pad, max(0, past - pad)
            turn = None if self.rotary is None else self._turn
            plans = (self.method.plan(length, prompt_length - pad), self._origin.plan(length))
            woven, as_trained = (
                Schedule(plan, start, self.method.cached_position, turn, self.slopes) for plan in plans
            )
            rows = torch.tensor([row for row, its_pad in enumerate(pads) if its_pad == pad])
            self._groups.append(_Group(rows, pad, woven, as_trained))

    def after_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Remembers the prompt's length for a cache that the model made by itself."""
        cache = getattr(output, "past_key_values", None)
        if cache is not None and cache not in self._prompt_lengths:
            self._prompt_lengths[cache] = self.prompt_length or int(cache.get_seq_length())

    def attention(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """What the model calls in place of its attention: output (batch, query, head, dim), and weights or None."""
        if dropout:
            raise ValueError(
                f"attention dropout={dropout} is not supported while a method is attached; use model.eval()"
            )
        self._attention_module = module
        self.calls[module.layer_idx] += 1
        window = kwargs.get("sliding_window")
        total = self._groups[0].pad + self._groups[0].length
        first_key = total - key.shape[2]  # above 0 where a sliding layer's cache has dropped keys
        if len(self._groups) == 1 and self._groups[0].pad == 0:
            output, weights = self._by_plan(self._groups[0], window, first_key, query, key, value, scaling)
            return output.transpose(1, 2).contiguous(), weights
        output = torch.zeros_like(query)
        weights = query.new_zeros(*query.shape[:3], key.shape[2]) if self.executor == "dense" else None
        for group in self._groups:
            rows, skip = group.rows, max(0, group.pad - (total - query.shape[2]))
            dropped = max(0, group.pad - first_key)
            parts = (query[rows, :, skip:], key[rows, :, dropped:], value[rows, :, dropped:])
            own_first = max(0, first_key - group.pad)
            output[rows, :, skip:], row_weights = self._by_plan(group, window, own_first, *parts, scaling)
            if weights is not None and row_weights is not None:
                weights[rows, :, skip:, dropped:] = row_weights
        return output.transpose(1, 2).contiguous(), weights

    def _by_plan(
        self, group: _Group, window: int | None, first_key: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> tuple[Tensor, Tensor | None]:
        """A group's attention output and weights: by the method's plan in its heads of the layer, else as trained."""
        assert self._attention_module is not None
        layer, every = self._attention_module.layer_idx, tuple(range(query.shape[1]))
        chosen = self.method.heads_in(layer)
        chosen = every if chosen is None else chosen
        self.woven[layer] = chosen
        if chosen in (every, ()):
            return self._execute(every, group.schedule(chosen == every, window, first_key), query, key, value, scale)
        woven, as_trained = (group.schedule(weave, window, first_key) for weave in (True, False))
        return by_head(self._execute, woven, as_trained, chosen, query, key, value, scale)

    def _execute(
        self, heads: Sequence[int], schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> tuple[Tensor, Tensor | None]:
        """What the executor returns for these query heads; the observer, if any, is shown what it is given."""
        assert self._attention_module is not None
        if self.observer is not None:
            self.observer(self._attention_module.layer_idx, heads, schedule, query, key, scale)
        return EXECUTORS[self.executor](schedule, query, key, value, scale)

    def _turn(self, states: Tensor, positions: Tensor, plan: Any) -> Tensor:
        assert self.rotary is not None
        assert self._attention_module is not None
        return self.rotary(states, positions, plan, self._attention_module)


def _check_positions(given: Tensor | None, index: Tensor) -> None:
    """ValueError for positions (1 or batch, token) of one's own; `index` are the tokens', below 0 for padding."""
    if given is not None and ((given.cpu() != index) & (index >= 0)).any():
        raise ValueError(
            "position_ids differ from the tokens' places, which a method's positions follow; leave them out"
        )


def _left_padding(mask: Tensor | None, batch: int, length: int) -> list[int]:
    """Tokens of left padding of every row; ValueError for any other mask."""
    if mask is None:
        return [0] * batch
    if mask.dim() != 2 or mask.shape[1] != length:
        raise ValueError(f"attention_mask has shape {tuple(mask.shape)}; needed is a padding mask ({batch}, {length})")
    kept = mask.bool()
    if (kept[:, 1:] < kept[:, :-1]).any():
        raise ValueError("attention_mask pads on the right; set tokenizer.padding_side='left'")
    pads = (length - kept.sum(1)).tolist()
    if length in pads:
        raise ValueError(f"row {pads.index(length)} of attention_mask is all padding; drop it from the batch")
    return pads


def check_executor(executor: str) -> None:
    """ValueError for an unknown executor."""
    if executor not in EXECUTORS:
        raise ValueError(f"unknown executor {executor!r}; known: {', '.join(EXECUTORS)}")


def check_free(model: PreTrainedModel) -> None:
    """ValueError when a method is attached to the model already."""
    if str(model.config._attn_implementation).startswith(_NAME):
        raise ValueError("a method is already attached to this model; leave its `with` block first")


@contextmanager
def applied(
    model: PreTrainedModel, method: Method, *, executor: str = "fused", prompt_length: int | None = None
) -> Iterator[Attachment]:
    """Attaches `method` for the length of a `with` block; the model is restored after it, also by an error.

    executor: 'fused' (O(T) memory, no gradients) or 'dense' (O(T^2) memory, gradients, attention weights).
    prompt_length: tokens of the whole prompt (padding included) where it is given in several calls; Mesa's chunks
    follow from it. By default the first call with an empty cache is the whole prompt, so assisted decoding (its first
    call holds candidates too) and use_cache=False (every call is a first one) need it stated.
    Batches may be padded on the left. A KV cache filled inside the block serves only inside it.
    Raises ValueError for an unsupported model or an unknown executor.

    >>> with mesa.applied(model, mesa.ReRoPE(trained_length=4096)):
    ...     model.generate(**inputs)
    """
    check_executor(executor)
    check_method(model.config, method)
    check_free(model)
    attachment = Attachment(model, method, executor, prompt_length)
    decoder, name = attachment.decoder, f"{_NAME}{id(attachment):x}"
    before = model.config._attn_implementation
    replaced = families.forwards_replaced if attachment.rotary is None else families.rotary_replaced
    AttentionInterface.register(name, attachment.attention)
    AttentionMaskInterface.register(name, _no_mask if attachment.slopes is None else _empty_mask)
    hooks = (
        decoder.register_forward_pre_hook(attachment.before_forward, with_kwargs=True),
        decoder.register_forward_hook(attachment.after_forward, with_kwargs=True),
    )
    try:
        with replaced(attachment):
            model.config._attn_implementation = name
            yield attachment
    finally:
        model.config._attn_implementation = before
        for hook in hooks:
            hook.remove()
        AttentionInterface._global_mapping.pop(name)
        AttentionMaskInterface._global_mapping.pop(name)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The plan masks; padding is read from the 2-D mask in `before_forward`."""


def _empty_mask(*args: Any, **kwargs: Any) -> Tensor:
    """As `_no_mask`, for models that convert what they get."""
    return torch.empty(0)
