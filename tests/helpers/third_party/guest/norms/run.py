"""Tasks, their worker and the result of `mesa-lens norms`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import mesa
from guest.norms import NormsRequest
from guest.norms.page import NORMS, Norm, Norms, sections, write_norms
from mesa.fingerprints import identity
from probe.experiment.estimate import estimated
from probe.experiment.pool import Task
from probe.experiment.run import CommandResult, Experiment, PlanWorker, run, summary_of
from probe.figures.section import as_text


class NormsKey(NamedTuple):
    method: str
    length: int


@dataclass(frozen=True)
class NormsPlan:
    request: NormsRequest
    config: Any
    methods: dict[str, mesa.Method]
    trained_length: int
    text_source: None = None

    @property
    def keys(self) -> list[NormsKey]:
        return [NormsKey(name, length) for length in self.request.lengths for name in self.methods]

    @property
    def settings(self) -> dict[str, Any]:
        own = {"trained_length": self.trained_length, **identity(self.request.model, self.config)}
        return {**self.request.identity, **own}


class NormsWorker(PlanWorker):
    def start(self, memory_bytes: int | None = None) -> Any:
        return partial(measure, self.plan, self.source.loaded().model)


@torch.no_grad()
def measure(plan: NormsPlan, model: Any, task: Task) -> dict[str, float]:
    method, length = NormsKey(*task.key)
    ids = torch.arange(length)[None] % model.config.vocab_size
    with mesa.applied(model, plan.methods[method]):
        return {"norm": float(model.model(ids).last_hidden_state.norm(dim=-1).mean())}


class Measuring(Experiment):
    worker_class, columns, needed = NormsWorker, NormsKey, ("norm",)
    folder, written = "norms", ("summary.json", "report.html", "norms.csv")

    def __init__(self, plan: NormsPlan) -> None:
        self.plan = plan

    def tasks(self, rows: Any) -> list[Task]:
        missing = [key for key in self.plan.keys if key not in rows]
        return [Task("norm", key, 0, weight=key.length, length=key.length) for key in missing]


def plan(request: NormsRequest) -> NormsPlan:
    config, trained = request.checked_model()
    return NormsPlan(request, config, request.checked_methods(config, trained), trained)


estimate = partial(estimated, Measuring)


def run_and_report(plan: NormsPlan, out: Path, **how: Any) -> CommandResult:
    journal, failed = run(Measuring(plan), out, **how)
    norms = [Norm(*key, journal.rows[key]["norm"]) for key in plan.keys if key in journal.rows]
    left = len(plan.keys) - len(norms)
    summary = Norms(**summary_of(plan), norms=norms, tasks_left=left)
    NORMS.write(out, summary)
    write_norms(out, summary)
    return CommandResult(summary, as_text(sections(summary)), len(failed), str(left or ""))
