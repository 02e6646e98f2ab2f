"""The experiment of a `PredictPlan`: NLL of every pass over every text, in a journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import mesa
from mesa.finite import states_checked
from mesa.methods import Method
from probe.commands.predict.calibration import Losses
from probe.commands.predict.plan import PredictPlan, needed_bytes
from probe.commands.predict.result import PREDICTION
from probe.eval_tasks.score import nll
from probe.experiment.journal import JournalRows
from probe.experiment.model_spec import PlanWorker
from probe.experiment.run import Experiment
from probe.experiment.task import Key, MeasureTask, Task
from probe.files import JsonObject

FOLDER, SUMMARY = PREDICTION.path.parts
JOURNAL = "journal.jsonl"
"""The folder of the results below --out, and what is in it beside tables and figures."""
_DIGITS = 4


class PassKey(NamedTuple):
    """What a row of the journal is of: a pass of the plan by its name and length in tokens; text: its number."""

    name: str
    length: int
    text: int


class PredictWorker(PlanWorker):
    """A plan and its model, as plain data."""

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives its journal row."""
        loaded, passes, texts = self.source.loaded(), self.plan.passes, self.plan.texts

        def row(task: Task) -> JsonObject:
            name, length, text = task.key
            part = passes[name, length]
            with (
                mesa.applied(loaded.model, part.method, executor=self.plan.request.executor),
                states_checked(loaded.model),
            ):
                losses = nll(loaded.model, texts[text][:length], part.scored).double().numpy()
            return {"nll": losses.round(_DIGITS).tolist()}

        return row


@dataclass(frozen=True)
class Predict(Experiment):
    """Every pass over every text, texts in order: after some time the first ones have all passes."""

    plan: PredictPlan
    title, unit, remedy = "measuring", "token", "shorten --lengths"
    worker_class, columns = PredictWorker, PassKey
    folder, written, needed = FOLDER, (SUMMARY, "prediction.csv", "prediction.png", "prediction.html"), ("nll",)

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """Those without a row."""
        memory = needed_bytes(self.plan)
        texts, passes = range(len(self.plan.texts)), self.plan.passes
        missing = [key for text in texts for place in passes if (key := PassKey(*place, text)) not in rows]
        return [Task("nll", key, memory, memory, weight=key.length, length=key.length) for key in missing]

    def method(self, key: Key) -> Method | None:
        """As for Experiment: of the pass."""
        row = PassKey(*key)  # type: ignore[arg-type]
        part = self.plan.passes.get((row.name, row.length))
        return part and part.method


def losses_of(plan: PredictPlan, rows: JournalRows) -> Losses:
    """NLL (text, token) of each pass that was run over every text."""
    texts = range(len(plan.texts))
    return {
        key: np.array([rows[(*key, text)]["nll"] for text in texts])
        for key in plan.passes
        if all((*key, text) in rows for text in texts)
    }
