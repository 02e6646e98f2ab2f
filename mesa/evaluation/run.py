"""Runs the cells of an evaluation, and keeps every score in a folder."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import mesa
from mesa.evaluation.plan import TASKS, EvalPlan
from mesa.evaluation.summary import summarize
from mesa.journal import Journal
from mesa.methods import Method
from mesa.models import Loaded, load
from mesa.tasks.base import Score
from mesa.tasks.latency import Peak, devices

JOURNAL = "cells.jsonl"
TABLES = ("samples.csv", "summary.json")
COLUMNS = ("task", "method", "length", "seed", "sample", "metric", "score", "seconds", "peak_mib")
_PACKAGES = ("mesa-lens", "torch", "transformers")


def open_journal(made: EvalPlan, out: Path, *, overwrite: bool = False) -> Journal:
    """The folder's journal. Raises FileExistsError for one of other settings, or with other sizes of a method.

    `overwrite` removes what an evaluation writes and nothing else. A folder whose samples or summary are no
    evaluation's is refused.
    """
    path = out / JOURNAL
    foreign = [name for name in TABLES if (out / name).exists()]
    if foreign and not path.exists():
        raise FileExistsError(f"{out / foreign[0]} is no evaluation's; choose another --out")
    if overwrite:
        for name in (JOURNAL, *TABLES, *(f"{task}.{form}" for task in TASKS for form in ("png", "html"))):
            (out / name).unlink(missing_ok=True)
    journal = Journal(path, made.settings)
    check_methods(journal, made.methods)
    return journal


def check_methods(journal: Journal, methods: Mapping[str, Method]) -> None:
    """Raises FileExistsError for a journal that holds one of the methods with other parameters."""
    for (task, name, length), row in journal.rows.items():
        if name in methods and row["config"] != json.loads(json.dumps(methods[str(name)].describe())):
            raise FileExistsError(
                f"{journal.path} holds {task} of {name} at {length} with other parameters; "
                "use --overwrite or another --out"
            )


def run(made: EvalPlan, out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Runs what is missing in the folder `out`; writes samples.csv and summary.json; returns the summary.

    A cell (task, method, length) is whole in cells.jsonl or absent, so an interrupted run goes on from there. Raises
    FileExistsError for a folder that holds another evaluation.
    """
    journal = open_journal(made, out, overwrite=overwrite)
    missing = [cell for cell in made.cells if not _is_done(made, journal, cell)]
    if missing:
        loaded = load(made.request.model, **made.request.load)
        try:
            _run_cells(made, loaded, missing, journal)
        finally:  # what is done is readable, also after an interrupt
            write_samples(journal, made.setting.seed, out / "samples.csv")
    else:
        write_samples(journal, made.setting.seed, out / "samples.csv")
    summary = {
        "model": made.request.model,
        "trained_length": made.setting.trained_length,
        "seed": made.setting.seed,
        "methods": {name: method.describe() for name, method in made.methods.items()},
        "versions": {package: version(package) for package in _PACKAGES},
        "cells": summarize(samples(journal, made), TASKS),
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def _is_done(made: EvalPlan, journal: Journal, cell: tuple[str, str, int]) -> bool:
    """Whether the journal has the cell, with scores of the lengths that are asked for now."""
    task, _, length = cell
    row = journal.rows.get(cell)
    return row is not None and {score["length"] for score in row["scores"]} == {
        *TASKS[task].scored(length, made.setting)
    }


def _run_cells(made: EvalPlan, loaded: Loaded, missing: list[tuple[str, str, int]], journal: Journal) -> None:
    """Runs cells one after another; tokens are the bar's unit, so that its ETA knows long prompts."""
    total = sum(length for _, _, length in missing) * made.setting.samples
    with tqdm(total=total, desc="evaluating", unit="token", unit_scale=True, smoothing=0.05) as bar:
        for task, name, length in missing:
            bar.set_postfix_str(f"{task}, {name}, {length}")
            prepared = TASKS[task].prepare(loaded.tokenizer, length, made.setting, made.setting.samples)
            measured = contextlib.nullcontext() if task == "latency" else Peak(devices(loaded.model))  # it has its own
            with measured as peak, mesa.applied(loaded.model, made.methods[name], executor=made.request.executor):
                scores = _with_smaller_batches(made, loaded, task, length, prepared)
            row = {
                "config": made.methods[name].describe(),
                "peak_mib": None if peak is None else peak.bytes / 2**20,
                "scores": [asdict(score) for score in scores],
            }
            journal.add((task, name, length), row)
            bar.update(length * made.setting.samples)


def _with_smaller_batches(
    made: EvalPlan, loaded: Loaded, task: str, length: int, prepared: Sequence[Any]
) -> list[Score]:
    """The scores of a cell; where memory runs out, again with half the batch, down to one prompt."""
    batch = min(made.setting.batch, len(prepared))
    while True:
        try:
            return list(TASKS[task].measure(loaded, length, prepared, replace(made.setting, batch=batch)))
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            if batch == 1:
                raise RuntimeError(
                    f"{task} does not fit in memory at {length} tokens; ask for shorter --lengths"
                ) from error
        batch //= 2


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
            writer.writerow({name: row[name] for name in COLUMNS})
