"""One forward pass under a method: its tokens' positions, a schedule for each padding, and the caches it fills.

A pass goes through the layers in the attention mask's place, so that every layer has its own pass's, whichever thread
runs it, and gradient checkpointing, which computes a layer anew later, gives it the same one again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import wraps
from threading import local
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, QuantizedCache, StaticCache

from mesa.decoder import replaced
from mesa.engine.families import Kind
from mesa.engine.rope import Rotation
from mesa.engine.schedule import Schedule
from mesa.errors import Failed, Refused

_PACKED = "texts are packed into a row: a method's plan is for one text, so give texts rows of their own, padded"


@dataclass
class Group:
    """Rows of a batch with the same padding, and their schedule.

    real: whether each token so far is no padding. turns: what turns states in each kind of layer.
    """

    rows: Tensor
    real: Tensor
    woven: Schedule
    as_trained: Schedule
    turns: Mapping[Kind, Rotation | None]
    by_layer: dict[tuple[Any, ...], Schedule] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens so far, padding left out."""
        return self.woven.plan.length

    def places(self, first_key: int, new: int) -> tuple[Tensor, Tensor, int]:
        """Where the tokens are that are no padding, among the last `new` and among the keys from `first_key` on.

        And how many keys of theirs were dropped before. Refused where that was for the sake of padding after them.
        """
        dropped, keys = int(self.real[:first_key].sum()), self.real[first_key:].nonzero()[:, 0]
        queries = self.real[len(self.real) - new :].nonzero()[:, 0]
        if dropped and len(queries) and int(keys[-1]) >= len(keys):
            raise Refused(
                f"a sliding layer's cache has dropped keys of row {int(self.rows[0])}, which its tokens after the "
                "padding see; set tokenizer.padding_side='left'"
            )
        return queries, keys, dropped

    def schedule(self, weave: bool, kind: Kind, window: int | None, first_key: int) -> Schedule:
        """A layer's schedule: woven or not, by kind and sliding window, if any; keys are held from `first_key` on."""
        sliding = (window, first_key) if window and window < self.length else None
        known = (weave, kind, sliding)
        if known not in self.by_layer:
            whole = replace(self.woven if weave else self.as_trained, turn=self.turns[kind])
            self.by_layer[known] = whole.within(*sliding) if sliding else whole
        return self.by_layer[known]


class Bypassed(Failed, AttributeError):
    """Attention that is not the attached method's was about to be computed."""


class Pass:
    """What a pass is computed with; raises `Bypassed` where it is used as the mask that it stands in for.

    groups: those rows that have tokens so far. total: tokens so far, padding included. cached: positions
    (batch, token) that keys are cached at. owner: the attachment; `why` tells what went wrong.
    """

    def __init__(self, groups: list[Group], total: int, cached: Tensor, owner: Any) -> None:
        self.groups, self.total, self.cached, self.owner = groups, total, cached, owner
        self.ran: set[int] = set()

    @property
    def padded(self) -> bool:
        """Whether any row has padding."""
        return len(self.cached) > sum(len(group.rows) for group in self.groups if group.length == self.total)

    def to(self, *args: Any, **kwargs: Any) -> Pass:
        """Itself: a model may move or convert its mask."""
        return self

    def __getattr__(self, name: str) -> Any:
        """Raises `Bypassed`."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise Bypassed(self.owner.why())

    def __getitem__(self, index: Any) -> Any:
        """Raises `Bypassed`."""
        raise Bypassed(self.owner.why())

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises `Bypassed`."""
        running = next(argument for argument in (*args, *(kwargs or {}).values()) if isinstance(argument, cls))
        raise Bypassed(running.owner.why())


def taken(states: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
    """Those rows and tokens of `states` (batch, head, token, dim)."""
    first, last = int(tokens[0]), int(tokens[-1])
    if last - first + 1 == len(tokens):
        return states[rows, :, first : last + 1]
    return states[rows[:, None], :, tokens].transpose(1, 2)


def check_positions(position_ids: Tensor | None, real: Tensor, index: Tensor) -> None:
    """Refused for positions (1 or batch, token) of one's own.

    real: whether each token so far is no padding. index: the given tokens' own positions, below 0 for padding.
    """
    if position_ids is None or not ((position_ids.cpu() != index) & (index >= 0)).any():
        return
    ends = (position_ids.cpu().diff(dim=1) <= 0) & (index[:, 1:] > 0)
    if ends.any():
        row, token = ends.nonzero()[0].tolist()
        raise Refused(f"position_ids begin anew at token {token + 1} of row {row}: {_PACKED}")
    remedy = "set tokenizer.padding_side='left', or " if (~real[:, 1:] & real[:, :-1]).any() else ""
    raise Refused(
        f"position_ids differ from the tokens' places, which a method's positions follow; {remedy}leave them out"
    )


def real_tokens(mask: Any, batch: int, length: int, prompt_length: int, generating: bool) -> Tensor:
    """Whether each token (batch, token) is no padding, on the CPU; Refused for a mask of anything else.

    Warns where a whole row is padding, whose output then means nothing; in `generate` a Refused.
    """
    if mask is None:
        return torch.ones(batch, length, dtype=torch.bool)
    shape = f"has shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"is a {type(mask).__name__}"
    if not isinstance(mask, Tensor) or mask.dim() > 2:
        raise Refused(
            f"attention_mask {shape}: which pairs are seen is the method's plan; give a padding mask "
            f"({batch}, {length}) or none, and packed texts rows of their own"
        )
    if mask.shape != (batch, length):
        every = (
            "" if mask.shape[-1] >= length else " of all tokens so far: without a method missing ones count as padding"
        )
        raise Refused(f"attention_mask {shape}; needed is a padding mask ({batch}, {length}){every}")
    mask, real = mask.cpu(), mask.cpu().bool()
    if (mask != real).any():
        value = mask[mask != real][0].item()
        raise Refused(f"attention_mask holds {value}, neither 0 nor 1; where it says that {_PACKED}")
    if length >= prompt_length and not real.any(1).all():
        row = int(real.any(1).logical_not().nonzero()[0])
        message = (
            f"row {row} of attention_mask is all padding; drop it from the batch, or, where more of the prompt "
            "follows, state its prompt_length"
        )
        if generating:  # transformers numbers the tokens after it from 2 on
            raise Refused(message)
        warnings.warn(message, stacklevel=2)
    return real


def check_prompt(real: Tensor, past: int, prompt_length: int) -> None:
    """Refused where a prompt that came in pieces turns out to be shorter in some row than was stated."""
    later = ~real[:, past:prompt_length] & real[:, :past].any(1, keepdim=True)
    if past and later.any():
        row = int(later.any(1).nonzero()[0])
        raise Refused(
            f"row {row} ends before the prompt of {prompt_length} tokens, the first of which were given before; give a "
            "prompt that is padded on the right in one call, or set tokenizer.padding_side='left'"
        )


@dataclass(eq=False)
class Block:
    """One `with` block of a method; open until it ends."""

    method: str
    open: bool = True

    def __deepcopy__(self, memo: Any) -> Block:
        """Itself: the copies of a cache were filled in the same block."""
        return self


class InBlock:
    """What a cache is when its keys were made in a block: it takes no others after it."""

    block: Block
    prompt_length: int
    get_seq_length: Any

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """As the class above has it, in the block."""
        if not self.block.open:
            raise Bypassed(
                f"the `with` block in which this cache of {self.get_seq_length()} tokens was filled has ended, and its "
                "keys serve only there; let all passes end in the block, and start with a new cache after it"
            )
        return super().update(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue], a cache's


class MethodCache(InBlock, DynamicCache):
    """A dynamic one."""


class MethodQuantizedCache(InBlock, QuantizedCache):
    """A quantized one."""


class MethodStaticCache(InBlock, StaticCache):
    """A static one; its layers are given the keys that it holds, without the places still empty."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """As the class above has it, up to the last token."""
        states = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return tuple(held[:, :, : int(self.get_seq_length(layer_idx))] for held in states)


CACHES: dict[type, type] = {
    DynamicCache: MethodCache,
    QuantizedCache: MethodQuantizedCache,
    StaticCache: MethodStaticCache,
}
"""What a cache of each supported class becomes when it is filled in a block."""


def fill(cache: Any, block: Block, prompt_length: int) -> None:
    """Notes in a cache, and so in its copies, the block that fills it and its prompt's length."""
    cache.block, cache.prompt_length = block, prompt_length
    cache.__class__ = CACHES.get(type(cache), type(cache))


def prompt_length_of(cache: Any, block: Block) -> int | None:
    """Its prompt's length where the cache, or what it is a copy of, was filled in this block; else None."""
    return cache.prompt_length if getattr(cache, "block", None) is block else None


class Prompt(local):
    """The length (tokens) of the prompt that this thread's `generate` was given; None outside of it."""

    length: int | None = None


def prompt_noted(model: Any, prompt: Prompt) -> AbstractContextManager[None]:
    """`model.generate` writes its prompt's length into `prompt` while it runs, for as long as this lasts.

    With a static cache it neither compiles the pass, whose plan changes from token to token, nor makes its masks.
    """
    generate = model.generate

    @wraps(generate)
    def noting(inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        prompts = (kwargs.get("inputs_embeds"), kwargs.get("input_ids"), inputs)
        before = prompt.length
        prompt.length = next((tokens.shape[1] for tokens in prompts if tokens is not None), 1)
        try:
            return generate(inputs, *args, **{"disable_compile": True, **kwargs})
        finally:
            prompt.length = before

    masks = "create_masks_for_generate"
    return replaced((model, "generate", noting), (model, masks, lambda attention_mask, **_: attention_mask))
