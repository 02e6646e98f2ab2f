"""The two stages of a probe run, failure by length and hidden states, and the worker of both."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr

import mesa
from mesa.errors import Failed, Refused
from mesa.fingerprints import identity
from mesa.methods import Method
from mesa.models import chosen_dtype
from probe.commands.eval import by_length
from probe.commands.eval.plan import EvalPlan
from probe.commands.eval.result import EvalKey
from probe.commands.eval.run import Evaluation
from probe.commands.eval.worker import eval_tasks, measure_with
from probe.commands.probe.plan import ProbePlan, evaluation_plan, provenance, template
from probe.experiment.estimate import Work, work_of
from probe.experiment.journal import Journal, JournalRows, known_rows
from probe.experiment.lock import check_apart, check_run_folder
from probe.experiment.model_spec import PlanWorker
from probe.experiment.run import Experiment
from probe.experiment.task import Key, MeasureTask, Task
from probe.files import JsonObject
from probe.identity import check_of_run
from probe.store import store
from probe.store.reader import partial_path, store_of
from probe.store.regions import whole_passes
from probe.store.select import reference_method
from probe.thresholds.failure import measured_failure

_TRIED = 64  # tokens
_FINEST = 16
"""No length is measured between two that are at most M / 16 apart."""


class FailureByLength(Evaluation):
    """Tail likelihood and passkey at the plan's lengths, then at `rounds` further ones of each method that fails.

    not_compared: settings in which a resumed run may differ.
    """

    title, journal, written = "measuring failure", by_length.JOURNAL, ()

    def __init__(self, plan: EvalPlan, rounds: int, not_compared: Sequence[str] = ()) -> None:
        super().__init__(plan)
        self.rounds, self.not_compared = rounds, not_compared

    @property
    def settings(self) -> JsonObject:
        """As for Experiment."""
        return {name: value for name, value in super().settings.items() if name not in self.not_compared}

    @property
    def request(self) -> None:
        """Nothing: the store has the probe's."""

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """The plan's, then those of the next further length."""
        if missing := super().tasks(rows):
            return missing
        further = further_lengths(self.plan, rows, self.rounds)
        keys = [
            EvalKey(task, name, length)
            for name, lengths in further.items()
            for length in lengths
            for task in by_length.TASKS
        ]
        return eval_tasks(self.plan, [key for key in keys if key not in rows])

    def scores(self, rows: JournalRows) -> xr.Dataset:
        """The scores by length of all rows."""
        return by_length.scores(self.plan, rows, further_lengths(self.plan, rows, self.rounds))

    def remaining(self, rows: JournalRows) -> None:
        """The store tells which lengths there are to be."""
        return

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Adds a row. Raises RuntimeError where the task did not fit in memory, Refused for a NaN."""
        name, method, length = task.key
        if value is None:
            raise Failed(f"{name} under {method} does not fit in memory at {length} tokens; shorten --lengths")
        if any(math.isnan(score["value"]) for score in value["scores"]):
            raise Refused(
                f"the tail NLL under {method} at {length} tokens is not a number; run the model with a wider "
                "--dtype (float32, float64)"
            )
        journal.add(task.key, value)


def further_lengths(plan: EvalPlan, rows: JournalRows, rounds: int) -> dict[str, list[int]]:
    """By method the lengths of up to `rounds` bisections; the last ones may have no rows yet.

    Each is half-way between the length at which the method begins to fail and the measured one before it.
    """
    further: dict[str, list[int]] = {}
    for _ in range(rounds):
        for name, length in _between(plan, rows, further).items():
            further.setdefault(name, []).append(length)
        if any((task, name, further[name][-1]) not in rows for name in further for task in by_length.TASKS):
            break
    return further


def _between(plan: EvalPlan, rows: JournalRows, further: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """By method the next length to measure."""
    scores, trained = by_length.scores(plan, rows, further), plan.setting.trained_length
    failures = measured_failure(scores, trained, reference_method(list(plan.methods))).failures
    return {
        failure.method: (failure.before + failure.length) // 2
        for failure in failures
        if failure.length and failure.before and failure.length - failure.before > max(1, trained // _FINEST)
    }


class StateKey(NamedTuple):
    """What a captured pass is of."""

    method: str
    prompt: str


class HiddenStates(Experiment):
    """A pass a method and prompt, whose hidden states go to the store at `path`."""

    title, unit = "capturing hidden states", "token"

    def __init__(self, plan: ProbePlan, path: Path) -> None:
        self.plan, self.path = plan, path

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """The passes that the store lacks."""
        done = whole_passes(partial_path(self.path))
        return pass_tasks(self.plan, done)

    def method(self, key: Key) -> Method | None:
        """As for Experiment."""
        return self.plan.methods.get(StateKey(*map(str, key)).method)

    def record(self, journal: Journal | None, task: Task, value: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Writes a pass to the store."""
        method, prompt = StateKey(*map(str, task.key))
        for hook, layers in value.items():
            for layer, states in zip(self.plan.kept.layers, layers, strict=True):
                store.write(self.path, hook, method, prompt, layer, states)


def pass_tasks(plan: ProbePlan, done: Collection[tuple[str, str]] = ()) -> list[Task]:
    """Tasks that capture the passes, by method and prompt, that are not done."""
    size = 4 * plan.kept.values * len(plan.kept.layers)
    need, tokens = plan.pass_bytes + size, plan.length
    left = [key for key in product(plan.methods, plan.prompts) if key not in done]
    return [Task("capture", key, need, result_bytes=size, weight=tokens, length=tokens) for key in left]


@dataclass(frozen=True)
class ProbeWorker(PlanWorker):
    """The plans of a run and of its evaluation (without config), the prompts' tokens, and the model."""

    evaluation: EvalPlan
    tokens: Mapping[str, list[int]]

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model and tries every method; a task gives its journal row, or hidden states by hook.

        Capture wraps the model: nothing can be measured after it. Raises Refused for values that the store cannot
        hold.
        """
        loaded = self.source.loaded()
        self._try_values(loaded.model)
        measure, bridge = measure_with(self.evaluation, loaded, memory_bytes), None

        def result(task: Task) -> object:
            nonlocal bridge
            if task.kind != "capture":
                return measure(task)
            bridge = bridge or mesa.bridge(loaded.model, loaded.tokenizer)
            return self._states(bridge, *map(str, task.key))

        return result

    @torch.no_grad()
    def _try_values(self, model: Any) -> None:
        """Raises Refused where a short pass under a method has values that the store cannot hold."""
        plan, request, kept = self.plan, self.plan.request, self.plan.kept
        tried = kept.axes.get("resid_post")
        for name, method in plan.methods.items():
            ids = torch.tensor([self.tokens[plan.prompts[0]][:_TRIED]], device=model.device)
            with mesa.applied(model, method, executor=request.executor):
                states = model(ids, use_cache=False, output_hidden_states=True).hidden_states
            for layer in kept.layers if tried else ():
                values = states[layer + 1][0][:, list(tried["dim"])].float().cpu().numpy()
                store.check_values(values, np.dtype(request.spec.dtype), f"layer {layer} under {name}")

    def _states(self, bridge: Any, method: str, prompt: str) -> dict[str, np.ndarray]:
        from probe.capture.capture import capture  # with transformer-lens, which plans do without

        request, plan = self.plan.request, self.plan
        return capture(bridge, self.tokens[prompt], plan.methods[method], plan.kept, executor=request.executor)


def check_folder(plan: ProbePlan, out: Path) -> None:
    """Raises FileExistsError where the folder `out` is another command's, or of another model."""
    check_apart(out, ("journal.jsonl",))
    known = {**provenance(plan), **identity(plan.request.model, plan.config)}
    check_of_run(out, known, {}, partial(chosen_dtype, plan.config))


def work(plan: ProbePlan, out: Path | None = None) -> Work:
    """The tasks of a run, measured and captured, with their methods; out: a folder, for those left there.

    Raises FileExistsError for the folder of another run, as that run would.
    """
    rows, captured = dict[Any, Any](), set[tuple[str, str]]()
    if out is not None:
        check_run_folder(out)
        check_folder(plan, out)
        if path := store.find_store(store_of(out), template(plan)):
            rows, captured = known_rows(out / by_length.JOURNAL), whole_passes(path)
    failure, states = FailureByLength(evaluation_plan(plan, ()), plan.refine), HiddenStates(plan, Path())
    measured = failure.tasks(rows) if plan.request.samples else ()
    return [*work_of(failure, measured), *work_of(states, pass_tasks(plan, captured))]
