"""How a model attends, found on the model itself by one short pass: no list of families.

The pass has the same tokens three times. The first two rows are at positions 0 and at their own: the difference between
the queries and keys that reach the attention call shows which dims rotate, in which layout and with whose frequencies;
the model's own attention on them is compared with the executor's. So a layer that is not understood is an error, never
a wrong number. In the third row the first token enters each layer changed, and attention gives what it gives the
second: where later tokens leave the layer changed too, it carries a state.
"""

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mesa.decoder import decoder_of, layers_of, removed, replaced
from mesa.device import not_finite
from mesa.engine.attention import dense
from mesa.engine.passes import ForwardPass, MethodNotApplied, span_of
from mesa.engine.rope import OfKind, RotaryLayout, Rotation
from mesa.engine.schedule import Schedule
from mesa.engine.state import TOLERANCE, CarriedState, carried_state
from mesa.errors import Refused
from mesa.families import Family, family_of
from mesa.methods import Method, Origin
from mesa.methods.base import only_distances
from mesa.outside import CACHES, attention_called, attention_function, mask_function
from mesa.plan import LARGEST, Plan, Region, token_index
from mesa.support import as_trained, is_rotary, no_layer_acts, windows_of

TOKENS = 32
"""Tokens of the probe's rows."""
_ROWS = 3

_WRAPPED = "_original_component"  # what a bridge's module holds


_SLICING = "_maybe_slice_kv_shared_inputs"
"""Gemma-4's method that leaves out prompt tokens in layers without keys of their own; a pass has them in all layers."""


def full_prompts(decoder: Any) -> list[tuple[Any, str, Any]]:
    """What `replaced` needs for a decoder to compute every token of a prompt in every layer."""
    return [(decoder, _SLICING, lambda *states, **_: states[:4])] if hasattr(decoder, _SLICING) else []


class LayerRotation(NamedTuple):
    """How a layer's queries and keys are rotated: by a module of the decoder, maybe with frequencies of a kind."""

    rotary: str
    kind: str | None
    layout: RotaryLayout


@dataclass(frozen=True)
class Attends:
    """What an attention module does: in which layer it is; how it rotates (None: not), and what norms follow that.

    window: tokens that it sees, itself included, of a sliding window or a chunk; None: all.
    """

    layer: int
    kind: LayerRotation | None
    norms: tuple[str, str] | None = None
    window: int | None = None


Structure = Mapping[str, Attends]
"""By the attention module's path in the decoder."""

Examined = tuple[Structure, tuple[int, ...]]
"""How the model attends, and the layers that carry a state."""
_cache: dict[tuple[Any, ...], Examined] = {}
_states: WeakKeyDictionary[nn.Module, CarriedState] = WeakKeyDictionary()


def structure_of(model: Any) -> Structure:
    """How the model attends; Refused where a method could not follow it."""
    return _examined(model)[0]


def state_of(model: Any) -> CarriedState | None:
    """The layers that carry a state, and what they get right, tried with this model's weights; None where none does."""
    carrying = _examined(model)[1]
    if not carrying:
        return None
    if model not in _states or _states[model].layers != carrying:
        with torch.no_grad(), _unhooked(model), _in_evaluation(model):
            _states[model] = carried_state(model, decoder_of(model), carrying, _place(model))
    return _states[model]


def idle_layers(model: Any, method: Method) -> dict[int, str]:
    """The layers that a method would leave as they are, and why: they have no attention, or no positions to change."""
    if not is_rotary(model.config.model_type) or isinstance(method, Origin):
        return {}
    kinds: dict[int, list[LayerRotation | None]] = {}
    for attends in structure_of(model).values():
        kinds.setdefault(attends.layer, []).append(attends.kind)
    turning = [layer for layer, several in kinds.items() if any(several)]
    names = ", ".join(map(str, sorted(kinds))), ", ".join(map(str, sorted(turning))) or "none"
    idle = dict.fromkeys(
        set(range(len(layers_of(model)))) - {*kinds}, f"which has no attention; layers with: {names[0]}"
    )
    if len(turning) < len(kinds) and only_distances(method):
        why = f"which has no positions, and the method changes distances only; layers with: {names[1]}"
        idle |= dict.fromkeys({*kinds} - {*turning}, why)
    return idle


def windows(model: Any) -> dict[int, int]:
    """The tokens (itself included) that a layer with a sliding window or chunks sees, by layer.

    None of a model whose rotary base grows with the prompt: its layers cannot be told apart (`mesa.support`).
    """
    rope = getattr(model.config, "rope_parameters", None) or {}
    if not is_rotary(model.config.model_type) or rope.get("rope_type") == "dynamic":
        return {}
    sizes: dict[int, int] = {}
    for attends in structure_of(model).values():
        sizes[attends.layer] = max(sizes.get(attends.layer, 0), attends.window or LARGEST)
    return {layer: size for layer, size in sizes.items() if size < LARGEST}


def acting_layers(model: Any, method: Method, trained_length: int | None = None) -> tuple[int, ...]:
    """The layers that a method changes where it names none.

    trained_length: M; default the method's; 0: also layers where no distance reaches M.
    """
    trained_length = method.trained_length if trained_length is None else trained_length
    reached = {layer for layer, size in windows(model).items() if size <= trained_length}
    return tuple(sorted({*range(len(layers_of(model)))} - reached - idle_layers(model, method).keys()))


def new_cache(model: Any) -> DynamicCache:
    """An empty cache: of the class that the model's module has for itself (MiniMax), or as its config asks for it.

    It keeps every token where the config's windows are not those of the model's masks (Moshi).
    """
    module = sys.modules[type(decoder_of(model)).__module__]
    own = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, DynamicCache)]
    if cls := next((value for value in own if value.__module__ == module.__name__), None):
        return cls()
    is_stated = not is_rotary(model.config.model_type) or windows(model) == windows_of(model.config)
    return DynamicCache(config=model.config) if is_stated else DynamicCache()


def layers_as_trained(model: Any, method: Method) -> dict[int, int]:
    """The layers that a method leaves as trained, with their window (`as_trained`); warns where those are all."""
    left = as_trained(windows(model), method)
    if left and not acting_layers(model, method):
        warnings.warn(no_layer_acts(method, model.config, left.values()), stacklevel=4)
    return left


def _examined(model: Any) -> Examined:
    """Both, found once for each key."""
    if (key := _key(model)) not in _cache:
        _cache[key] = _Probe(model).structure()
    return _cache[key]


def _key(model: Any) -> tuple[Any, ...]:
    """Class, config, family and modules, which may be changed between two blocks."""
    family = family_of(model.config.model_type)
    return (type(model), repr(model.config.to_dict()), family, *_classes(decoder_of(model)))


def _classes(module: nn.Module) -> list[Any]:
    """The classes of a module's parts, by name and in order; a walk by `named_modules` takes three times as long."""
    classes, left = [], [module]
    while left:
        part = left.pop()
        classes += [type(part), *part._modules]
        left += [child for child in part._modules.values() if child is not None]
    return classes


def _is_bridged(model: nn.Module) -> bool:
    return any(_WRAPPED in path.split(".") for path, _ in model.named_modules())


def paths(decoder: nn.Module) -> dict[str, nn.Module]:
    """The decoder's modules by path; of a bridge's, the ones inside."""
    return {_unwrapped(path): module for path, module in decoder.named_modules(remove_duplicate=False)}


def _unwrapped(path: str) -> str:
    return ".".join(part for part in path.split(".") if part != _WRAPPED) if _WRAPPED in path else path


def rotaries(
    decoder: nn.Module, known: Mapping[str, nn.Module] | None = None
) -> dict[tuple[str, str | None], nn.Module]:
    """The decoder's rotary modules by path and kind of layer: those with inverse frequencies that take positions.

    known: its `paths`, where they are at hand.
    """
    rotaries: dict[tuple[str, str | None], nn.Module] = {}
    seen = set[int]()
    for path, module in (paths(decoder) if known is None else known).items():
        names = [name for name in module._buffers if name.endswith("inv_freq")]
        names = [name for name in names if "original" not in name]
        if not names or id(module) in seen or position_argument(module) is None:
            continue
        seen.add(id(module))
        for name in names:
            kind = name.removesuffix("inv_freq").removesuffix("_") or None
            rotaries[path, kind] = module if kind is None else OfKind(module, kind)
    return rotaries


_parameters_of: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()
"""Of functions that may be a model's own and hold it."""


def _parameters(function: Any) -> tuple[str, ...]:
    """The names of a function's parameters, which each pass asks for."""
    if function not in _parameters_of:
        _parameters_of[function] = tuple(inspect.signature(function).parameters)
    return _parameters_of[function]


def position_argument(module: Any) -> str | None:
    """The name by which a rotary module's forward takes positions."""
    forward = getattr(module, "_old_forward", None) or type(module).forward
    names = _parameters(getattr(forward, "__func__", forward))
    return next((name for name in ("position_ids", "positions") if name in names), None)


def requested_kind(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The kind of layer whose frequencies a call of a rotary module asks for; None where it has one only."""
    return _given(module, args, kwargs).get("layer_type")


def _given(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments, by name."""
    return {**dict(zip(_parameters(type(module).forward)[1:], args, strict=False)), **kwargs}


def with_positions(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], positions: Tensor) -> dict[str, Any]:
    """The arguments of a call of a rotary module, with `positions` (batch, token) in the place of its own."""
    given, name = _given(module, args, kwargs), position_argument(module)
    assert name is not None
    own = given[name]
    if own.shape[-1] != positions.shape[-1]:
        raise Refused(f"a {type(module).__name__} gives positions to {own.shape[-1]} states, not to the tokens")
    if own.dim() == 3:  # mrope: one position three times
        positions = positions[None].expand(own.shape[0], -1, -1)
    return {**given, name: positions[0] if own.dim() == 1 else positions}


@dataclass
class _Probe:
    """One pass over a model, and more where its layers carry a state."""

    model: Any
    carrying: set[int] = field(default_factory=set)
    layers: dict[str, Attends] = field(default_factory=dict)
    normed: dict[int, tuple[nn.Module, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.decoder: Any = decoder_of(self.model)
        self.paths = paths(self.decoder)
        self.path_of = {id(module): path for path, module in reversed(self.paths.items())}
        self.requested = set[tuple[str, str | None]]()
        layers = list(enumerate(layers_of(self.model)))
        self.layer_of = {id(module): number for number, layer in reversed(layers) for module in layer.modules()}
        self.rotaries = rotaries(self.decoder)

    def not_applied_message(self, layer: int | None = None) -> str:
        """Why no method can be attached; a `ForwardPass` says so where it is used as a mask."""
        hint = "; for a TransformerBridge use mesa.bridge(model, tokenizer)" if _is_bridged(self.model) else ""
        return self._refusal(
            "its attention makes a mask of its own, which a method's plan cannot stand in for, or is not called "
            f"through transformers' AttentionInterface{hint}"
        )

    def _refusal(self, reason: str) -> str:
        return f"model type {self.model.config.model_type!r} is not supported: {reason}"

    @torch.no_grad()
    def structure(self) -> Examined:
        """By the path of each attention module; and the layers that carry a state."""
        embedding = self.model.get_input_embeddings()
        if not isinstance(getattr(embedding, "weight", None), Tensor):
            raise Refused(self._refusal("its inputs are not one row of token ids"))
        ids = (
            torch.randint(0, embedding.weight.shape[0], (1, TOKENS), generator=torch.Generator().manual_seed(0))
            .expand(_ROWS, -1)
            .to(_place(self.model))
        )
        try:
            name = f"mesa_lens_probe_{id(self):x}"  # its own: another thread may try another model
            called = attention_called(self.model, name, self.attention, self.mask)
            with (
                _in_evaluation(self.model),
                _unhooked(self.model),
                self._at_two_places(),
                self._outputs_noted(),
                called,
            ):
                self.decoder(input_ids=ids, use_cache=False, **self._moved(ids))
        except Refused:
            raise
        except MethodNotApplied as error:
            raise Refused(str(error)) from error
        if not self.layers:
            raise Refused(self._refusal("its attention is not called through transformers' AttentionInterface"))
        embeddings = [module for module in self.decoder.modules() if isinstance(module, nn.Embedding)]
        if not self.rotaries and len(embeddings) > 1:  # one that may be of positions
            raise Refused(self._refusal("it has no rotary embeddings and no ALiBi, so no distances to change"))
        return self.layers, tuple(sorted(self.carrying))

    def _moved(self, ids: Tensor) -> dict[str, Tensor]:
        """Other positions for all rows but the first, from the second token on: what turns by them is not rotary."""
        if "position_ids" not in inspect.signature(self.decoder.forward).parameters:
            return {}
        own = torch.arange(TOKENS, device=ids.device)
        return {
            "position_ids": torch.stack([own, *[own + own.sign()] * (_ROWS - 1)]),
            "attention_mask": torch.ones_like(ids),
        }

    @contextmanager
    def _at_two_places(self) -> Iterator[None]:
        """The first row's tokens are all at position 0; rotary modules are as before after it."""

        def forward(module: Any, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            names = [name for name in ("x", "hidden_states") if name in inspect.signature(inner).parameters]
            states = args[0] if args else kwargs[names[0]]
            self.requested.add((self.path_of[id(module)], requested_kind(module, args, kwargs)))
            given, name = with_positions(module, args, kwargs, torch.zeros(1, TOKENS)), str(position_argument(module))
            own = torch.arange(TOKENS, device=states.device)
            rows = torch.stack([torch.zeros_like(own), *[own] * (_ROWS - 1)])
            at = given[name]
            given[name] = (rows[None].expand(at.shape[0], -1, -1) if at.dim() == 3 else rows).to(states.device)
            return inner(**given)

        modules = {id(self.paths[path]): self.paths[path] for path, _ in self.rotaries}
        changes = [(module, "forward", _bound(forward, module, module.forward)) for module in modules.values()]
        before = [(part, dict(vars(part))) for module in modules.values() for part in module.modules()]
        try:
            for part, _ in before:  # a short text resets dynamic frequencies, some in place
                buffers = part._buffers.items()
                part._buffers = {name: None if buffer is None else buffer.clone() for name, buffer in buffers}
            with replaced(*changes, *full_prompts(self.decoder)):
                yield
        finally:
            for part, state in before:
                vars(part).clear()
                vars(part).update(state)

    @contextmanager
    def _outputs_noted(self) -> Iterator[None]:
        """What norms give is known by where it is stored, for as long as it may be a query or a key."""

        def note(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self.normed[output.data_ptr()] = module, output  # held, so that its place is not another's

        norms = [
            module
            for module in self.paths.values()  # of a bridge's, the ones inside
            if isinstance(weight := getattr(module, "weight", None), Tensor) and weight.dim() == 1
        ]
        layers = list(enumerate(layers_of(self.model)))
        hooks = [layer.register_forward_hook(partial(self._check_layer, number)) for number, layer in layers]
        hooks += [layer.register_forward_pre_hook(_first_changed, with_kwargs=True) for _, layer in layers]
        with removed([*hooks, *(norm.register_forward_hook(note) for norm in norms)]):
            yield

    def _check_layer(self, number: int, layer: nn.Module, args: Any, output: Any) -> None:
        """Refused where positions reach a layer's output by another way than its attention calls, which are equal."""
        states = output[0] if isinstance(output, tuple) else output
        if not isinstance(states, Tensor) or len(states) != _ROWS:
            return
        if not states.isfinite().all():
            raise not_finite(self.model, f"states of layer {number}")
        if _is_carried(states):
            self.carrying.add(number)
        moved = float((states[1] - states[0])[1:].abs().max())
        allowed = max(TOLERANCE, _rounding(states)) * float(states.abs().max())
        if not moved <= allowed:
            raise Refused(
                self._refusal(
                    f"layer {number} uses positions outside of attention that is called through transformers' "
                    "AttentionInterface"
                )
            )

    def mask(self, **kwargs: Any) -> ForwardPass:
        """What layers are passed in the mask's place."""
        running = ForwardPass([], TOKENS, torch.zeros(_ROWS, TOKENS), self).seeing(span_of(kwargs))
        running.stock = lambda: mask_function("eager")(**{**kwargs, "dtype": torch.float32})
        return running

    def attention(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None,
        scaling: float | None = None, **kwargs: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """The model's own attention at its own positions, in all rows, after two were compared."""
        mixed = any(_is_carried(part.transpose(1, 2)) for part in (query, key, value))
        query, key, value = query[:2], key[:2], value[:2]
        path, mask = self.path_of[id(module)], attention_mask
        if not isinstance(mask, ForwardPass):
            raise Refused(self.not_applied_message())
        arguments = known_arguments(module, self.model, family_of(self.model.config.model_type), kwargs)
        scale: float = query.shape[-1] ** -0.5 if scaling is None else scaling
        if id(module) not in self.layer_of:
            raise Refused(self._refusal(f"its attention {path} is in none of its layers"))
        layer = self.layer_of[id(module)]
        if mixed:  # by a convolution before attention
            self.carrying.add(layer)
        if not all(states.isfinite().all() for states in (query, key, value)):
            raise not_finite(self.model, f"states of layer {layer - 1}" if layer else "embeddings")
        norms_before = [
            self.normed[states.data_ptr()][0] for states in (query, key) if states.data_ptr() in self.normed
        ]
        norms = tuple(norm for norm in norms_before if cast(Tensor, norm.weight).numel() == query.shape[-1])
        self.normed.clear()
        kind, norms = self._kind(layer, path, query, key, norms)
        names = tuple(self.path_of[id(norm)] for norm in norms) if norms else None
        window = mask.span.size if mask.span else None
        self.layers[path] = Attends(layer, kind, names, window)  # pyright: ignore[reportArgumentType]
        own = self._own(module, query, key, value, mask, scale, kwargs)
        self._compare(layer, own, query, key, value, mask, scale * arguments["factor"], arguments)
        return own.expand(_ROWS, -1, -1, -1), None

    def _kind(
        self, layer: int, own: str, query: Tensor, key: Tensor, norms: tuple[nn.Module, ...]
    ) -> tuple[LayerRotation | None, tuple[nn.Module, ...] | None]:
        """How these are rotated, and the norms that follow the rotation; Refused where that is not found."""
        allowed, after = _rounding(query), norms if len(norms) == 2 else None
        states = [query, key]
        if after:
            states = [part / weight_of(norm, part) for part, norm in zip(states, after, strict=True)]
        least = torch.finfo(query.dtype).tiny  # padding's queries may be 0
        norms_of = [row.norm(dim=(0, 2)).clamp_min(least) for row in states[0]]  # a query may have a factor by place
        states[0] = torch.stack([states[0][0], states[0][1] * (norms_of[0] / norms_of[1])[:, None]])
        if max(float((part[1] - part[0]).abs().max() / (part.abs().max() or 1)) for part in states) <= allowed:
            return None, None
        best, fewest = math.inf, None
        for path, name in sorted(self.requested, key=lambda of: (not of[0].startswith(own), str(of))):  # its own first
            rotary = self.rotaries[path, name]
            frequencies: Any = rotary.inv_freq
            for layout in _layouts(states[0], len(frequencies)):
                turn = Rotation(layout, frequencies.to(query.device))
                at = torch.arange(TOKENS, device=query.device)
                off = max(
                    float((turn(part[:1], at, _PLAN) - part[1:]).abs().max() / (part.abs().max() or 1))
                    for part in states
                )
                if off < best:
                    best, fewest = off, LayerRotation(path, name, layout)
        if not best <= allowed:
            rounding = f" (off by {best:.1e} where rounding is {allowed:.0e})" if fewest else ""
            raise Refused(
                self._refusal(
                    f"layer {layer} turns its queries and keys in a way that was not found{rounding}: by other "
                    "frequencies or dims than its rotary modules hold (in a buffer inv_freq)"
                )
            )
        return fewest, after

    def _own(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, kwargs: dict[str, Any]
    ) -> Tensor:
        """The model's own attention (1, token, head, dim) on the second row."""
        modules = [sys.modules.get(cls.__module__) for cls in type(module).__mro__]
        known = [getattr(part, "eager_attention_forward", None) for part in modules]
        eager = next((function for function in known if function is not None), None)
        full = mask.stock()[1:2]
        states = [part[1:] for part in (query, key, value)]
        if eager is not None:
            return eager(module, *states, full.to(query.dtype), scaling=scaling, **{**kwargs, "dropout": 0.0})[0]
        return attention_function("sdpa")(module, *states, full.to(query.dtype), scaling=scaling)[0]

    def _compare(
        self, layer: int, own: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float,
        arguments: dict[str, Any],
    ) -> None:  # fmt: skip
        """Refused where Origin's executor does not give what the model's own attention does."""
        plan = Plan(TOKENS, (Region((0, TOKENS), (0, TOKENS)),))
        schedule = Schedule(plan, 0, token_index)
        if mask.span is not None:
            schedule = schedule.seeing(mask.span, 0)
        schedule = schedule.scoring(arguments["softcap"], arguments["s_aux"])
        ours = dense(schedule, query[1:], key[1:], value[1:], scaling)[0].transpose(1, 2)
        off = float((ours - own).abs().max())
        scores = float(query.abs().amax() * key.abs().amax() * query.shape[-1] * abs(scaling))
        allowed = _rounding(query) * max(1.0, min(scores, 100.0)) * max(1.0, float(value.abs().max()))
        if not off <= allowed:
            raise Refused(
                self._refusal(
                    f"the attention of layer {layer} is not what a method can follow: its own output and the same by "
                    f"queries, keys and distances differ by {off:.1e} (rounding: {allowed:.0e})"
                )
            )


_PLAN = Plan(TOKENS, ())


def _first_changed(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """A layer's input whose last row is the one before it, but for its first token."""

    def changed(value: Any) -> Any:
        if not (isinstance(value, Tensor) and value.is_floating_point() and value.shape[:2] == (_ROWS, TOKENS)):
            return value
        value = value.clone()
        value[-1] = value[-2]
        value[-1, 0] = -value[-2, 0].roll(1, -1)
        return value

    args = tuple(map(changed, args[:1])) + args[1:]
    return args, kwargs if args else {name: changed(v) if name == "hidden_states" else v for name, v in kwargs.items()}


def _is_carried(states: Tensor) -> bool:
    """Whether the changed first token has changed later ones in `states` (row, token, ...).

    The last two rows are in one batch, so that rounding is the same but for a bit. A number is compared with its own
    size and the mean one: the largest in a residual stream can be a thousand times as large as most.
    """
    one, other = states[1:, 1:].float()
    allowed = max(TOLERANCE, 2 * torch.finfo(states.dtype).eps) * (one.abs() + one.abs().mean())
    return bool(((one - other).abs() > allowed).any())


def _bound(forward: Callable[..., Any], module: Any, inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: forward(module, inner, *args, **kwargs)


def _rounding(states: Tensor) -> float:
    """What rounding in the states' dtype may make of 1, after a few operations."""
    return 16 * torch.finfo(states.dtype).eps if states.dtype != torch.float64 else 16 * 2.0**-23


def _layouts(states: Tensor, frequencies: int) -> list[RotaryLayout]:
    """The layouts that may be, for so many frequencies."""
    dim, moved = states.shape[-1], (states[1] - states[0]).abs().amax((0, 1)) > 0
    first = int(moved.nonzero()[0]) if bool(moved.any()) else 0
    result = []
    for pairs in {frequencies, min(frequencies, dim // 2)}:
        if 2 * pairs <= dim:
            begins = dict.fromkeys((0, dim - 2 * pairs, min(first, dim - 2 * pairs)))
            ways = [(mixed, back) for back in (False, True) for mixed in (False, True)]
            result += [RotaryLayout(begin, pairs, mixed, back) for begin in begins for mixed, back in ways]
    return result


def weight_of(norm: Any, like: Tensor) -> Tensor:
    """The factors (dim,) of a norm over a head's dims that comes after the rotation."""
    return norm(torch.ones(1, 1, 1, like.shape[-1], dtype=like.dtype, device=like.device))[0, 0, 0]


_HARMLESS = ("position_ids", "sliding_window", "use_cache", "output_attentions", "output_hidden_states", "return_dict")
_HARMLESS += ("output_router_logits", "num_items_in_batch", "cache_position", "dropout", "max_length_q", "max_length_k")
_HARMLESS += ("logits_to_keep", "attention_hooks", *CACHES, "position_embeddings")
_KNOWN = frozenset({*_HARMLESS, "softcap", "s_aux"})


def known_arguments(module: nn.Module, model: Any, family: Family, kwargs: dict[str, Any]) -> dict[str, Any]:
    """softcap, s_aux and the factor of scores of a call of an attention function; Refused for an unknown argument."""
    of_family, factor = family.arguments, 1.0
    for name, value in kwargs.items():
        if value is None or name in _KNOWN or (name == "is_causal" and value):
            continue
        if name not in of_family:
            raise Refused(
                f"model type {model.config.model_type!r} is not supported: {type(module).__name__} gives its attention "
                f"{name}={value if isinstance(value, bool | int | float | str) else type(value).__name__}, which "
                f"methods do not know; say what it does to scores: mesa.applied(..., family=mesa.Family(arguments="
                f"{{{name!r}: ...}})), see docs/new-family.md"
            )
        effect = of_family[name]
        factor *= 1.0 if effect is None else effect(value)
    return {"softcap": kwargs.get("softcap"), "s_aux": kwargs.get("s_aux"), "factor": factor}


def _place(model: Any) -> torch.device:
    """Where the model takes token ids."""
    device = model.get_input_embeddings().weight.device
    return model.device if device.type == "meta" else device


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """No module of the model is in training mode."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _unhooked(model: nn.Module) -> Iterator[None]:
    """No hook of the model's modules is called."""
    names = ("_forward_hooks", "_forward_pre_hooks")
    modules = [module for module in model.modules() if any(module.__dict__.get(name) for name in names)]
    before = [(module, name, module.__dict__[name]) for module in modules for name in names]
    for module, name, hooks in before:
        module.__dict__[name] = type(hooks)()
    try:
        yield
    finally:
        for module, name, hooks in before:
            module.__dict__[name] = hooks
