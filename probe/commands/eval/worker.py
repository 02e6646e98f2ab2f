"""The tasks of an evaluation, one task under one method at one length each, and the worker that measures them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

import mesa
from mesa.device import free_bytes
from mesa.finite import states_checked
from mesa.models import Loaded, bytes_a_number
from probe.capture.memory import prompt_bytes
from probe.commands.eval.plan import TASKS, EvalPlan, memory_bytes
from probe.commands.eval.result import EvalKey
from probe.eval_tasks.latency import devices, watched_peak
from probe.experiment.model_spec import PlanWorker
from probe.experiment.task import MeasureTask, Task
from probe.files import JsonObject


def eval_key(task: Task) -> EvalKey:
    """A task's key, typed."""
    name, method, length = task.key
    return EvalKey(str(name), str(method), int(length))


def eval_tasks(plan: EvalPlan, keys: Sequence[EvalKey]) -> list[Task]:
    """Tasks with the memory that they take: with one prompt at a time, and with a whole batch."""
    number_bytes, tasks = bytes_a_number(plan.config, plan.request.load), []
    for task, method, length in keys:
        least, best = (
            memory_bytes(plan.config, [task], replace(plan.setting, lengths=(length,), batch=batch), number_bytes)
            for batch in (1, plan.setting.batch)
        )
        weight = TASKS[task].tokens(length, plan.setting)
        tasks.append(Task("measure", (task, method, length), least, best, weight=weight, length=length))
    return tasks


class EvalWorker(PlanWorker):
    """An `EvalPlan`, and the model that it is for."""

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives its journal row, None where it does not fit in memory."""
        return measure_with(self.plan, self.source.loaded(), memory_bytes)


def measure_with(plan: EvalPlan, loaded: Loaded, memory_bytes: int | None = None) -> MeasureTask:
    """The function that measures a plan's tasks on a loaded model."""

    def row(task: Task) -> JsonObject | None:
        name, method, length = eval_key(task)
        try:
            prepared = TASKS[name].prepare(loaded.tokenizer, length, plan.setting, plan.setting.samples)
        except RuntimeError as error:
            if _is_out_of_memory(error):
                return None
            raise
        return _row(plan, loaded, name, method, length, prepared, memory_bytes)

    return row


def _row(
    plan: EvalPlan,
    loaded: Loaded,
    name: str,
    method_name: str,
    length: int,
    prepared: Sequence[Any],
    memory: int | None,
) -> JsonObject | None:
    """A task's journal row; None where it does not fit in memory, even prompt by prompt."""
    task, method, setting = TASKS[name], plan.methods[method_name], plan.setting
    batch = min(_batch(loaded.model, length, setting.batch, memory), len(prepared)) if task.batched else 1
    measured = contextlib.nullcontext() if task.is_timed else watched_peak(devices(loaded.model))
    checked = contextlib.nullcontext() if task.is_timed else states_checked(loaded.model)
    with measured as peak, mesa.applied(loaded.model, method, executor=plan.request.executor), checked:
        scores = None
        while batch and scores is None:
            try:
                scores = list(task.measure(loaded, length, prepared, replace(setting, batch=batch)))
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                batch //= 2
    if scores is None:
        return None
    return {"peak_mib": None if peak is None else peak.bytes / 2**20, "scores": [asdict(score) for score in scores]}


def _batch(model: Any, length: int, most: int, memory: int | None) -> int:
    """How many prompts are decoded at once: up to `most` that take half of the free memory, and at most `memory`."""
    free = free_bytes(model.device) // 2
    limit = free if memory is None else min(free, memory)
    return max(1, min(most, limit // prompt_bytes(model.config, length, model.dtype.itemsize)))


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
