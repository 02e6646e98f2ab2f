"""Cells in their order, by whomever and in whatever order they are finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from probe.cells.cell import Cell, Outcome

Due = tuple[Cell, Outcome | None]
"""A cell and what came of it; None: it was not wanted any more when its turn came."""


class Turns:
    """Which cell begins next, and whose outcome is due.

    wanted: whether a cell is still to be run, as far as the outcomes that were due tell. stop: whether none is to be
    begun after the first. most, room: how many cells, and bytes that they give, may be under way or held back at once,
    beside the one whose turn it is.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        *,
        wanted: Callable[[Cell], bool] = lambda cell: True,
        stop: Callable[[], bool] = lambda: False,
        most: int = 1,
        room: int = 0,
    ) -> None:
        self._cells, self._wanted, self._stop, self._most, self._room = list(cells), wanted, stop, most, room
        self._waiting = dict.fromkeys(self._cells)
        self._running: set[Cell] = set()
        self._ended: dict[Cell, Outcome | None] = {}
        self._turn = 0

    def take(self, room: int | None = None) -> Cell | None:
        """The next cell to begin, of those that need at most `room` bytes; None: there is none for now."""
        while cell := next((each for each in self._waiting if room is None or each.needs <= room), None):
            if len(self._waiting) < len(self._cells) and self._stop():
                self._waiting.clear()
            elif not self._wanted(cell):
                del self._waiting[cell]
                self._ended[cell] = None
            elif self._is_full(cell):
                break
            else:
                del self._waiting[cell]
                self._running.add(cell)
                return cell
        return None

    def end(self, cell: Cell, outcome: Outcome) -> None:
        """Keeps what came of a cell until it is due."""
        self._running.remove(cell)
        self._ended[cell] = outcome

    def due(self) -> Iterator[Due]:
        """The outcomes of all cells up to the first that is waiting or under way."""
        while self._turn < len(self._cells):
            cell = self._cells[self._turn]
            if cell in self._waiting or cell in self._running:
                return
            self._turn += 1
            if cell in self._ended:
                outcome = self._ended.pop(cell)
                yield cell, outcome if self._wanted(cell) else None
                del outcome  # it may be large

    def _is_full(self, cell: Cell) -> bool:
        """Whether a cell has to wait; the one that all others are held back for never does."""
        held = [*self._running, *(each for each, outcome in self._ended.items() if outcome)]
        given = sum(each.gives for each in held) + cell.gives
        is_full = bool(held) and (len(held) >= self._most or given > self._room)
        return is_full and cell != self._first()

    def _first(self) -> Cell:
        """The first cell that is waiting or under way."""
        rest = range(self._turn, len(self._cells))
        return next(self._cells[at] for at in rest if self._cells[at] not in self._ended)
