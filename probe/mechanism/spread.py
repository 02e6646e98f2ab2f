"""A locate run under way: its journal, which it alone writes, and the workers that its cells are given to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tqdm import tqdm

from probe.experiment.journal import Journal
from probe.experiment.pool import Pool, ordered_results
from probe.experiment.progress import Progress, is_over
from probe.experiment.status_file import StatusFile
from probe.experiment.task import Key, Task
from probe.mechanism.cells import config_of
from probe.mechanism.request import LocatePlan
from probe.mechanism.unfinished import left


class TimeIsOver(Exception):
    """No further cell is begun."""


class Spread:
    """pool: makes the workers, once they are needed. most: rows that one cell gives. failed: cells that were lost."""

    def __init__(
        self, made: LocatePlan, journal: Journal, pool: Callable[[], Pool], bar: tqdm, until: float | None, *, most: int
    ) -> None:
        self.made, self.journal, self.most, self.failed = made, journal, most, list[Task]()
        self._pool, self._bar, self._until = pool, bar, until
        self.status = StatusFile(journal.path.parent)

    def foresee(self, cells: Sequence[Task]) -> None:
        """Has the bar count on cells that are to come, and on nothing else."""
        self._bar.total = self._bar.n + sum(cell.weight for cell in cells)

    def run(self, cells: Sequence[Task]) -> bool:
        """Journals what cells give, in their order; whether none was lost. Raises TimeIsOver where that has come."""
        if not cells:
            return True
        pool, lost = self._pool(), len(self.failed)
        total = self._bar.total or 0
        watch = Progress(self._bar, verbose=pool.verbose, status=self.status)
        watch.expect(cells)
        self._bar.total = max(total, self._bar.total)
        for cell, outcome in ordered_results(pool, cells, watch, stop=partial(is_over, self._until)):
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

    def _whole(self, key: Key, row: dict[str, Any]) -> dict[str, Any]:
        """A row with what the journal has under its name already: attributions of other hooks."""
        known = self.journal.rows.get(key, {"falls": []})
        return {"falls": [*known["falls"], *row["falls"]]} if "falls" in row else row
