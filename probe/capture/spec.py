"""What to capture: hooks, layers, positions, dims, dtype; parsed from text, checked against a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args

from mesa.errors import Refused
from probe.options import Names, RangeList, Ranges, option

HOOKS = {
    "resid_pre": "blocks.{layer}.hook_resid_pre",
    "resid_mid": "blocks.{layer}.hook_resid_mid",
    "resid_post": "blocks.{layer}.hook_resid_post",
    "attn_out": "blocks.{layer}.hook_attn_out",
    "mlp_out": "blocks.{layer}.hook_mlp_out",
    "q": "blocks.{layer}.attn.hook_q",
    "k": "blocks.{layer}.attn.hook_k",
    "v": "blocks.{layer}.attn.hook_v",
    "z": "blocks.{layer}.attn.hook_z",
}
"""Our names of TransformerLens hooks. q and k are raw (before rotary); heads are laid side by side in `dim`."""
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
        >>> list(selection.layers), len(selection.positions), len(selection.dims)
        ([2, 3], 100, 256)
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
            A `Selection`: `layers`, `positions` and `dims`, in rising order.

        Raises:
            Refused: A range or hook is beyond what the model or the prompt has.
        """
        for hook in self.hooks:
            if hook == "resid_mid" and getattr(config, "use_parallel_residual", False):
                raise Refused("hook 'resid_mid' is not there: attention and MLP of this model run side by side")
        sizes = {_width(hook, config) for hook in self.hooks}
        if len(sizes) > 1:
            raise Refused(f"hooks {', '.join(self.hooks)} differ in width {sorted(sizes)}; capture them in two runs")
        return Selection(
            layers=_indices(self.layers, config.num_hidden_layers, "layer"),
            positions=_indices(self.positions, length, "position"),
            dims=_indices(self.dims, sizes.pop(), "dim"),
        )


@dataclass(frozen=True)
class Selection:
    """Layers, token positions and dims of a capture, in rising order."""

    layers: Sequence[int]
    positions: Sequence[int]
    dims: Sequence[int]

    @property
    def values(self) -> int:
        """Numbers that one hook stores of one pass."""
        return len(self.layers) * len(self.positions) * len(self.dims)


def _check_ranges(name: str, ranges: Any) -> None:
    """Refused for anything but half-open ranges of integers, or None."""
    pairs = ranges if isinstance(ranges, (tuple, list)) and ranges else () if ranges is None else (None,)
    for pair in pairs:
        numbers: Any = pair if isinstance(pair, (tuple, list)) and len(pair) == 2 else ("",)
        if not all(isinstance(number, Integral) and not isinstance(number, bool) for number in numbers):
            raise Refused(f"{name}={ranges!r} is not a sequence of half-open ranges; write e.g. ((200, 400),)")
        if not 0 <= numbers[0] < numbers[1]:
            raise Refused(f"{name}={ranges!r}: {pair!r} is empty or begins below 0")


def _width(hook: str, config: Any) -> int:
    """Dims of a hook's tensor."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if hook in ("k", "v"):
        return getattr(config, "num_key_value_heads", config.num_attention_heads) * head_dim
    return config.num_attention_heads * head_dim if hook in ("q", "z") else config.hidden_size
