"""The experiment of a `PredictPlan`: NLL of every pass over every text, in a journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import mesa
from mesa.finite import states_checked
from probe.experiment.journal import Journal, Rows
from probe.experiment.model_spec import ModelSpec
from probe.experiment.run import Experiment
from probe.experiment.run import run as run_experiment
from probe.experiment.runner import LOCAL, Runner
from probe.experiment.task import Task
from probe.law.calibration import Losses
from probe.law.plan import PredictPlan, needed_bytes
from probe.store.results import PREDICTION
from probe.tasks.score import nll

FOLDER, SUMMARY = PREDICTION.parts
JOURNAL = "journal.jsonl"
"""The folder of the results below --out, and what is in it beside tables and figures."""
_DIGITS = 4


@dataclass(frozen=True)
class PredictWorker:
    """A plan and its model, as plain data."""

    plan: PredictPlan
    source: ModelSpec

    def start(self, memory_bytes: int | None = None) -> Callable[[Task], dict[str, Any]]:
        """Loads the model; a task gives its journal row."""
        loaded, passes, texts = self.source.loaded(), self.plan.passes, self.plan.texts

        def row(task: Task) -> dict[str, Any]:
            name, length, text = str(task.key[0]), int(task.key[1]), int(task.key[2])
            part = passes[name, length]
            executor = self.plan.request.executor
            with mesa.applied(loaded.model, part.method, executor=executor), states_checked(loaded.model):
                losses = nll(loaded.model, texts[text][:length], part.scored).double().numpy()
            return {"config": part.method.describe(), "nll": losses.round(_DIGITS).tolist()}

        return row


@dataclass(frozen=True)
class Predict(Experiment):
    """Every pass over every text, texts in order: after some time the first ones have all passes."""

    plan: PredictPlan
    title, unit = "measuring", "token"

    @property
    def worker(self) -> PredictWorker:
        """What measures the tasks."""
        plan = self.plan
        source = ModelSpec.of(plan.request.model, plan.request.load, plan.config)
        return PredictWorker(replace(plan, config=None), source)

    def tasks(self, rows: Rows) -> Sequence[Task]:
        """Those without a row."""
        memory = needed_bytes(self.plan)
        keys = [(name, length, text) for text in range(len(self.plan.texts)) for name, length in self.plan.passes]
        return [Task("nll", key, memory, memory, weight=key[1]) for key in keys if key not in rows]

    def open_journal(self, out: Path, *, overwrite: bool = False) -> Journal:
        """The folder's journal. FileExistsError for one of other settings, or with other parameters of a method."""
        folder = out / FOLDER
        if overwrite:
            for name in (JOURNAL, SUMMARY, *(f"prediction.{form}" for form in ("csv", "png", "html"))):
                (folder / name).unlink(missing_ok=True)
        journal = Journal(folder / JOURNAL, self.plan.settings, needed=("nll",))
        for (name, length, *_), row in journal.rows.items():
            part = self.plan.passes.get((str(name), int(length)))
            if part and row["config"] != json.loads(json.dumps(part.method.describe())):
                raise FileExistsError(
                    f"{journal.path} holds {name} at {length} with other parameters; use --overwrite or another --out"
                )
        return journal


def losses_of(plan: PredictPlan, rows: Rows) -> Losses:
    """NLL (text, token) of each pass that was run over every text."""
    texts = range(len(plan.texts))
    return {
        key: np.array([rows[(*key, text)]["nll"] for text in texts])
        for key in plan.passes
        if all((*key, text) in rows for text in texts)
    }


def run(
    plan: PredictPlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> tuple[Journal, list[Task]]:
    """The journal of the folder `out` with every pass, unless `until` came before; and the tasks that were lost.

    Raises what `probe.experiment.run.run` and `Runner.check` raise.
    """
    runner.check(plan.request.load)
    return run_experiment(Predict(plan), out, overwrite=overwrite, until=until, runner=runner)
