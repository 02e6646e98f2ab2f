"""One forward pass under a method: its tokens' positions, a schedule for each padding, and the caches it fills.

A pass goes through the layers in the attention mask's place, so that every layer has its own pass's, whichever thread
runs it, and gradient checkpointing, which computes a layer again later, gives it the same one again.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, wraps
from itertools import count
from threading import local
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, QuantizedCache, StaticCache
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from mesa.decoder import replaced
from mesa.engine.compiled import check_eager
from mesa.engine.rope import Rotation
from mesa.engine.schedule import JointSchedule, Schedule, Span
from mesa.errors import Failed, Refused
from mesa.methods import Method
from mesa.outside import cache_in
from mesa.plan import same_plan

_PACKED = "texts are packed into a row: a method's plan is for one text, so give texts rows of their own, padded"


LayerKind = Any
"""How a kind of layer rotates: a `structure.LayerRotation`; None where it does not."""


def span_of(mask: Mapping[str, Any]) -> Span | Refused | None:
    """What layers see by the arguments of a mask function of transformers': a span of the past, or all of it (None).

    A Refused, for whoever uses the mask, where it is not the past's, or neither a window nor a chunk of it.
    """
    size, sees = mask.get("local_size"), mask.get("mask_function")
    if sees is None:
        return None
    if getattr(sees, "__closure__", ()) is None:  # it says the same in every pass
        return _plain_span(sees, size)
    return _span(sees, size, mask.get("device"))


def _span(sees: Callable[..., Any], size: int | None, device: Any = None) -> Span | Refused | None:
    """`span_of` for a mask function and its window or chunk."""
    other = Refused("a layer sees other tokens than the past, or a window or chunk of it: no plan can tell which")
    if _by_token(sees):
        return other
    far = 1 << 20
    back = [0, -1, far] if size is None else [0, -1, size - 1, size - 1, size]
    queries = torch.tensor([far, far, far, far + 1, far][: len(back)])
    pairs = torch.zeros_like(queries), torch.zeros_like(queries), queries, queries - torch.tensor(back)
    try:  # on the CPU, where nothing waits for a device
        seen = sees(*pairs)
    except RuntimeError:  # it holds tensors of the model's device: the left padding of chunks
        seen = sees(*(part.to(device) for part in pairs))
    itself, next_one, *edge, last = torch.broadcast_to(torch.as_tensor(seen), queries.shape).tolist()
    span = None if size is None else Span(size, chunked=not all(edge))
    if not itself or next_one or last != (size is None):
        return other
    return span


def _by_token(sees: Any) -> bool:
    """Whether a mask function reads a number of each token (row, token), such as those of a prefix that sees ahead."""
    held = [cell.cell_contents for cell in getattr(sees, "__closure__", None) or ()]
    parts = [part for each in held for part in (each if isinstance(each, tuple) else [each])]
    return any(part.dim() > 1 if isinstance(part, Tensor) else _by_token(part) for part in parts)


_plain_span = lru_cache(maxsize=16)(_span)


Index = slice | Tensor
"""Tokens or rows: a range, or where they are none, an index that is on the states' device."""

Places = tuple[Index, Index, Index, int]


def _indexed(index: Tensor, device: torch.device) -> Index:
    first, last = (int(index[0]), int(index[-1])) if len(index) else (0, -1)
    return slice(first, last + 1) if last - first + 1 == len(index) else index.to(device, non_blocking=True)


@dataclass
class RowGroup:
    """Rows of a batch with the same padding, and their schedule.

    real: whether each token so far is not padding. rotations: what rotates states in each kind of layer.
    baseline_schedule: Origin's, where some heads have it.
    """

    rows: Tensor
    real: Tensor
    method_schedule: Schedule
    baseline_schedule: Schedule | None
    rotations: Mapping[LayerKind, Rotation | None]
    by_layer: dict[tuple[Any, ...], Schedule] = field(default_factory=dict)
    _places: dict[tuple[Any, ...], Places] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens so far, padding left out."""
        return self.method_schedule.plan.length

    @cached_property
    def first(self) -> int | None:
        """Where the first token is; None where padding lies between tokens."""
        tokens = self.real.nonzero()[:, 0]
        first, last = int(tokens[0]), int(tokens[-1])
        return first if last - first + 1 == len(tokens) else None

    def places(self, first_key: int, new: int, device: torch.device) -> Places:
        """Where the real tokens are, among the last `new` and among the keys from `first_key` on.

        And the number of keys that the cache has dropped, as `dropped` tells it.
        """
        key = first_key, new, device
        if key not in self._places:
            dropped = self.dropped(first_key, new)
            indices = self.rows, *self.real_places(first_key, new)
            rows, queries, keys = (_indexed(index, device) for index in indices)
            self._places[key] = rows, queries, keys, dropped
        return self._places[key]

    def dropped(self, first_key: int, new: int) -> int:
        """How many keys a cache that begins at `first_key` has dropped; Refused where padding follows real tokens."""
        dropped = int(self.real[:first_key].sum()) if first_key else 0
        queries, keys = self.real_places(first_key, new)
        if dropped and len(queries) and int(keys[-1]) >= len(keys):
            raise Refused(
                f"a sliding layer's cache has dropped keys of row {int(self.rows[0])}, which its tokens after the "
                "padding see; set tokenizer.padding_side='left'"
            )
        return dropped

    def real_places(self, first_key: int, new: int) -> tuple[Tensor, Tensor]:
        """The queries and the keys of `places`, on the CPU."""
        return self.real[len(self.real) - new :].nonzero()[:, 0], self.real[first_key:].nonzero()[:, 0]

    def schedule(self, by_method: bool, kind: LayerKind, span: Span | None, first_key: int) -> Schedule:
        """A layer's schedule, the method's or Origin's, by kind and what it sees; without keys before `first_key`."""
        sliding = (span, first_key) if span and span.size < self.length else None
        key = (by_method, kind, sliding)
        if key not in self.by_layer:
            schedule = self.method_schedule if by_method else self.baseline_schedule
            assert schedule is not None
            schedule = schedule.rotating_by(self.rotations.get(kind))
            self.by_layer[key] = schedule.seeing(*sliding) if sliding else schedule
        return self.by_layer[key]


class MethodNotApplied(Failed, AttributeError):
    """Attention that is not the attached method's was about to be computed."""


class ForwardPass:
    """What a pass is computed with; raises `MethodNotApplied` where it is used as the mask that it stands in for.

    groups: those rows that have tokens so far. total: tokens so far, padding included. cached: positions
    (batch, token) that keys are cached at. padded: whether any row has padding. owner: the attachment; its
    `not_applied_message` tells what went wrong. ran, placed: the layers that attended by it, and the rotary
    modules, by path and kind of layer, that were passed its positions. joint: the groups' schedules as one, by what a
    layer sees and which heads it changes; None where padding lies between tokens.
    """

    def __init__(self, groups: list[RowGroup], total: int, cached: Tensor, owner: Any) -> None:
        self.groups, self.total, self.cached, self.owner = groups, total, cached, owner
        self.padded = len(cached) > sum(len(group.rows) for group in groups if group.length == total)
        self.ran: set[int] = set()
        self.placed: set[tuple[Any, ...]] = set()
        self.joint: dict[tuple[Any, ...], JointSchedule | None] = {}
        self._span: Span | Refused | None = None
        self.stock: Any = None

    @property
    def span(self) -> Span | None:
        """What the layers see that are passed this: all of the past, or a part; Refused for anything else."""
        if isinstance(self._span, Refused):
            raise self._span
        return self._span

    def seeing(self, span: Span | Refused | None) -> ForwardPass:
        """The same pass for layers that see this part of the past."""
        if span is None:
            return self
        other = copy.copy(self)
        other._span = span
        return other

    def to(self, *args: Any, **kwargs: Any) -> ForwardPass:
        """Itself: a model may move or convert its mask."""
        return self

    def __getattr__(self, name: str) -> Any:
        """Raises `MethodNotApplied`."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise MethodNotApplied(self.owner.not_applied_message())

    def __getitem__(self, index: Any) -> Any:
        """Raises `MethodNotApplied`."""
        raise MethodNotApplied(self.owner.not_applied_message())

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises `MethodNotApplied`."""
        running = next(argument for argument in (*args, *(kwargs or {}).values()) if isinstance(argument, cls))
        raise MethodNotApplied(running.owner.not_applied_message())


def gather_rows(states: Tensor, rows: Index, tokens: Index) -> Tensor:
    """Those rows and tokens of `states` (batch, head, token, dim)."""
    if isinstance(rows, Tensor) and isinstance(tokens, Tensor):
        return states[rows[:, None], :, tokens].transpose(1, 2)
    return states[rows][:, :, tokens] if isinstance(rows, slice) else states[:, :, tokens][rows]


def scatter_rows(states: Tensor, rows: Index, tokens: Index, part: Tensor) -> None:
    """Writes `part` to those rows and tokens of `states`."""
    if isinstance(rows, Tensor) and isinstance(tokens, Tensor):
        states[rows[:, None], :, tokens] = part.transpose(1, 2)
    elif isinstance(rows, slice):
        states[rows][:, :, tokens] = part
    else:
        states[:, :, tokens][rows] = part


def on_cpu(*tensors: Any) -> list[Any]:
    """Tensors copied to the CPU, those of integers as one: each copy waits for the device."""
    apart = [part for part in tensors if isinstance(part, Tensor) and part.device.type != "cpu"]
    if not apart or any(part.is_floating_point() for part in apart):  # a mask of 0.5 is refused, not rounded
        return [part.cpu() if isinstance(part, Tensor) else part for part in tensors]
    flat = torch.cat([part.flatten().long() for part in apart]).cpu().split([part.numel() for part in apart])
    copies = iter(copy.view(part.shape).to(part.dtype) for copy, part in zip(flat, apart, strict=True))
    return [next(copies) if any(part is other for other in apart) else part for part in tensors]


def check_positions(position_ids: Tensor | None, real: Tensor, index: Tensor) -> None:
    """Refused for positions (1 or batch, token) of one's own, on the CPU.

    real: whether each token so far is not padding. index: the passed tokens' own positions, below 0 for padding.
    """
    if position_ids is None:
        return
    shape = tuple(getattr(position_ids, "shape", ()))
    if shape[-2:] not in (needed := [(1, index.shape[1]), (len(real), index.shape[1])]):
        raise Refused(f"position_ids is a {type(position_ids).__name__} of shape {shape}; needed is {needed[-1]}")
    if not ((position_ids != index) & (index >= 0)).any():
        return
    ends = (position_ids.diff(dim=-1) <= 0) & (index[:, 1:] > 0)
    if ends.any():
        *_, row, token = ends.nonzero()[0].tolist()
        raise Refused(f"position_ids begin again at token {token + 1} of row {row}: {_PACKED}")
    remedy = "set tokenizer.padding_side='left', or " if (~real[:, 1:] & real[:, :-1]).any() else ""
    raise Refused(
        f"position_ids differ from the tokens' places, which a method's positions follow; {remedy}leave them out"
    )


def real_tokens(mask: Any, batch: int, length: int, prompt_length: int, generating: bool) -> Tensor:
    """Whether each token (batch, token) is not padding by a mask on the CPU; Refused for one of anything else.

    Warns where a full row is padding, whose output then means nothing; in `generate` a Refused.
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
    real = mask.bool()
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


def check_cached(cache: Any, real: Tensor, past: int) -> None:
    """Refused where the `past` cached tokens are padding by another mask than the one that they were placed by."""
    before, real = cache.real[:, :past], real[:, :past]
    if before.shape == real.shape and not torch.equal(before, real):
        row, token = (before != real).nonzero()[0].tolist()
        was, now = ("a token", "padding") if before[row, token] else ("padding", "a token")
        raise Refused(
            f"attention_mask makes position {token} of row {row} {now}, which was cached as {was}; cached keys keep "
            "their positions: pass the same mask with a 1 for each new token"
        )


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
class AppliedBlock:
    """One `with` block of a method; open until it ends."""

    method: str
    open: bool = True

    def __deepcopy__(self, memo: Any) -> AppliedBlock:
        """Itself: the copies of a cache were filled in the same block."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """One that has ended: what is pickled may be read anywhere."""
        return AppliedBlock, (self.method, False)


class InBlock:
    """Mixin: a KV cache filled inside a `with` block; `update()` raises once the block ended."""

    block: AppliedBlock
    prompt_length: int
    real: Tensor
    get_seq_length: Any

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """As the class above has it, in the block."""
        if not self.block.open:
            raise MethodNotApplied(
                f"the `with` block in which this cache of {self.get_seq_length()} tokens was filled has ended, and its "
                "keys serve only there; let all passes end in the block, and start with a new cache after it"
            )
        return super().update(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue], a cache's

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """As the class above has it; `real` follows the rows, here and below."""
        super().reorder_cache(beam_idx)  # pyright: ignore[reportAttributeAccessIssue]
        self.real = self.real[beam_idx.cpu()]

    def batch_select_indices(self, indices: Tensor) -> None:
        """As the class above has it."""
        super().batch_select_indices(indices)  # pyright: ignore[reportAttributeAccessIssue]
        self.real = self.real[torch.as_tensor(indices).cpu()]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """As the class above has it."""
        super().batch_repeat_interleave(repeats)  # pyright: ignore[reportAttributeAccessIssue]
        self.real = self.real.repeat_interleave(repeats, 0)


class MethodCache(InBlock, DynamicCache):
    """A dynamic one."""


class MethodQuantizedCache(InBlock, QuantizedCache):
    """A quantized one."""


class MethodStaticCache(InBlock, StaticCache):
    """A static one; its layers are passed the keys that it holds, without the places still empty."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """As the class above has it, up to the last token."""
        states = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return tuple(held[:, :, : self.real.shape[1]] for held in states)


CACHES: dict[type, type] = {
    DynamicCache: MethodCache,
    QuantizedCache: MethodQuantizedCache,
    StaticCache: MethodStaticCache,
}
"""What a cache of each supported class becomes when it is filled in a block."""


def fill(cache: Any, block: AppliedBlock, prompt_length: int, real: Tensor) -> None:
    """Notes in a cache, and so in its copies, the block that fills it, its prompt's length and its real tokens."""
    cache.block, cache.prompt_length, cache.real = block, prompt_length, real
    cache.__class__ = CACHES.get(type(cache), type(cache))


def continued_tokens(cache: Any, batch: int, past: int, new: int) -> Tensor | None:
    """Which tokens are real (batch, token) where `generate` adds some to those in a cache; None: it has to be read."""
    real = getattr(cache, "real", None)
    if real is None or len(real) != batch or real.shape[1] < past or not real[:, past - 1].all():
        return None
    return torch.cat([real[:, :past], real.new_ones(batch, new)], 1)


def prompt_length_of(cache: Any, block: AppliedBlock) -> int | None:
    """Its prompt's length where the cache, or what it is a copy of, was filled in this block; else None."""
    return cache.prompt_length if getattr(cache, "block", None) is block else None


@dataclass
class GeneratePrompt:
    """The prompt of a `generate`: token ids or embeddings (row, token, ...), and its full length (tokens)."""

    passed: tuple[Tensor, ...]
    length: int
    added: int = 0
    """Tokens that preparing the input put before it, as prompt tuning does."""

    @classmethod
    def of(cls, inputs: Any, kwargs: dict[str, Any]) -> GeneratePrompt:
        """From `generate`'s arguments; where only what follows a cache is passed, the mask tells the length."""
        prompts = (kwargs.get("inputs_embeds"), kwargs.get("input_ids"), inputs)
        passed = tuple(tokens for tokens in prompts if isinstance(tokens, Tensor))
        length, mask = passed[0].shape[1] if passed else 1, kwargs.get("attention_mask")
        if cache_in(kwargs) is not None and isinstance(mask, Tensor):
            length = max(length, mask.shape[-1])
        return cls(passed, length)

    def begins(self, text: Tensor) -> bool:
        """Whether a text (row, token, ...) goes on from this prompt, several rows from one, or is a beginning of it."""
        return not self.passed or any(_begins(prompt, text) for prompt in self.passed)


def _begins(prompt: Tensor, text: Tensor) -> bool:
    """`GeneratePrompt.begins` for one tensor."""
    shared = min(prompt.shape[1], text.shape[1])
    if prompt.dim() != text.dim() or not shared or len(text) % len(prompt):
        return False
    rows = prompt[:, :shared].repeat_interleave(len(text) // len(prompt), 0)
    return torch.equal(rows.to(text), text[:, :shared])


def resolve_prompt_length(
    method: Method, frequencies: Callable[[int], Any], real: Tensor, past: int, filled_for: int, prompt_length: int
) -> int:
    """The length of the prompt (tokens) that `past` cached tokens belong to, filled as a prompt of `filled_for` tokens.

    `generate` now has one of `prompt_length`: that, where a plan for it puts the cached tokens as they are. Else
    `filled_for`, with a warning: what comes after it then counts as decoded. frequencies: the model's rotary ones for a
    prompt of some length, in a form that compares.
    """
    total = real.shape[1]
    counts = [real[:, :end].sum(1) + max(0, end - total) for end in (filled_for, prompt_length)]
    rows = {(int(real[row, :past].sum()), int(counts[0][row]), int(counts[1][row])) for row in range(len(real))}
    plans = ((method.plan(cached, one), method.plan(cached, other)) for cached, one, other in rows if cached)
    alike = all(frequencies(one) == frequencies(other) for cached, one, other in rows if cached)
    if alike and all(same_plan(*both) for both in plans):
        return prompt_length
    warnings.warn(
        f"{method.name}: the cache's {past} tokens were read as a prompt of {filled_for}, and a prompt of "
        f"{prompt_length} would place them otherwise; what follows them counts as decoded. State "
        f"applied(..., prompt_length={prompt_length}) before the cache is filled, or generate without it",
        stacklevel=2,
    )
    return filled_for


class Generating(local):
    """Of each thread: the innermost `generate` that runs, and which pass is its own.

    A pass is generate's own where its input is the very tensor that `generate` prepared last. Any other, whoever makes
    it while `generate` runs, belongs to the cache or the text that it is passed.
    """

    prompt: GeneratePrompt | None = None
    prepared: Tensor | None = None
    expected: int | None = None
    """Tokens of the next pass of a loop without a cache, where that loop prepares no inputs."""
    generated_length: int | None = None

    @contextmanager
    def inside(self, prompt: GeneratePrompt, expected: int | None = None) -> Iterator[None]:
        """A `generate` with this prompt, or a step of one, runs for as long as this lasts."""
        before = self.prompt, self.expected
        self.prompt, self.expected, self.prepared, self.generated_length = prompt, expected, None, None
        try:
            yield
        finally:
            self.prompt, self.expected = before
            self.prepared = self.generated_length = None

    def mark_prepared(self, text: Tensor, inputs: dict[str, Any]) -> None:
        """Of inputs made from a text: that they are generate's own, where the text is its prompt or goes on from it."""
        self.prepared = None
        tokens, cache = inputs.get("inputs_embeds"), cache_in(inputs)
        tokens = inputs.get("input_ids") if tokens is None else tokens
        goes_on = cache is not None and cache.get_seq_length() > 0
        if self.prompt is not None and tokens is not None and (goes_on or self.prompt.begins(text)):
            self.prompt.added = max(self.prompt.added, tokens.shape[1] - text.shape[1])
            self.prepared = tokens

    def mark_own_pass(self, inputs: Iterable[Any]) -> None:
        """Of a pass that begins, with these inputs: whether it is generate's own."""
        if self.prompt is None:
            return
        own = self.prepared is not None and any(value is self.prepared for value in inputs)
        if own:
            self.generated_length, self.prepared = self.prompt.length + self.prompt.added, None

    def length(self, tokens: Tensor) -> int | None:
        """The prompt's length (tokens) for the pass with these tokens, if it is generate's own; else None."""
        self.mark_own_pass((tokens,))
        length, self.generated_length = self.generated_length, None
        if length is None and self.prompt is not None and self.expected == tokens.shape[1]:
            length = self.prompt.length if self.prompt.begins(tokens) else None
            self.expected = None
        return length

    def set_prompt_length(self, length: int) -> None:
        """What counts as the prompt's length (tokens) from now on, as the cache that it goes on from was filled."""
        if self.prompt is not None:
            self.prompt.length, self.prompt.added = length, 0

    def steps(self, tokens: Tensor, steps: Iterator[Any]) -> Iterator[Any]:
        """The steps of a loop from these tokens on, each of which makes one pass, without a cache of all tokens."""
        prompt = GeneratePrompt((tokens,), tokens.shape[1])
        for expected in count(tokens.shape[1]):
            with self.inside(prompt, expected):
                step = next(steps, None)
            if step is None:
                return
            yield step


def _no_continuous_batching(*args: Any, **kwargs: Any) -> None:
    raise Refused(
        "a method does not run in continuous batching (generate_batch, init_continuous_batching), whose cache it does "
        "not know; call generate, with prompts padded on the left"
    )


def generating_noted(model: Any, generating: Generating) -> AbstractContextManager[None]:
    """What `model.generate` is passed and prepares goes into `generating`, for as long as this lasts.

    With a static cache it neither compiles the pass, whose plan changes from token to token, nor makes its masks.
    Guidance by a negative prompt has a cache of its own also where generate has none: only so its prompt is known.
    """
    model = next((part for part in model.modules() if isinstance(part, GenerationMixin)), model)  # PEFT's stands around
    generate, processors = model.generate, model._get_logits_processor

    def prepared_by(prepare: Any) -> Any:
        @wraps(prepare)
        def preparing(input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            inputs = prepare(input_ids, *args, **kwargs)
            if kwargs.get("is_first_iteration") and generating.prompt is None and cache_in(inputs) is None:
                raise Refused(
                    "without a cache a method needs the prompt's length, and this `generate` was taken from the model "
                    "before the block; call model.generate in the block"
                )
            embedded = kwargs.get("inputs_embeds") if kwargs.get("is_first_iteration") else None
            generating.mark_prepared(input_ids if embedded is None else embedded, inputs)
            return inputs

        preparing.__dict__["noted"] = True
        return preparing

    @wraps(generate)
    def noting(inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        check_eager(model)
        if not hasattr(model.prepare_inputs_for_generation, "noted"):  # PEFT sets its own
            model.prepare_inputs_for_generation = prepared_by(model.prepare_inputs_for_generation)
        with generating.inside(GeneratePrompt.of(inputs, kwargs)):
            return generate(inputs, *args, **{"disable_compile": True, **kwargs})

    @wraps(processors)
    def with_cache(*args: Any, **kwargs: Any) -> Any:
        chosen = processors(*args, **kwargs)
        for processor in chosen:
            if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
                processor.unconditional_context["use_cache"] = True
        return chosen

    return replaced(
        (model, "generate", noting),
        (model, "prepare_inputs_for_generation", prepared_by(model.prepare_inputs_for_generation)),
        (model, "_get_logits_processor", with_cache),
        (model, "create_masks_for_generate", lambda attention_mask, **_: attention_mask),
        (model, "init_continuous_batching", _no_continuous_batching),
    )
