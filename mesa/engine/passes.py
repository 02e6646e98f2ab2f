"""One forward pass under a method: its tokens' positions, and a schedule for each left padding.

A pass goes through the layers in the attention mask's place, so that every layer has its own pass's, whichever thread
runs it, and gradient checkpointing, which computes a layer anew later, gives it the same one again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from mesa.engine.attention import Schedule


@dataclass
class Group:
    """Rows of a batch with the same left padding, and their schedule.

    frequencies: rotary's for them, where the model has it.
    """

    rows: Tensor
    pad: int
    woven: Schedule
    as_trained: Schedule
    frequencies: Tensor | None = None
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


class Bypassed(RuntimeError, AttributeError):
    """Attention that is not the attached method's was about to be computed."""


class Owner(Protocol):
    """What a pass belongs to."""

    executor: str

    def why(self) -> str:
        """What went wrong when another attention is given the pass, and what to do."""
        ...


class Pass:
    """What a pass is computed with; raises `Bypassed` where it is used as the mask that it stands in for.

    groups: those rows that have tokens so far. total: tokens so far, padding included. cached: positions
    (batch, token) that keys are cached at.
    """

    def __init__(self, groups: list[Group], total: int, cached: Tensor, owner: Owner) -> None:
        self.groups, self.total, self.cached, self.owner = groups, total, cached, owner
        self.ran: set[int] = set()

    @property
    def unpadded(self) -> bool:
        """Whether no row has any padding."""
        return len(self.cached) == sum(len(group.rows) for group in self.groups if group.pad == 0)

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
        own = next(each for each in (*args, *(kwargs or {}).values()) if isinstance(each, cls))
        raise Bypassed(own.owner.why())


def check_positions(given: Tensor | None, index: Tensor) -> None:
    """ValueError for positions (1 or batch, token) of one's own; `index` are the tokens', below 0 for padding."""
    if given is not None and ((given.cpu() != index) & (index >= 0)).any():
        raise ValueError(
            "position_ids differ from the tokens' places, which a method's positions follow; leave them out"
        )


def left_padding(mask: Tensor | None, batch: int, length: int, prompt_length: int) -> list[int]:
    """Tokens of left padding of every row; ValueError for any other mask."""
    if mask is None:
        return [0] * batch
    if mask.dim() != 2 or mask.shape[1] != length:
        raise ValueError(f"attention_mask has shape {tuple(mask.shape)}; needed is a padding mask ({batch}, {length})")
    kept = mask.bool()
    if (kept[:, 1:] < kept[:, :-1]).any():
        raise ValueError("attention_mask pads on the right; set tokenizer.padding_side='left'")
    pads = (length - kept.sum(1)).tolist()
    if length in pads and length >= prompt_length:
        raise ValueError(
            f"row {pads.index(length)} of attention_mask is all padding; drop it from the batch, or, where more of the "
            "prompt follows, state its prompt_length"
        )
    return pads
