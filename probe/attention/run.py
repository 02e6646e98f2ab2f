"""The experiment of an `AnatomyPlan`, and its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from probe.attention.heads import by_span, head_statistics, retrieval_scores
from probe.attention.request import AnatomyPlan, needed_bytes, pass_bytes
from probe.capture.memory import check_beside
from probe.experiment.journal import Journal, Rows
from probe.experiment.model_spec import ModelSpec
from probe.experiment.run import Experiment, run
from probe.experiment.runner import LOCAL, Runner
from probe.experiment.task import Measure, Task
from probe.store.results import ANATOMY

FOLDER, JOURNAL = "anatomy", "journal.jsonl"
"""The folder of the results below --out, and the journal in it."""
_DIGITS = 7


@dataclass(frozen=True)
class AnatomyWorker:
    """A plan and its model, as plain data."""

    plan: AnatomyPlan
    source: ModelSpec

    def start(self, memory_bytes: int | None = None) -> Measure:
        """Loads the model; a task gives its journal row."""
        return partial(measure, self.plan, self.source.loaded().model)


@torch.no_grad()
def measure(plan: AnatomyPlan, model: PreTrainedModel, task: Task) -> dict[str, Any]:
    """The row of one prompt: statistics by span, or retrieval scores. RuntimeError if not finite."""
    part, name, length, number = str(task.key[0]), str(task.key[1]), int(task.key[2]), int(task.key[3])
    if part == "retrieval":
        scores = retrieval_scores(model, [plan.passkeys[length][number]], plan.methods[name])
        row, values = {}, {"score": scores.isel(prompt=0)}
    else:
        means = by_span(head_statistics(model, [plan.texts[length][number].tolist()], plan.methods[name]))
        means = means.isel(prompt=0).transpose("span", "layer", "head", ...)
        row, values = {"spans": means["span"].values.tolist()}, {str(key): array for key, array in means.items()}
    for key, array in values.items():
        if not np.isfinite(array.values).all():
            raise RuntimeError(f"{key} is not finite; try a wider --dtype (float32, float64)")
        row[key] = np.round(array.sel(layer=plan.layers).values.astype(float), _DIGITS).tolist()
    return row


@dataclass(frozen=True)
class AnatomyExperiment(Experiment):
    """A plan."""

    plan: AnatomyPlan
    title, unit = "anatomy", "token"

    @property
    def worker(self) -> AnatomyWorker:
        """What measures the tasks."""
        plan = self.plan
        source = ModelSpec.of(plan.request.model, plan.request.load, plan.config)
        return AnatomyWorker(replace(plan, config=None), source)

    def tasks(self, rows: Rows) -> list[Task]:
        """The parts of prompts that the journal lacks."""
        missing = [key for key in self.plan.keys if key not in rows]
        return [Task(key[0], key, pass_bytes(self.plan, key[0], key[2]), weight=key[2]) for key in missing]

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Journals a row."""
        journal.add(task.key, {"config": _config(self.plan, str(task.key[1])), **value})

    def open_journal(self, out: Path, *, overwrite: bool = False) -> Journal:
        """The folder's journal; FileExistsError for one of other settings, or with other parameters of a method."""
        plan, folder = self.plan, out / FOLDER
        path = folder / JOURNAL
        if overwrite:
            for old in (path, out / ANATOMY, folder / "report.html", *folder.glob("*.csv")):
                old.unlink(missing_ok=True)
        return Journal(path, plan.settings, plan.methods, ("spans", "score"))


def anatomy(
    plan: AnatomyPlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> tuple[Journal, list[Task]]:
    """The journal of the folder `out` with every row of the plan, unless `until` came before; and the lost tasks.

    Raises MemoryError before any pass for what does not fit, and what `run` and `Runner.check` raise.
    """
    runner.check(plan.request.load)
    if runner.is_local:
        check_beside(needed_bytes(plan), plan.request.load, "shorten --lengths")
    return run(AnatomyExperiment(plan), out, overwrite=overwrite, until=until, runner=runner)


def _config(plan: AnatomyPlan, name: str) -> Any:
    """A method's description, as a journal gives it back."""
    return json.loads(json.dumps(plan.methods[name].describe()))
