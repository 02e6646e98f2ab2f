"""The experiment of an `AnatomyPlan`, and its folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from transformers import PreTrainedModel

from mesa.errors import Failed
from probe.commands.anatomy.heads import by_span, head_statistics, retrieval_scores, token_values
from probe.commands.anatomy.plan import AnatomyKey, AnatomyPlan, pass_bytes
from probe.commands.anatomy.result import ANATOMY, TABLES, TOKENS
from probe.experiment.journal import JournalRows
from probe.experiment.model_spec import PlanWorker
from probe.experiment.run import Experiment
from probe.experiment.task import MeasureTask, Task
from probe.files import JsonObject

_DIGITS = 7


class AnatomyWorker(PlanWorker):
    """A plan and its model, as plain data."""

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives its journal row."""
        return partial(measure, self.plan, self.source.loaded().model)


@torch.no_grad()
def measure(plan: AnatomyPlan, model: PreTrainedModel, task: Task) -> JsonObject:
    """The row of one prompt: statistics by span, retrieval scores, or every token. RuntimeError if not finite."""
    part, name, length, number = AnatomyKey(*task.key)  # type: ignore[arg-type]
    if part == "tokens":
        row, values = {}, token_values(model, plan.texts[length][number], plan.methods[name])
    elif part == "retrieval":
        row, values = {}, {"score": retrieval_scores(model, plan.passkeys[length][number], plan.methods[name])}
    else:
        means = by_span(head_statistics(model, plan.texts[length][number].tolist(), plan.methods[name]))
        means = means.transpose("span", "layer", "head", ...)
        row, values = {"spans": means["span"].values.tolist()}, {str(key): array for key, array in means.items()}
    for key, array in values.items():
        if not np.isfinite(array.values).all():
            raise Failed(f"{key} is not finite; try a wider --dtype (float32, float64)")
        kept = array.sel(layer=plan.layers) if "layer" in array.dims else array
        row[key] = np.round(kept.values.astype(float), _DIGITS).tolist()
    return row


@dataclass(frozen=True)
class AnatomyExperiment(Experiment):
    """A plan."""

    plan: AnatomyPlan
    title, unit, remedy = "anatomy", "token", "shorten --lengths"
    worker_class, columns = AnatomyWorker, AnatomyKey
    folder, written, needed = (
        ANATOMY.command,
        (ANATOMY.path.name, TOKENS.path.name, "report.html", *(f"{name}.csv" for name in TABLES)),
        ("spans", "score", "nll"),
    )

    def tasks(self, rows: JournalRows) -> list[Task]:
        """The parts of prompts that the journal lacks."""
        missing = [key for key in self.plan.keys if key not in rows]
        return [
            Task(key.part, key, pass_bytes(self.plan, key.part, key.length), weight=key.length, length=key.length)
            for key in missing
        ]
