"""A locate run under way: its journal, which it alone writes, and the workers that its cells are given to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tqdm import tqdm

from probe.cells.board import Board
from probe.cells.cell import Cell
from probe.cells.pool import Pool
from probe.cells.pool import run as run_in_turns
from probe.cells.watch import Watch
from probe.evaluation.clock import is_over
from probe.evaluation.journal import Cell as Key
from probe.evaluation.journal import Journal
from probe.mechanism.cells import config_of
from probe.mechanism.request import LocatePlan
from probe.mechanism.unfinished import left
from probe.mechanism.work import ATTRIBUTION, DIMS


class TimeIsOver(Exception):
    """No further cell is begun."""


class Spread:
    """pool: makes the workers, once they are needed. most: rows that one cell gives. failed: cells that were lost."""

    def __init__(
        self, made: LocatePlan, journal: Journal, pool: Callable[[], Pool], bar: tqdm, until: float | None, *, most: int
    ) -> None:
        self.made, self.journal, self.most, self.failed = made, journal, most, list[Cell]()
        self._pool, self._bar, self._until = pool, bar, until
        self.board = Board(journal.path.parent, ("run", *made.request.kinds, DIMS))

    def foresee(self, cells: Sequence[Cell]) -> None:
        """Has the bar count on cells that are to come, and on nothing else."""
        self._bar.total = self._bar.n + sum(map(self.weigh, cells))

    def run(self, cells: Sequence[Cell]) -> bool:
        """Journals what cells give, in their order; whether none was lost. Raises TimeIsOver where that has come."""
        if not cells:
            return True
        pool, lost = self._pool(), len(self.failed)
        self._bar.total = max(self._bar.total, self._bar.n + sum(map(self.weigh, cells)))
        watch = Watch(self._bar, weigh=self.weigh, verbose=pool.verbose, board=self.board)
        for cell, outcome in run_in_turns(pool, cells, watch, stop=partial(is_over, self._until)):
            if outcome is None or outcome.lost:
                self.failed.append(cell)
                watch.lost(cell, outcome.lost if outcome else "")
                continue
            for key, row in outcome.value:
                self.journal.add(key, {"config": config_of(self.made.methods[str(key[2])]), **self._whole(key, row)})
        self.check_time()
        return len(self.failed) == lost

    def check_time(self) -> None:
        """Raises TimeIsOver where no further cell is to be begun."""
        if is_over(self._until):
            raise TimeIsOver

    def expect(self, more: int = 0) -> None:
        """Has the journal tell how many cells there will be, as far as can be told now; more: of a search's round."""
        self.journal.expect(len(self.journal.rows) + left(self.made, self.journal) + more)

    def weigh(self, cell: Cell) -> int:
        """Tokens that a cell takes, of whole passes."""
        depth, length = self.made.config.num_hidden_layers, int(cell.key[1])
        if cell.kind in (DIMS, ATTRIBUTION):
            return 2 * length
        return sum(round(length * (depth - (each.layer or 0)) / depth) for each in cell.given)

    def _whole(self, key: Key, row: dict[str, Any]) -> dict[str, Any]:
        """A row with what the journal has under its name already: attributions of other hooks."""
        known = self.journal.rows.get(key, {"falls": []})
        return {"falls": [*known["falls"], *row["falls"]]} if "falls" in row else row
