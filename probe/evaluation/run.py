"""Runs the cells of an evaluation, and keeps every score in a folder."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import mesa
from mesa.finite import states_checked
from mesa.methods import Method
from mesa.models import Loaded, load
from probe.capture.memory import free_bytes, prompt_bytes
from probe.evaluation.clock import is_over
from probe.evaluation.effective import effective_lengths
from probe.evaluation.evaluator import KeyChooser
from probe.evaluation.journal import Journal
from probe.evaluation.keyed import pooled
from probe.evaluation.plan import TASKS, EvalPlan
from probe.evaluation.summary import summarize
from probe.files import write
from probe.ownership import owned
from probe.tasks.latency import Peak, devices
from probe.tasks.recall import RULER

JOURNAL = "cells.jsonl"
TABLES = ("samples.csv", "summary.json")
COLUMNS = ("task", "method", "length", "seed", "sample", "metric", "score", "seconds", "peak_mib")
EvalCell = tuple[str, str, int]
"""Task, method and length."""
_PACKAGES = ("mesa-lens", "torch", "transformers")


def check_owner(out: Path) -> None:
    """Raises FileExistsError for a folder whose samples or summary are no evaluation's."""
    foreign = [name for name in TABLES if (out / name).exists()]
    if foreign and not (out / JOURNAL).exists():
        raise FileExistsError(f"{out / foreign[0]} is no evaluation's; choose another --out")


def open_journal(made: EvalPlan, out: Path, *, overwrite: bool = False) -> Journal:
    """The folder's journal. Raises FileExistsError for one of other settings, or with other sizes of a method.

    `overwrite` removes what an evaluation writes and nothing else. Raises what `check_owner` raises.
    """
    check_owner(out)
    if overwrite:
        for name in (JOURNAL, *TABLES, *(f"{task}.{form}" for task in TASKS for form in ("png", "html"))):
            (out / name).unlink(missing_ok=True)
    return checked_journal(out / JOURNAL, made.settings, made.methods, made.request.force)


def checked_journal(
    path: Path, settings: Mapping[str, Any], methods: Mapping[str, Method], force: bool = False
) -> Journal:
    """The journal at `path`. Raises FileExistsError for one of other settings, or with other sizes of a method."""
    journal = Journal(path, settings, force=force)
    for (task, name, length), row in journal.rows.items():
        if name in methods and row["config"] != json.loads(json.dumps(methods[str(name)].describe())):
            raise FileExistsError(
                f"{path} holds {task} of {name} at {length} with other parameters; use --overwrite or another --out"
            )
    return journal


def run(made: EvalPlan, out: Path, *, overwrite: bool = False, until: float | None = None) -> dict[str, Any]:
    """Runs what is missing in the folder `out`; writes samples.csv and summary.json; returns the summary.

    A cell (task, method, length) is whole in cells.jsonl or absent, so an interrupted run goes on from there. After
    the `clock.deadline` `until` no cell is begun; the summary's `cells_left` counts those that are not run. Cells that
    do not fit in memory are left out, told on stderr and in the summary's `out_of_memory`. Raises
    FileExistsError for a folder that holds another evaluation, RuntimeError where no cell fits or a layer's states are
    no numbers, and what `owned` raises.
    """
    with owned(out):
        return _run(made, out, overwrite, until)


def _run(made: EvalPlan, out: Path, overwrite: bool, until: float | None) -> dict[str, Any]:
    check_owner(out)
    loaded = load(made.request.model, **made.request.load) if overwrite else None  # before anything is removed
    journal = open_journal(made, out, overwrite=overwrite)
    missing = missing_cells(made, journal)
    journal.expect(len({*journal.rows, *made.cells}))
    too_large: list[EvalCell] = []
    try:
        if missing and not is_over(until):
            loaded = loaded or load(made.request.model, **made.request.load)
            too_large = run_cells(made, loaded, missing, journal, until=until)
    finally:  # what is done is readable, also after an interrupt
        if journal.rows:
            write_samples(journal, made.setting.seed, out / "samples.csv")
    found = samples(journal, made)
    if not found and too_large:
        raise RuntimeError(f"nothing fits in memory from {min(length for *_, length in too_large)} tokens on")
    summary = {
        "model": made.request.model,
        "trained_length": made.setting.trained_length,
        "seed": made.setting.seed,
        "methods": {name: method.describe() for name, method in made.methods.items()},
        "versions": {package: version(package) for package in _PACKAGES},
        "sizes": dict(made.sizes),
        "evaluator": made.evaluator and made.evaluator.about,
        "out_of_memory": too_large,
        **journal.told,
        "cells_left": sum(not _is_done(made, journal, cell) for cell in made.cells) - len(too_large),
        "effective": effective_lengths(
            found, [task.name for task in RULER], made.setting.trained_length, are_rulers=made.are_rulers
        ),
        "longppl": pooled(found),
        "cells": summarize(found, TASKS),
    }
    if journal.rows:  # else it would make the folder look like somebody else's
        write(out / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
    return summary


def missing_cells(made: EvalPlan, journal: Journal) -> list[EvalCell]:
    """The cells of the plan that the journal lacks, or has for other lengths than are asked for now."""
    return [cell for cell in made.cells if not _is_done(made, journal, cell)]


def _is_done(made: EvalPlan, journal: Journal, cell: EvalCell) -> bool:
    """Whether the journal has the cell, with scores of the lengths that are asked for now."""
    task, _, length = cell
    row = journal.rows.get(cell)
    return row is not None and {score["length"] for score in row["scores"]} == {
        *TASKS[task].scored(length, made.setting)
    }


def run_cells(
    made: EvalPlan,
    loaded: Loaded,
    missing: Sequence[EvalCell],
    journal: Journal,
    *,
    what: str = "evaluating",
    until: float | None = None,
    check: Callable[[EvalCell, Mapping[str, Any] | None], object] = lambda cell, row: None,
) -> list[EvalCell]:
    """Runs cells one after another until `until`; returns those that do not fit in memory, longer ones untried.

    what: the bar's name; its unit is tokens, so that its ETA knows long prompts. check: called with each cell and its
    row (None: it does not fit) before the row is kept; may raise.
    """
    too_large: dict[tuple[str, str], int] = {}
    left_out = []
    asked = made.request
    chooser = made.evaluator and KeyChooser(made.evaluator, made.setting.trained_length, asked.executor, asked.load)
    total = sum(TASKS[task].tokens(length, made.setting) for task, _, length in missing)
    with tqdm(total=total, desc=what, unit="token", unit_scale=True, smoothing=0.05) as bar:
        for task, name, length in missing:
            bar.set_postfix_str(f"{task}, {name}, {length}")
            if length < too_large.get((task, name), length + 1):
                row = _cell(made, loaded, task, name, length, chooser)
                check((task, name, length), row)
                if row is None:
                    too_large[task, name] = length
                else:
                    journal.add((task, name, length), row)
            if (task, name) in too_large:
                left_out.append((task, name, length))
                bar.write(f"left out: {task} under {name} does not fit in memory at {length} tokens", file=sys.stderr)
            bar.update(TASKS[task].tokens(length, made.setting))
            if is_over(until):
                break
    return left_out


def _cell(
    made: EvalPlan, loaded: Loaded, task: str, name: str, length: int, chooser: KeyChooser | None
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
    batch = min(_batch(loaded.model, length, made.setting.batch), len(prepared)) if TASKS[task].batched else 1
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


def _batch(model: Any, length: int, most: int) -> int:
    """How many prompts are decoded at once: up to `most` that take half of the free memory."""
    needed = prompt_bytes(model.config, length, model.dtype.itemsize)
    return max(1, min(most, free_bytes(model.device) // 2 // needed))


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def samples(journal: Journal, made: EvalPlan | None = None) -> list[dict[str, Any]]:
    """One row a sample and metric, in `COLUMNS` without the seed; of all cells, or of those of a plan."""
    wanted = None if made is None else set(made.cells)
    return [
        {
            "task": task,
            "method": method,
            "length": score["length"],
            "sample": score["sample"],
            "metric": score["metric"],
            "score": score["value"],
            "seconds": score["seconds"],
            "peak_mib": row["peak_mib"],
        }
        for (task, method, length), row in journal.rows.items()
        if wanted is None or (task, method, length) in wanted
        for score in row["scores"]
    ]


def write_samples(journal: Journal, seed: int, path: Path) -> None:
    """Writes the tidy table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in samples(journal):
            row["seed"] = seed
            writer.writerow({name: _as_read(row[name]) for name in COLUMNS})


def _as_read(value: Any) -> Any:
    """A measured number to six digits: the journal keeps them all."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
