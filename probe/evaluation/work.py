"""What a worker does with a cell of an evaluation: one task under one method at one length."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

import mesa
from mesa.finite import states_checked
from mesa.models import Loaded, bytes_a_number
from probe.capture.memory import free_bytes, prompt_bytes
from probe.cells.cell import Cell, Function
from probe.cells.source import Source
from probe.evaluation.evaluator import KeyChooser
from probe.evaluation.plan import TASKS, EvalPlan, memory_bytes
from probe.tasks.latency import Peak, devices

MEASURE = "measure"
"""The kind of these cells."""
EvalCell = tuple[str, str, int]
"""Task, method and length."""


def cells_of(made: EvalPlan, wanted: Sequence[EvalCell]) -> list[Cell]:
    """Cells for a runner, with the memory that they take: with one prompt at a time, and with a whole batch."""
    each, found = bytes_a_number(made.config, made.request.load), []
    for task, method, length in wanted:
        needs, best = (
            memory_bytes(made.config, [task], replace(made.setting, lengths=(length,), batch=batch), each)
            for batch in (1, made.setting.batch)
        )
        found.append(Cell(MEASURE, (task, method, length), needs, best))
    return found


@dataclass(frozen=True)
class EvalWork:
    """A plan, and the model that it is for."""

    made: EvalPlan
    source: Source

    @classmethod
    def of(cls, made: EvalPlan) -> EvalWork:
        """The work of a plan."""
        asked, chosen = made.request, made.evaluator
        beside = ()
        if chosen and not chosen.itself:
            beside = (Source(chosen.model, asked.load, {"weights": chosen.weights}),)
        return cls(replace(made, config=None), Source.of(asked.model, asked.load, made.config, beside))

    def start(self, room: int | None = None) -> Function:
        """Loads the model; a cell gives its journal row, None where it does not fit in memory."""
        return measure(self.made, self.source.loaded(), room)


def measure(made: EvalPlan, loaded: Loaded, room: int | None = None) -> Function:
    """What gives the journal rows of a plan's cells with a model at hand."""
    asked = made.request
    chooser = made.evaluator and KeyChooser(made.evaluator, made.setting.trained_length, asked.executor, asked.load)

    def row(cell: Cell) -> dict[str, Any] | None:
        task, name, length = cell.key
        return _row(made, loaded, str(task), str(name), int(length), chooser, room)

    return row


def _row(
    made: EvalPlan, loaded: Loaded, task: str, name: str, length: int, chooser: KeyChooser | None, room: int | None
) -> dict[str, Any] | None:
    """A cell's journal row; None where it does not fit in memory, even prompt by prompt."""
    prepared = TASKS[task].prepare(loaded.tokenizer, length, made.setting, made.setting.samples)
    if chooser and TASKS[task].keyed:
        try:
            prepared = chooser.keyed(loaded, prepared, length)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            return None
    method = made.methods[name]
    batch = min(_batch(loaded.model, length, made.setting.batch, room), len(prepared)) if TASKS[task].batched else 1
    measured = contextlib.nullcontext() if task == "latency" else Peak(devices(loaded.model))  # it has its own
    checked = contextlib.nullcontext() if task == "latency" else states_checked(loaded.model)  # it is timed
    with measured as peak, mesa.applied(loaded.model, method, executor=made.request.executor), checked:
        scores = None
        while batch and scores is None:
            try:
                scores = list(TASKS[task].measure(loaded, length, prepared, replace(made.setting, batch=batch)))
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                batch //= 2
    if scores is None:
        return None
    return {
        "config": method.describe(),
        "peak_mib": None if peak is None else peak.bytes / 2**20,
        "scores": [asdict(score) for score in scores],
    }


def _batch(model: Any, length: int, most: int, room: int | None) -> int:
    """How many prompts are decoded at once: up to `most` that take half of the free memory, and at most `room`."""
    needed = prompt_bytes(model.config, length, model.dtype.itemsize)
    free = free_bytes(model.device) // 2
    return max(1, min(most, min(free, free if room is None else room) // needed))


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
