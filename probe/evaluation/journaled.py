"""Cells run by a pool, what they give journaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probe.cells.cell import Cell
from probe.cells.pool import Pool, run
from probe.cells.watch import watching
from probe.evaluation.journal import Journal


def run_journaled(pool: Pool, cells: Sequence[Cell], journal: Journal, what: str, **turns: Any) -> list[Cell]:
    """Those that no worker could finish. what: on the bar; turns: `wanted` and `stop` of `probe.cells.pool.run`."""
    failed = []
    with watching(cells, what, verbose=pool.verbose, folder=journal.path.parent) as watch:
        for cell, outcome in run(pool, cells, watch, **turns):
            if outcome and outcome.lost:
                failed.append(cell)
                watch.lost(cell, outcome.lost)
            elif outcome:
                journal.add(cell.key, outcome.value)
    return failed
