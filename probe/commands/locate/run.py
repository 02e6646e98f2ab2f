"""The experiment of a `LocatePlan`: its worker, its folder, and what a worker does with a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformer_lens.model_bridge import TransformerBridge

from mesa.engine.bridge import bridge as bridge_to
from mesa.errors import Failed
from mesa.methods import Method
from probe.commands.locate.clamp import clamped_dims
from probe.commands.locate.passes import BASELINE, PATCHED, RunPair, blocks
from probe.commands.locate.plan import ORIGIN, ItemGroup, LocateKey, LocatePlan
from probe.commands.locate.result import LOCATED
from probe.commands.locate.tasks import BATCH, CHOSEN, DIMS, SEARCH, no_gap, remaining, tasks
from probe.eval_tasks.retrieval import repeated_word
from probe.experiment.journal import Journal, JournalRows
from probe.experiment.model_spec import PlanWorker
from probe.experiment.run import Experiment, run
from probe.experiment.runner import LOCAL, Runner
from probe.experiment.task import Key, MeasureTask, Task
from probe.files import JsonObject


class LocateWorker(PlanWorker):
    """A plan (without its config) and its model, as plain data."""

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives rows of the journal with their keys."""
        loaded = self.source.loaded()
        bridge = bridge_to(loaded.model, loaded.tokenizer)
        return RunCache(replace(self.plan, config=loaded.model.config), bridge, loaded.tokenizer).measure


class RunCache:
    """Measures tasks; keeps the runs that interventions start from: of one item or, in a head search, of a group."""

    def __init__(self, plan: LocatePlan, bridge: TransformerBridge, tokenizer: Any) -> None:
        self.plan, self._bridge, self._tokenizer = plan, bridge, tokenizer
        self._pairs: dict[tuple[int, str, bool], RunPair] = {}
        self._scope: tuple[Any, ...] = ()

    @torch.no_grad()
    def measure(self, task: Task) -> list[tuple[Key, JsonObject]]:
        """The rows of a task."""
        if task.kind == DIMS:
            return [(task.key, {"rules": self._dims(LocateKey.of(task.key).length)})]
        if task.kind == CHOSEN:
            ((chosen, candidates),) = task.inputs
            return [(task.key, {"heads": chosen, "candidates": candidates})]
        row = LocateKey.of(task.key)
        is_search = task.kind == SEARCH
        return [
            ((*row[:4], *tried.key), {"nll": self._losses(row.group, row.method, row.item, tried, is_search)})
            for tried in task.inputs
        ]

    def _losses(self, group: ItemGroup, name: str, number: int, intervention: Any, is_search: bool) -> list[float]:
        """Losses by block of one item; name: the method, Origin for what serves all. RuntimeError if not finite."""
        pair = self._pair(group, name, number, inside=getattr(intervention, "inside", False), is_search=is_search)
        losses = blocks(group[0], intervention.run(pair).losses.double().cpu().numpy())
        if not np.isfinite(losses).all():
            raise Failed(
                f"the losses of {(*group, name, number, *intervention.key)} are not finite; try a wider --dtype "
                "(float32, float64)"
            )
        return losses

    def _dims(self, length: int) -> dict[str, list[Any]]:
        plan, request = self.plan, self.plan.request
        methods = [plan.methods[ORIGIN], plan.methods[plan.compared[0]]]
        ids, _ = repeated_word(self._tokenizer, request.word, length)
        return clamped_dims(self._bridge, ids, methods, request.dims, executor=request.executor)

    def _pair(
        self, group: ItemGroup, name: str, number: int, *, inside: bool = False, is_search: bool = False
    ) -> RunPair:
        """The runs of an item, with the baseline of the item's other pairs; inside: Origin's on its last M tokens."""
        plan, method = self.plan, self.plan.compared[0] if name == ORIGIN else name
        scope = (group, method, is_search) if is_search else (group, number, is_search)
        if self._scope != scope:
            self._pairs, self._scope = {}, scope
        key = (number, method, inside)
        if key not in self._pairs:
            item, origin = plan.items[group][number], plan.methods[ORIGIN]
            if inside:
                item = replace(item, ids=item.ids[-origin.trained_length :])
            methods = {BASELINE: origin, PATCHED: origin if inside else plan.methods[method]}
            pair = RunPair(self._bridge, item, methods, plan.request.executor)
            for (other, _, cut), known in self._pairs.items():
                if not inside and not cut and other == number and BASELINE in known.outcomes:
                    pair.outcomes[BASELINE] = known.outcomes[BASELINE]
            self._pairs[key] = pair
        return self._pairs[key]


@dataclass(frozen=True)
class Locate(Experiment):
    """A plan. batch: interventions a task."""

    plan: LocatePlan
    batch: int = 1
    title, unit, remedy = "locating", "token", "shorten --lengths or leave clamp out of --try"
    worker_class = LocateWorker
    folder, written, needed = LOCATED.command, (LOCATED.path.name, "report.html"), ("nll", "rules", "heads")

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """The tasks that can run now."""
        return tasks(self.plan, rows, batch=self.batch)

    def all_tasks(self, rows: JournalRows) -> Sequence[Task]:
        """As for Experiment: as if every excess loss were significant; not the clamps, nor a search's later rounds."""
        return tasks(self.plan, rows, batch=self.batch, foresee=True)

    def remaining(self, rows: JournalRows) -> int:
        """The rows that the journal lacks, as far as can be foreseen."""
        return remaining(self.plan, rows)

    def refusal(self, rows: JournalRows) -> str:
        """As for Experiment: why there is no loss to recover."""
        return no_gap(self.plan, rows)

    def method(self, key: Key) -> Method | None:
        """As for Experiment."""
        return self.plan.methods.get(LocateKey.of(key).method)

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Journals a task's rows."""
        for key, row in value:
            journal.add(key, row)


def locate(
    plan: LocatePlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> tuple[Journal, list[Task]]:
    """The journal of the folder `out` with every row of the plan, unless `until` came before; and the lost tasks.

    Raises what `run` raises.
    """
    return run(Locate(plan, 1 if runner.is_local else BATCH), out, overwrite=overwrite, until=until, runner=runner)
