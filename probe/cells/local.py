"""The runner in this process: one cell after another, no copies."""

from __future__ import annotations

from collections.abc import Iterator

from probe.cells.cell import Cell, Function, Outcome
from probe.cells.turns import Turns
from probe.cells.watch import Watch


class Local:
    """One worker, this process. An error of a cell is raised where it happens, which is its turn."""

    most, room = 1, 0

    def __init__(self, function: Function, verbose: bool = False) -> None:
        self._function, self.verbose = function, verbose

    def run(self, turns: Turns, watch: Watch) -> Iterator[tuple[Cell, Outcome]]:
        """Outcomes, in the cells' order."""
        while cell := turns.take():
            watch.began(cell)
            yield cell, Outcome(self._function(cell))
