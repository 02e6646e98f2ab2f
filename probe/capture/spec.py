"""What to capture: hooks, layers, positions, dims, dtype; parsed from text, checked against a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any, Literal, get_args

from mesa.errors import Refused
from mesa.support import attending_layers, head_sizes, layers_text
from probe.options import Names, RangeList, Ranges, option

Size = Callable[[Any], int]
"""How many labels an axis has, from a model's config."""


@dataclass(frozen=True)
class Hook:
    """A TransformerLens hook, and what is kept of its tensor in each layer.

    path: its name there. axes: of what is kept, in order; None: the positions. kept: what is kept of the tensor
    (position, ...); default: all of it, heads laid side by side.
    """

    path: str
    axes: Mapping[str, Size | None]
    kept: Callable[[Any], Any] = lambda tensor: tensor.flatten(1)


def _hidden(config: Any) -> int:
    return config.hidden_size


def _queries(config: Any) -> int:
    heads, _, width = head_sizes(config)
    return heads * width


def _keys(config: Any) -> int:
    _, heads, width = head_sizes(config)
    return heads * width


def _states(path: str, width: Size = _hidden) -> Hook:
    return Hook(f"blocks.{{layer}}.{path}", {"position": None, "dim": width})


HOOKS = {
    "resid_pre": _states("hook_resid_pre"),
    "resid_mid": _states("hook_resid_mid"),
    "resid_post": _states("hook_resid_post"),
    "attn_out": _states("hook_attn_out"),
    "mlp_out": _states("hook_mlp_out"),
    "q": _states("attn.hook_q", _queries),
    "k": _states("attn.hook_k", _keys),
    "v": _states("attn.hook_v", _keys),
    "z": _states("attn.hook_z", _queries),
}
"""By our names. q and k are raw (before rotary). The first that is captured has axes `position` and `dim`."""
OF_LAYERS = ("resid_pre", "resid_post")
"""Those that need no adapter of TransformerLens: what enters and leaves a layer."""
_KEEP = "what to keep"

StoreDtype = Literal["float32", "float16"]


def _indices(ranges: Ranges | None, size: int, what: str) -> Sequence[int]:
    """All indices in the ranges; Refused when one is not below `size`."""
    if ranges is None:
        return range(size)
    for start, stop in ranges:
        if stop > size:
            raise Refused(f"{what} {start}-{stop - 1} is out of range; there are {what}s 0-{size - 1}")
    return sorted({index for start, stop in ranges for index in range(start, stop)})


@dataclass(frozen=True)
class CaptureSpec:
    """What to store of a forward pass; by default all of the residual stream after each layer.

    Ranges are half-open, positions count tokens from 0. Its fields are options of `mesa-lens probe`; docs/commands.md
    lists them.

    Raises:
        Refused: A hook or dtype is not known, or a range is empty.

    Examples:
        >>> spec = probe.CaptureSpec(layers=((2, 4),), positions=((0, 100),))
        >>> selection = spec.resolve(mesa.load().model.config, length=512)
        >>> list(selection.layers), {name: len(labels) for name, labels in selection.axes["resid_post"].items()}
        ([2, 3], {'position': 100, 'dim': 256})
    """

    hooks: Names = option(("resid_post",), "TransformerLens hooks, e.g. resid_post,attn_out", group=_KEEP)
    layers: RangeList = option(None, "e.g. 0-10, both ends included", group=_KEEP, unset="all")
    positions: RangeList = option(
        None, "e.g. 1024-3071,4096-5119; drift needs M/4 to 3M/4, and some beyond M", group=_KEEP, unset="all"
    )
    dims: RangeList = option(None, "coordinates of the hidden state, e.g. 0-639", group=_KEEP, unset="all")
    dtype: StoreDtype = option("float32", "precision of what is stored", group=_KEEP, key="store_dtype")

    def __post_init__(self) -> None:
        """Refused for unknown hooks or dtypes."""
        if not self.hooks:
            raise Refused(f"hooks is empty; known: {', '.join(HOOKS)}")
        for hook in self.hooks:
            if hook not in HOOKS:
                raise Refused(f"unknown hook {hook!r}; known: {', '.join(HOOKS)}")
        if self.dtype not in get_args(StoreDtype):
            raise Refused(f"unknown store dtype {self.dtype!r}; known: {', '.join(get_args(StoreDtype))}")
        for name in ("layers", "positions", "dims"):
            _check_ranges(name, getattr(self, name))

    def resolve(self, config: Any, length: int) -> Selection:
        """The indices to store in one model.

        Args:
            config: The model's Hugging Face config.
            length: Tokens that it reads.

        Returns:
            A `Selection`: `layers`, `positions`, and `axes` of each hook, in rising order. An axis whose labels differ
            from those of an earlier hook is named after its own, such as `dim_k`.

        Raises:
            Refused: A range or hook is beyond what the model or the prompt has.
        """
        for hook in self.hooks:
            if hook == "resid_mid" and getattr(config, "use_parallel_residual", False):
                raise Refused("hook 'resid_mid' is not there: attention and MLP of this model run side by side")
        if not {"position", "dim"} <= HOOKS[self.hooks[0]].axes.keys():
            raise Refused(f"hook {self.hooks[0]!r} has no dims, which thresholds and drift are of; name another first")
        positions, first = _indices(self.positions, length, "position"), dict[str, Sequence[int]]()
        axes = dict[str, dict[str, Sequence[int]]]()
        for hook in self.hooks:
            axes[hook] = {}
            for name, size in HOOKS[hook].axes.items():
                chosen = self.dims if name == "dim" else None
                labels = positions if size is None else _indices(chosen, size(config), name)
                axes[hook][name if first.setdefault(name, labels) == labels else f"{name}_{hook}"] = labels
        layers = _indices(self.layers, config.num_hidden_layers, "layer")
        attending = attending_layers(config)
        if (inside := [hook for hook in self.hooks if ".attn." in HOOKS[hook].path]) and {*layers} - {*attending}:
            raise Refused(
                f"hook {inside[0]!r} is in layers with attention: of those, this {config.model_type} model has "
                f"{layers_text(attending)}; name them as layers"
            )
        return Selection(layers, positions, axes)


@dataclass(frozen=True)
class Selection:
    """Layers and token positions of a capture, in rising order, and by hook the labels of its axes, by their names."""

    layers: Sequence[int]
    positions: Sequence[int]
    axes: Mapping[str, Mapping[str, Sequence[int]]]

    @property
    def values(self) -> int:
        """Numbers that are stored of one layer of one pass."""
        return sum(prod(map(len, axes.values())) for axes in self.axes.values())


def _check_ranges(name: str, ranges: Any) -> None:
    """Refused for anything but half-open ranges of integers, or None."""
    pairs = ranges if isinstance(ranges, (tuple, list)) and ranges else () if ranges is None else (None,)
    for pair in pairs:
        numbers: Any = pair if isinstance(pair, (tuple, list)) and len(pair) == 2 else ("",)
        if not all(isinstance(number, Integral) and not isinstance(number, bool) for number in numbers):
            raise Refused(f"{name}={ranges!r} is not a sequence of half-open ranges; write e.g. ((200, 400),)")
        if not 0 <= numbers[0] < numbers[1]:
            raise Refused(f"{name}={ranges!r}: {pair!r} is empty or begins below 0")
