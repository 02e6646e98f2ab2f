"""Runs what an `AnatomyPlan` asks for, cell by cell; an interrupted run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from probe.capture.memory import check_beside
from probe.experiment.journal import Journal
from probe.experiment.lock import tell_finished
from probe.experiment.pool import Pool, ordered_results
from probe.experiment.progress import is_over, showing_progress
from probe.experiment.runner import LOCAL, Runner
from probe.experiment.task import Task
from probe.mechanism.anatomy import files, moments
from probe.mechanism.anatomy.collect import add, continued
from probe.mechanism.anatomy.request import AnatomyPlan, needed_bytes, reading_bytes
from probe.mechanism.anatomy.work import VECTORS, AnatomyWork, look_cells, text_cells

_REMEDY = "shorten --lengths, give fewer --layers or --methods, or leave vectors out of --parts"


def anatomy(
    made: AnatomyPlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> tuple[Journal, list[Task]]:
    """The journal of the folder `out`, with every cell of the plan and the moments beside it, unless `until` came.

    And the cells that no worker of the `runner` could finish. The sums of moments are made here, text after text in
    their order, whoever reads the texts. Raises MemoryError before any pass for what does not fit, FileExistsError for
    the folder of another run, and what `Runner.check` raises.
    """
    runner.check(made.request.load)
    if runner.is_local:
        check_beside(needed_bytes(made), made.request.load, _REMEDY)
    elif "vectors" in made.parts:
        check_beside(reading_bytes(made), {}, _REMEDY)
    work = AnatomyWork.of(made)
    with ExitStack() as stack:
        pool, every = None, [*look_cells(made, made.cells), *text_cells(made, dict.fromkeys(made.methods, 0))]
        if overwrite:  # before anything is removed
            pool = stack.enter_context(runner.pool(work, every))
        journal = files.open_journal(made, out, overwrite=overwrite)
        journal.expect(len({*journal.rows, *made.cells}))
        done = {name: files.texts_in(files.moments_path(out, name, made.lengths[-1])) for name in made.methods}
        missing = look_cells(made, [cell for cell in made.cells if cell not in journal.rows]) + text_cells(made, done)
        if not missing:
            tell_finished(out)
            return journal, []
        pool = pool or stack.enter_context(runner.pool(work, missing))
        return journal, _run(pool, made, missing, journal, out, until)


def _run(
    pool: Pool, made: AnatomyPlan, missing: Sequence[Task], journal: Journal, out: Path, until: float | None
) -> list[Task]:
    """Journals what cells give and stores moments after each text; returns the cells that were lost.

    A method's texts come in their order: after one that was lost there are no more.
    """
    failed: list[Task] = []
    sums, cut = _Sums(made, out), set[str]()

    def wanted(cell: Task) -> bool:
        return cell.kind != VECTORS or cell.key[1] not in cut

    folder, verbose = journal.path.parent, pool.verbose
    with showing_progress("looking inside", "token", verbose=verbose, folder=folder) as watch:
        watch.expect(missing)
        for cell, outcome in ordered_results(pool, missing, watch, wanted=wanted, stop=partial(is_over, until)):
            if outcome is None or outcome.lost:
                failed.append(cell)
                if outcome:
                    cut |= {str(cell.key[1])} if cell.kind == VECTORS else set()
                    watch.lost(cell, outcome.lost)
            elif cell.kind == VECTORS:
                sums.add(str(cell.key[1]), outcome.value)
            else:
                journal.add(cell.key, {"config": files.config_of(made.methods[str(cell.key[1])]), **outcome.value})
            del outcome
    return failed


class _Sums:
    """Moments in files, one method's at hand."""

    def __init__(self, made: AnatomyPlan, out: Path) -> None:
        self._made, self._out = made, out
        self._name, self._known = "", xr.Dataset()

    def add(self, name: str, states: Sequence[np.ndarray]) -> None:
        """Adds a text's states to a method's moments, and stores them."""
        made, path = self._made, files.moments_path(self._out, name, self._made.lengths[-1])
        if self._name != name:
            known = moments.load(path) if path.exists() else None
            self._name, self._known = name, continued(known, made.kept, made.methods[name], made.spec, made.dtype)
            self._known.attrs.update(_record(self._known.attrs, made))
        add(self._known, states)
        path.parent.mkdir(parents=True, exist_ok=True)
        moments.save(self._known, path)


def _record(attrs: Mapping[str, Any], made: AnatomyPlan) -> dict[str, Any]:
    """What moments tell of the plan's settings, and under `forced` of what was changed on the way."""
    changed = files.changed(attrs.get("settings", made.settings), made)
    forced = {"forced": [*attrs.get("forced", []), changed]} if changed else {}
    asked = len(made.sliding) * len(made.methods)
    return {**forced, "asked": asked, "settings": json.loads(json.dumps(made.settings))}
