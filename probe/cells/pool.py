"""Workers, and a run of cells on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from probe.cells.cell import Cell, Outcome
from probe.cells.turns import Due, Turns
from probe.cells.watch import Watch


class Pool(Protocol):
    """Workers that are ready.

    most, room: how many cells, and bytes that they give, may be under way or held back. verbose: a line a finished
    cell.
    """

    most: int
    room: int
    verbose: bool

    def run(self, turns: Turns, watch: Watch) -> Iterator[tuple[Cell, Outcome]]:
        """Runs cells as `turns` gives them, until it gives none; their outcomes in any order."""
        ...


def run(
    pool: Pool,
    cells: Sequence[Cell],
    watch: Watch,
    *,
    wanted: Callable[[Cell], bool] = lambda cell: True,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Due]:
    """Each cell with what came of it, in their order, as soon as it is due; raises a cell's own error in its turn.

    A cell that is not `wanted` is not begun; where it was, what it gave is dropped. Once `stop`, none is begun.
    """
    turns = Turns(cells, wanted=wanted, stop=stop, most=pool.most, room=pool.room)
    for cell, outcome in pool.run(turns, watch):
        turns.end(cell, outcome)
        watch.ended(cell)
        del outcome
        yield from _checked(turns, watch)
    yield from _checked(turns, watch)


def _checked(turns: Turns, watch: Watch) -> Iterator[Due]:
    for cell, outcome in turns.due():
        watch.ended(cell)
        if outcome and outcome.error:
            raise outcome.error
        yield cell, outcome
        del outcome
