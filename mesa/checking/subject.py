"""The model under check: inputs and outputs of its attention, call by call, recorded during a forward pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from mesa.checking.oracle import Positions
from mesa.decoder import decoder_of, removed, replaced
from mesa.engine import structure
from mesa.engine.plug import Attachment
from mesa.errors import Failed, Refused, is_out_of_memory
from mesa.families import family_of
from mesa.methods import Method, Origin
from mesa.outside import attention_called, attention_function, cache_in, mask_function
from mesa.support import is_rotary, no_layer_acts


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


def _recording(calls: Calls, model: Any, known: Callable[[Any], structure.Attends], inner: Callable[..., Any]) -> Any:
    """The attention function `inner`, whose calls are recorded."""

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **kwargs: Any) -> Any:
        output, weights = inner(module, query, key, value, mask, *args, **kwargs)
        scaling = args[0] if args else kwargs.get("scaling")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        others = {name: value for name, value in kwargs.items() if name != "scaling"}
        scaling *= structure.known_arguments(module, model, family_of(model.config.model_type), others)["factor"]
        special = kwargs.get("softcap"), kwargs.get("s_aux")
        calls.windows.update(filter(None, [kwargs.get("sliding_window")]))
        calls.functions.append(AttentionCall(known(module), query, key, value, scaling, *special, output))
        return output, weights

    return attention


@contextmanager
def _attention_replaced(model: Any, function: Callable[..., Any], calls: Calls) -> Iterator[None]:
    """The model calls an attention function of ours, with full masks as for sdpa, and computes every token."""

    def mask(**kwargs: Any) -> Any:
        calls.windows.update(filter(None, [kwargs.get("local_size")]))
        return mask_function("sdpa")(**{**kwargs, "allow_is_causal_skip": False})

    unshortened = structure.full_prompts(decoder_of(model))
    name = f"mesa_lens_check_{id(model):x}"  # its own: another thread may check another model
    with attention_called(model, name, function, mask), replaced(*unshortened):
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
        key = path, structure.requested_kind(module, args, kwargs)
        frequencies: Any = places[key].inv_freq
        calls.frequencies[key] = frequencies.clone()  # which a long text may change in place

    handles = [
        modules[path].register_forward_hook(partial(keep, path=path), with_kwargs=True)
        for path in dict.fromkeys(path for path, _ in places)
    ]
    function = _recording(calls, model, lambda module: known[id(module)], _plain)
    with removed(handles), _attention_replaced(model, function, calls):
        yield calls


@contextmanager
def record_method(attachment: Attachment) -> Iterator[Calls]:
    """The calls of a model under a method."""
    calls, function = Calls(), attachment.attention
    attachment.attention = _recording(calls, attachment.model, attachment.attends, function)
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


ALLOWED = 8.0
"""How many times the effect of one more rounding two ways to compute the same may differ."""

STEPS = 6
"""Tokens that are decoded one by one."""

MOST_PRETENDED = 4096
"""The largest M that methods are made for while they are checked."""


class PromptSizes(NamedTuple):
    """A prompt of `prompt` tokens, and `length` with those decoded after it."""

    prompt: int
    length: int


@dataclass
class Stock:
    """What the stock model computes of a setting's tokens; of each attention call, how positions enter it."""

    logits: Tensor
    states: tuple[Tensor, ...]
    allowed: float
    allowed_states: list[float]
    calls: Calls = field(default_factory=Calls)
    unrotated: Sequence[AttentionCall] = ()
    positions: list[Positions] = field(default_factory=list)


@dataclass
class Subject:
    """A model, its tokenizer, and the M that methods are made for: one at which a short pass reaches beyond it.

    trained_length: M as it is, which says in which layers methods act.
    """

    model: Any
    tokenizer: Any
    pretended: int
    trained_length: int
    stock: dict[PromptSizes, Stock] = field(default_factory=dict)

    @property
    def settings(self) -> tuple[PromptSizes, PromptSizes]:
        """A prompt short of M that is decoded across it, and one beyond it."""
        half, beyond = STEPS // 2, 3 * self.pretended
        return PromptSizes(self.pretended - half, self.pretended + half), PromptSizes(beyond - STEPS, beyond)

    def acting(self, method: Method, trained_length: int | None = None) -> Method:
        """A method in the layers in which it acts at M; Refused where there are none. trained_length: 0: in all."""
        if not structure.windows(self.model) or isinstance(method, Origin):
            return method
        real = self.trained_length if trained_length is None else trained_length
        layers = structure.acting_layers(self.model, method, real)
        if not layers:
            sizes = structure.windows(self.model).values()
            raise Refused(no_layer_acts(method, self.model.config, sizes, real))
        return replace(method, layers=layers)

    def ids(self, length: int, row: int = 0) -> Tensor:
        """Random tokens (1, length) of the vocabulary, the same ones at every length."""
        draw = torch.Generator().manual_seed(row)
        most = min(self.model.config.vocab_size, getattr(self.tokenizer, "vocab_size", 0) or 2**31)
        return torch.randint(0, most, (1, length), generator=draw).to(self.model.device)

    def run_stock(self, setting: PromptSizes) -> Stock:
        """Runs the stock model on a setting's tokens, and once more with its rounding disturbed."""
        ids = self.ids(setting.length)
        try:
            plain = run(self.model, ids, output_hidden_states=True)
        except (RuntimeError, IndexError) as error:
            if is_out_of_memory(error):
                raise
            why = f"the stock model itself cannot read {setting.length} tokens ({error}); use a smaller --pretended"
            raise Failed(why) from error
        with rounding_perturbed(self.model):
            off = run(self.model, ids, output_hidden_states=True)
        pairs = zip((off.logits, *off.hidden_states), (plain.logits, *plain.hidden_states), strict=True)
        allowed, *allowed_states = (ALLOWED * max_difference(*pair) for pair in pairs)
        self.stock[setting] = Stock(plain.logits, plain.hidden_states, allowed, allowed_states)
        return self.stock[setting]

    def record_stock(self, setting: PromptSizes) -> None:
        """Notes a rotary stock model's attention calls; Refused where no method can be attached."""
        stock, ids = self.stock[setting], self.ids(setting.length)
        if is_rotary(self.model.config.model_type):
            with record_stock(self.model) as stock.calls:
                run(self.model, ids)
            stock.unrotated = before_rotation(self.model, ids, stock.calls)
            stock.positions = stock.calls.positions(decoder_of(self.model))


@torch.no_grad()
def run(model: Any, ids: Tensor, **kwargs: Any) -> Any:
    """The model's output for token ids; without a cache unless one is passed."""
    return model(ids, use_cache=cache_in(kwargs) is not None, **kwargs)


def max_difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest absolute difference; NaN where either holds one."""
    return float((ours.float() - theirs.float()).abs().max())


def array(states: Tensor) -> np.ndarray:
    """The states in float64."""
    return states.detach().double().cpu().numpy()


def unit(dtype: torch.dtype) -> float:
    """One unit in the last place of 1; of float64 that of float32, in which rotary's cos and sin are computed."""
    return torch.finfo(torch.float32 if dtype == torch.float64 else dtype).eps


@contextmanager
def rounding_perturbed(model: nn.Module) -> Iterator[None]:
    """Every parameterised module's output is off by one unit in the last place of its dtype, up or down at random."""
    draw = torch.Generator().manual_seed(0)

    def perturb(module: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        sign = torch.randint(0, 2, output.shape, generator=draw, dtype=torch.int8).to(output.device) * 2 - 1
        return output + output * (sign * unit(output.dtype)).to(output.dtype)

    leaves = [leaf for leaf in model.modules() if not [*leaf.children()] and [*leaf.parameters(recurse=False)]]
    with removed([leaf.register_forward_hook(perturb) for leaf in leaves]):
        yield


def perturbed(states: np.ndarray, dtype: torch.dtype, seed: int) -> np.ndarray:
    """Float64 states off by one unit in the last place of `dtype`, up or down at random."""
    sign = np.random.default_rng(seed).choice((-1.0, 1.0), states.shape)
    return states * (1 + sign * unit(dtype))
