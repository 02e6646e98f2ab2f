"""The experiment of a `LocatePlan`, and its folder."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesa.methods import Method
from probe.capture.memory import check_beside, free_bytes
from probe.experiment.journal import Journal, Rows
from probe.experiment.run import Experiment, run
from probe.experiment.runner import LOCAL, Runner
from probe.experiment.task import Task
from probe.interventions.head_search import has_runs, paired
from probe.interventions.loss_gap import LEAST
from probe.interventions.request import LocatePlan, needed_bytes, task_bytes
from probe.interventions.tasks import ATTRIBUTION, BATCH, judged_methods, kinds, remaining, tasks
from probe.interventions.worker import LocateWorker
from probe.store.results import LOCATED

FOLDER, JOURNAL = "locate", "journal.jsonl"
"""The folder of the results below --out, and the journal in it."""


@dataclass(frozen=True)
class Locate(Experiment):
    """A plan. batch: interventions a task; free_bytes: attributions that need more are left out."""

    plan: LocatePlan
    batch: int = 1
    free_bytes: float = math.inf
    title, unit = "locating", "token"

    @property
    def worker(self) -> LocateWorker:
        """What measures the tasks."""
        return LocateWorker.of(self.plan)

    def tasks(self, rows: Rows) -> Sequence[Task]:
        """The tasks that can run now."""
        return tasks(self.plan, rows, batch=self.batch, free_bytes=self.free_bytes)

    def all_tasks(self, rows: Rows) -> Sequence[Task]:
        """A task of each kind and length."""
        return kinds(self.plan)

    def remaining(self, rows: Rows) -> int:
        """The rows that the journal lacks, as far as can be foreseen."""
        return remaining(self.plan, rows, self.free_bytes)

    def open_journal(self, out: Path, *, overwrite: bool = False) -> Journal:
        """The folder's journal. FileExistsError for one of other settings, or with other parameters of a method."""
        plan, path = self.plan, out / FOLDER / JOURNAL
        if overwrite:
            for old in (path, out / LOCATED, (out / LOCATED).with_name("report.html")):
                old.unlink(missing_ok=True)
        return Journal(path, plan.settings, plan.methods)

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Journals a task's rows."""
        for key, row in value:
            journal.add(key, {"config": config_of(self.plan.methods[str(key[2])]), **row})


def locate(
    plan: LocatePlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> tuple[Journal, list[Task]]:
    """The journal of the folder `out` with every row of the plan, unless `until` came before; and the lost tasks.

    Raises MemoryError before any pass for what does not fit, RuntimeError where no method differs from Origin, and what
    `run` and `Runner.check` raise.
    """
    runner.check(plan.request.load)
    free = math.inf
    if runner.is_local:
        check_beside(needed_bytes(plan), plan.request.load, "shorten --lengths or leave patch and clamp out of --try")
        free = free_bytes(plan.request.load.get("device") or "cpu")
        for length in dict.fromkeys(length for _, length in plan.items if ATTRIBUTION in plan.request.kinds):
            if (needed := task_bytes(plan, ATTRIBUTION, length)) > free:
                left_out = f"attribution at {length} tokens needs {needed / 2**30:.0f} GiB, {free / 2**30:.0f} are free"
                sys.stderr.write(f"left out: {left_out}\n")
    experiment = Locate(plan, 1 if runner.is_local else BATCH, free)
    journal, lost = run(experiment, out, overwrite=overwrite, until=until, runner=runner)
    rows = journal.rows
    if not (lost or experiment.tasks(rows) or any(judged_methods(plan, rows, group) for group in plan.items)):
        raise RuntimeError(_no_gap(plan, rows))
    return journal, lost


def config_of(method: Method) -> Any:
    """The method's description, as a journal gives it back."""
    return json.loads(json.dumps(method.describe()))


def _no_gap(plan: LocatePlan, rows: Rows) -> str:
    """Why there is nothing to restore."""

    def intervals() -> Iterator[str]:
        for group in plan.items:
            for name in (name for name in plan.compared if has_runs(plan, rows, group, name)):
                gap = paired(plan, rows, group, name).gap
                yield f"{name} {group[0]} at {group[1]}: [{gap.low:+z.3f}, {gap.high:+z.3f}]"

    return (
        f"no method is significantly better than Origin, by {LEAST} nats/token or more; Origin's loss less the "
        f"method's: {', '.join(intervals())}; take longer --lengths, other --methods or more --samples"
    )
