"""What is run: a cell, the work that a worker is made from, and what comes of a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from probe.cells.source import Source


@dataclass(frozen=True)
class Cell:
    """A piece of work, as plain data: what it gives depends on it and on the model alone.

    kind: of work, for a worker that does several. key: what tells it from the others. needs: bytes that it takes beside
    the weights at least; best: with which it is not slowed; gives: bytes of what it gives. given: what it is to be done
    with beside the plan, frozen.
    """

    kind: str
    key: tuple[str | int, ...]
    needs: int = 0
    best: int = 0
    gives: int = 0
    given: tuple[Any, ...] = ()

    def __str__(self) -> str:
        """The cell in words."""
        return ", ".join(map(str, self.key))


@dataclass(frozen=True)
class Outcome:
    """What came of a cell: its value; an error of its own, which ends the run; or why no worker could finish it."""

    value: Any = None
    error: Exception | None = None
    lost: str = ""


class CellsLost(RuntimeError):
    """Cells that no worker could finish; the rest is done."""

    def __init__(self, said: str, keys: Sequence[tuple[str | int, ...]]) -> None:
        super().__init__(said)
        self.keys = list(keys)


Function = Callable[[Cell], Any]
"""What a worker does with a cell."""


class Work(Protocol):
    """What a worker is made from: plain data, the same for all cells."""

    @property
    def source(self) -> Source:
        """The model."""
        ...

    def start(self, room: int | None = None) -> Function:
        """Loads the model; returns what is done with a cell. room: bytes it may take; None: what is free."""
        ...
