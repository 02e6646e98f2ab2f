"""The experiment of an `AnatomyPlan`, and its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from probe.attention import moments
from probe.attention.heads import by_span, head_statistics, retrieval_scores
from probe.attention.logit_lens import logit_lens
from probe.attention.phases import unmet_share
from probe.attention.request import AnatomyPlan, needed_bytes, pass_bytes, reading_bytes, states_bytes
from probe.capture.bridge import bridge_to
from probe.capture.capture import Hooked, run_hooked
from probe.capture.memory import check_beside
from probe.capture.spec import HOOKS
from probe.experiment.journal import Journal, Rows, check_methods, check_settings
from probe.experiment.model_spec import ModelSpec
from probe.experiment.run import Experiment, run
from probe.experiment.runner import LOCAL, Runner
from probe.experiment.task import Measure, Task
from probe.store.results import ANATOMY, VECTORS

FOLDER, JOURNAL = "anatomy", "journal.jsonl"
"""The folder of the results below --out, and the journal in it; moments lie beside it."""
LOOK, TEXT = "look", "vectors"
"""Kinds of tasks: a part of one prompt, and the states of one text that slides."""
_REMEDY = "shorten --lengths, give fewer --layers or --methods, or leave vectors out of --parts"
_SAMPLE = 256  # tokens of a bucket that the logit lens reads
_DIGITS = 7


@dataclass(frozen=True)
class AnatomyWorker:
    """A plan and its model, as plain data."""

    plan: AnatomyPlan
    source: ModelSpec

    def start(self, memory_bytes: int | None = None) -> Measure:
        """Loads the model; a task gives its journal row or, of a text that slides, its states by layer."""
        loaded = self.source.loaded()
        plan = replace(self.plan, config=loaded.model.config)
        return partial(measure, plan, bridge_to(loaded.model, loaded.tokenizer))


@torch.no_grad()
def measure(plan: AnatomyPlan, bridge: TransformerBridge, task: Task) -> Any:
    """The row of a prompt's part, or the states (position, dim) by layer of a text. RuntimeError if not finite."""
    part, name, length, number = str(task.key[0]), str(task.key[1]), int(task.key[2]), int(task.key[3])
    model: Any = bridge.original_model
    method = plan.methods[name]
    if task.kind == TEXT:
        return _states(plan, bridge, name, plan.sliding[number].tolist())
    if part == "retrieval":
        scores = retrieval_scores(model, [plan.passkeys[length][number]], method)
        return _rounded({"score": scores[0].sel(layer=plan.layers)})
    ids = plan.texts[length][number].tolist()
    if part == "lens":
        options = {"sample": _SAMPLE, "executor": plan.request.executor}
        losses = logit_lens(bridge, [ids], method, buckets(length, plan.trained_length), plan.layers, **options)
        return {"ends": losses["bucket"].values.tolist(), **_rounded({"nll": losses.isel(prompt=0)})}
    statistics = head_statistics if part == "heads" else unmet_share
    means = by_span(statistics(model, [ids], method)).isel(prompt=0).sel(layer=plan.layers)
    values = {str(key): array.transpose("span", "layer", "head", ...) for key, array in means.data_vars.items()}
    return {"spans": means["span"].values.tolist(), **_rounded(values)}


def _states(plan: AnatomyPlan, bridge: TransformerBridge, name: str, ids: list[int]) -> list[np.ndarray]:
    indices, states = plan.indices, list[np.ndarray]()
    place = np.ix_(indices.positions, indices.dims)

    def look(tensor: Tensor, hook: Any) -> None:
        states.append(tensor[0].flatten(1).float().cpu().numpy()[place])
        if not np.isfinite(states[-1]).all():
            layer = indices.layers[len(states) - 1]
            raise RuntimeError(
                f"the states of layer {layer} are not finite; run the model with a wider --dtype (float32, float64)"
            )

    hooks: list[Hooked] = [(HOOKS[plan.spec.hooks[0]].format(layer=layer), look) for layer in indices.layers]
    run_hooked(bridge, ids, plan.methods[name], hooks, max(indices.layers) + 1, executor=plan.request.executor)
    return states


def buckets(length: int, trained_length: int) -> list[int]:
    """Where the lens' buckets of predicted tokens end: M/2, M, 2 M, 4 M, ... and the length itself."""
    ends, end = {length}, max(2, trained_length // 2)
    while end < length:
        ends.add(end)
        end *= 2
    return sorted(ends)


def _rounded(values: Mapping[str, xr.DataArray]) -> dict[str, Any]:
    for name, array in values.items():
        if not np.isfinite(array.values).all():
            raise RuntimeError(f"{name} is not finite; try a wider --dtype (float32, float64)")
    return {name: np.round(array.values.astype(float), _DIGITS).tolist() for name, array in values.items()}


class AnatomyExperiment(Experiment):
    """A plan in a folder. The sums of moments are made here, text after text in order, wherever the texts are read.

    skipped_tasks: texts of a method that follow one that was lost.
    """

    title, unit = "anatomy", "token"

    def __init__(self, plan: AnatomyPlan, out: Path) -> None:
        self.plan, self.skipped_tasks = plan, list[Task]()
        self._out, self._texts, self._cut = out, dict[str, int](), set[str]()
        self._stored: dict[str, xr.Dataset] = {}

    @property
    def worker(self) -> AnatomyWorker:
        """What measures the tasks."""
        plan = self.plan
        source = ModelSpec.of(plan.request.model, plan.request.load, plan.config)
        return AnatomyWorker(replace(plan, config=None), source)

    def tasks(self, rows: Rows) -> list[Task]:
        """The parts of prompts that the journal lacks, and the texts that moments lack."""
        plan, longest = self.plan, self.plan.lengths[-1]
        missing = [key for key in plan.keys if key not in rows]
        result = [Task(LOOK, key, pass_bytes(plan, key[0], key[2]), weight=key[2]) for key in missing]
        if "vectors" in plan.parts:
            states = states_bytes(plan)
            needed = pass_bytes(plan, "vectors", longest) + states
            result += [
                Task(TEXT, (TEXT, name, longest, number), needed, result_bytes=states, weight=longest)
                for name in plan.methods
                for number in range(self._texts.get(name, 0), len(plan.sliding))
            ]
        return result

    def remaining(self, rows: Rows) -> int:
        """The rows that the journal lacks."""
        return sum(key not in rows for key in self.plan.keys)

    def wanted(self, task: Task) -> bool:
        """Whether no earlier text of the method was lost."""
        return task.kind != TEXT or task.key[1] not in self._cut

    def skipped(self, task: Task) -> None:
        """Notes a text that follows a lost one."""
        self.skipped_tasks.append(task)

    def lost(self, task: Task) -> None:
        """After a lost text its method has no more."""
        if task.kind == TEXT:
            self._cut.add(str(task.key[1]))

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Journals a row, or adds a text to its method's moments and stores them."""
        name = str(task.key[1])
        if task.kind == LOOK:
            journal.add(task.key, {"config": _config(self.plan, name), **value})
            return
        if name not in self._stored:
            self._stored = {name: _continued(self.plan, self._out, name)}
        moments.add(self._stored[name], value)
        moments.save(self._stored[name], moments_path(self._out, name, self.plan.lengths[-1]))
        self._texts[name] = self._texts.get(name, 0) + 1

    def open_journal(self, out: Path, *, overwrite: bool = False) -> Journal:
        """The folder's journal, after its moments were checked too; `overwrite` removes both and the results.

        Raises FileExistsError for those of other settings, or with other parameters of a method.
        """
        plan, folder = self.plan, out / FOLDER
        path, stored = folder / JOURNAL, sorted(folder.glob("moments-*.npz"))
        if overwrite:
            results = (out / ANATOMY, out / VECTORS, folder / "report.html", *folder.glob("*.csv"))
            for old in (path, *stored, *results):
                old.unlink(missing_ok=True)
            stored = []
        journal = Journal(path, plan.settings, plan.methods)
        for file in stored:
            attrs = moments.attrs_of(file)
            check_settings(file, attrs["settings"], plan.settings)
            check_methods(file, [json.loads(attrs["method"])], plan.methods)
        self._texts = texts_read(plan, out)
        return journal


def anatomy(
    plan: AnatomyPlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> tuple[Journal, list[Task]]:
    """The journal of the folder `out` with every row of the plan and the moments beside it, unless `until` came.

    And the tasks that were lost, with the texts that were to follow them. Raises MemoryError before any pass for what
    does not fit, and what `run` and `Runner.check` raise.
    """
    runner.check(plan.request.load)
    if runner.is_local:
        check_beside(needed_bytes(plan), plan.request.load, _REMEDY)
    elif "vectors" in plan.parts:
        check_beside(reading_bytes(plan), {}, _REMEDY)
    experiment = AnatomyExperiment(plan, out)
    journal, lost = run(experiment, out, overwrite=overwrite, until=until, runner=runner)
    return journal, lost + experiment.skipped_tasks


def _continued(plan: AnatomyPlan, out: Path, name: str) -> xr.Dataset:
    """A method's moments so far, with the plan's settings."""
    path = moments_path(out, name, plan.lengths[-1])
    path.parent.mkdir(parents=True, exist_ok=True)
    attrs = {"hook": plan.spec.hooks[0], "method": json.dumps(_config(plan, name), sort_keys=True)}
    known = moments.load(path) if path.exists() else moments.empty(plan.indices, plan.trained_length, plan.dtype, attrs)
    known.attrs.update(total=len(plan.sliding) * len(plan.methods), settings=json.loads(json.dumps(plan.settings)))
    return known


def moments_path(out: Path, name: str, length: int) -> Path:
    """The moments of a method at a length."""
    return out / FOLDER / f"moments-{name}-{length}.npz"


def texts_read(plan: AnatomyPlan, out: Path) -> dict[str, int]:
    """By method: how many texts its moments are of."""
    return {name: moments.texts_in(moments_path(out, name, plan.lengths[-1])) for name in plan.methods}


def _config(plan: AnatomyPlan, name: str) -> Any:
    """A method's description, as a journal gives it back."""
    return json.loads(json.dumps(plan.methods[name].describe()))
