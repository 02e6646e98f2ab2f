"""One forward pass under a method: its tokens' positions, and a schedule for each padding.

A pass goes through the layers in the attention mask's place, so that every layer has its own pass's, whichever thread
runs it, and gradient checkpointing, which computes a layer anew later, gives it the same one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from mesa.engine.families import Kind
from mesa.engine.rope import Rotation
from mesa.engine.schedule import Schedule


class Places(NamedTuple):
    """Where a group's own tokens are: among new ones and among held keys, of which `first_key` were dropped before."""

    queries: Tensor
    keys: Tensor
    first_key: int


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

    def places(self, first_key: int, new: int) -> Places:
        """Where the tokens are that are no padding, given queries of the last `new` and keys from `first_key` on.

        ValueError where keys were dropped for the sake of padding that came after them.
        """
        dropped, keys = int(self.real[:first_key].sum()), self.real[first_key:].nonzero()[:, 0]
        queries = self.real[len(self.real) - new :].nonzero()[:, 0]
        if dropped and len(queries) and int(keys[-1]) >= len(keys):
            raise ValueError(
                f"a sliding layer's cache has dropped keys of row {int(self.rows[0])}, which its tokens after the "
                "padding see; set tokenizer.padding_side='left'"
            )
        return Places(queries, keys, dropped)

    def schedule(self, weave: bool, kind: Kind, window: int | None, first_key: int) -> Schedule:
        """A layer's schedule: woven or not, by kind and sliding window, if any; keys are held from `first_key` on."""
        sliding = (window, first_key) if window and window < self.length else None
        known = (weave, kind, sliding)
        if known not in self.by_layer:
            whole = replace(self.woven if weave else self.as_trained, turn=self.turns[kind])
            self.by_layer[known] = whole.within(*sliding) if sliding else whole
        return self.by_layer[known]


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
