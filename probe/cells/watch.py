"""What is seen of a run while it runs: one bar over all cells and, if asked for, a line a finished cell."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from probe.cells.board import Board
from probe.cells.cell import Cell


class Watch:
    """Moves a bar by what a cell weighs when it ends; lines go to stderr. label: a cell in words.

    board: where it is told, too, which cells are under way or lost.
    """

    def __init__(
        self,
        bar: tqdm,
        label: Callable[[Cell], str] = str,
        weigh: Callable[[Cell], int] = lambda cell: 1,
        verbose: bool = False,
        board: Board | None = None,
    ) -> None:
        self.bar, self._label, self._weigh, self._verbose = bar, label, weigh, verbose
        self._board = board or Board(None, ())
        self._begun: dict[Cell, tuple[int, float]] = {}
        self._ended: set[Cell] = set()

    def began(self, cell: Cell, worker: int = 1) -> None:
        """A worker has begun a cell."""
        self._begun[cell] = worker, time.monotonic()
        self._board.began(cell)
        self.bar.set_postfix_str(self._label(cell))

    def ended(self, cell: Cell) -> None:
        """A cell has ended, or is left out; said again, it changes nothing."""
        if cell in self._ended:
            return
        self._ended.add(cell)
        self._board.ended(cell)
        self.bar.update(self._weigh(cell))
        if self._verbose and cell in self._begun:
            worker, since = self._begun[cell]
            self.tell(f"worker {worker}: {self._label(cell)} in {time.monotonic() - since:.1f} s")

    def lost(self, cell: Cell, reason: str) -> None:
        """No worker could finish a cell."""
        self._board.ended(cell, lost=True)
        self.tell(f"failed: {self._label(cell)}: {reason}")

    def tell(self, text: str) -> None:
        """Writes a line above the bar."""
        self.bar.write(text, file=sys.stderr)


@contextmanager
def watching(
    cells: Sequence[Cell],
    what: str,
    label: Callable[[Cell], str] = str,
    weigh: Callable[[Cell], int] = lambda cell: 1,
    *,
    unit: str = "cell",
    verbose: bool = False,
    folder: Path | None = None,
) -> Iterator[Watch]:
    """A watch over cells. what: the bar's name; its unit is what they are weighed in. folder: of the board."""
    total, board = sum(map(weigh, cells)), Board(folder, {cell.kind for cell in cells})
    with tqdm(total=total, desc=what, unit=unit, unit_scale=unit == "token", smoothing=0.05) as bar:
        try:
            yield Watch(bar, label, weigh, verbose, board)
        finally:
            board.close()
