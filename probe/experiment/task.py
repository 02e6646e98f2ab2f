"""A unit of work as plain data, what comes of it, and what a worker is made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mesa.errors import Failed

if TYPE_CHECKING:
    from probe.experiment.run import ModelSpec

Key = tuple[str | int, ...]
"""Names and numbers that tell a task from the others, such as task, method and length."""


@dataclass(frozen=True)
class Task:
    """A unit of work: its result depends on these values and on the model alone.

    memory_bytes: needed beside the weights; best_bytes: where it runs at full speed; result_bytes: size of its result.
    inputs: extra inputs, hashable; each yields one journal row. weight: its tokens, in passes of
    `length`.
    """

    kind: str
    key: Key
    memory_bytes: int = 0
    best_bytes: int = 0
    result_bytes: int = 0
    inputs: tuple[Any, ...] = ()
    weight: int = 1
    length: int = 0

    def __str__(self) -> str:
        """The key, in words."""
        return ", ".join(map(str, self.key))


@dataclass(frozen=True)
class TaskOutcome:
    """What came of a task: its value; an error, which ends the run; or why no worker could finish it (`lost`)."""

    value: Any = None
    error: Exception | None = None
    lost: str = ""


class TasksLost(Failed):
    """Tasks that no worker could finish; all others are done."""

    def __init__(self, message: str, keys: Sequence[Key]) -> None:
        super().__init__(message)
        self.keys = list(keys)


MeasureTask = Callable[[Task], Any]
"""What a worker does with a task."""


class Worker(Protocol):
    """What measures tasks: plain data, from which each process loads the model once."""

    @property
    def source(self) -> ModelSpec:
        """The model."""
        ...

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; returns the function that measures a task. memory_bytes: its limit; None: what is free."""
        ...
