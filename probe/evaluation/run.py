"""Runs the cells of an evaluation, and keeps every score in a folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mesa.methods import Method
from probe.cells.cell import Cell
from probe.cells.pool import Pool
from probe.cells.pool import run as run_in_turns
from probe.cells.runner import LOCAL, Runner
from probe.cells.watch import watching
from probe.evaluation.clock import is_over
from probe.evaluation.effective import effective_lengths
from probe.evaluation.journal import Journal
from probe.evaluation.keyed import pooled
from probe.evaluation.plan import TASKS, EvalPlan
from probe.evaluation.summary import summarize
from probe.evaluation.work import EvalCell, EvalWork, cells_of
from probe.files import write_json
from probe.ownership import owned, tell_finished
from probe.tasks.recall import RULER

JOURNAL = "cells.jsonl"
TABLES = ("samples.csv", "summary.json")
COLUMNS = ("task", "method", "length", "seed", "sample", "metric", "score", "seconds", "peak_mib")
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
    for cell, row in journal.rows.items():
        if wrong := _misfit(cell, row, settings):
            raise ValueError(f"{path}: {wrong} in {list(cell)}; remove its line, use --overwrite or another --out")
        task, name, length = cell
        if name in methods and row["config"] != json.loads(json.dumps(methods[str(name)].describe())):
            raise FileExistsError(
                f"{path} holds {task} of {name} at {length} with other parameters; use --overwrite or another --out"
            )
    return journal


def _misfit(cell: tuple[str | int, ...], row: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """What of a row's scores is not as the task and the settings have it: a metric, or a sample; empty for nothing."""
    task = str(cell[0])
    if len(cell) != 3:
        return "no task, method and length"
    if task not in TASKS or "scores" not in row:
        return ""
    known, samples = {metric.name for metric in TASKS[task].metrics}, TASKS[task].count(settings["samples"])
    found: dict[Any, list[int]] = {}
    for score in row["scores"]:
        found.setdefault((score["length"], score["metric"]), []).append(score["sample"])
    for (length, metric), there in found.items():
        if metric not in known:
            return f"{metric!r} is no metric of {task}"
        if there != [*range(len(there))] or len(there) not in samples:
            return f"{len(there)} of {samples[-1]} samples of {metric} at {length}"
    return ""


def run(
    made: EvalPlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> dict[str, Any]:
    """Runs what is missing in the folder `out`; writes samples.csv and summary.json; returns the summary.

    A cell (task, method, length) is whole in cells.jsonl or absent, so an interrupted run goes on from there. After
    the `clock.deadline` `until` no cell is begun; the summary's `cells_left` counts those that are not run. Cells that
    do not fit in memory are left out, told on stderr and in the summary's `out_of_memory`; those that no worker of the
    `runner` could finish, in `failed`. Raises FileExistsError for a folder that holds another evaluation, RuntimeError
    where no cell fits or a layer's states are no numbers, and what `owned` and `Runner.check` raise.
    """
    runner.check(made.request.load)
    with owned(out):
        return _run(made, out, overwrite, until, runner)


def _run(made: EvalPlan, out: Path, overwrite: bool, until: float | None, runner: Runner) -> dict[str, Any]:
    check_owner(out)
    with ExitStack() as stack:
        pool = None
        if overwrite:  # before anything is removed
            pool = stack.enter_context(runner.pool(EvalWork.of(made), cells_of(made, made.cells)))
        journal = open_journal(made, out, overwrite=overwrite)
        journal.expect(len({*journal.rows, *made.cells}))
        missing, left_out = missing_cells(made, journal), LeftOut()
        if not missing:
            tell_finished(out)
        try:
            if missing and not is_over(until):
                pool = pool or stack.enter_context(runner.pool(EvalWork.of(made), cells_of(made, missing)))
                left_out = run_cells(made, pool, missing, journal, until=until)
        finally:  # what is done is readable, also after an interrupt
            if journal.rows:
                write_samples(journal, made.setting.seed, out / "samples.csv")
    return _sum_up(made, out, journal, left_out)


def _sum_up(made: EvalPlan, out: Path, journal: Journal, left_out: LeftOut) -> dict[str, Any]:
    """Writes and returns the summary."""
    found, too_large = samples(journal, made), left_out.too_large
    if not found and too_large:
        raise RuntimeError(f"nothing fits in memory from {min(length for *_, length in too_large)} tokens on")
    left = sum(not _is_done(made, journal, cell) for cell in made.cells)
    summary = {
        "model": made.request.model,
        "trained_length": made.setting.trained_length,
        "seed": made.setting.seed,
        "methods": {name: method.describe() for name, method in made.methods.items()},
        "versions": {package: version(package) for package in _PACKAGES},
        "sizes": dict(made.sizes),
        "evaluator": made.evaluator and made.evaluator.about,
        "out_of_memory": too_large,
        "failed": left_out.failed,
        **journal.told,
        "cells_left": left - len(too_large) - len(left_out.failed),
        "effective": effective_lengths(
            found, [task.name for task in RULER], made.setting.trained_length, are_rulers=made.are_rulers
        ),
        "longppl": pooled(found),
        "cells": summarize(found, TASKS),
    }
    if journal.rows:  # else it would make the folder look like somebody else's
        write_json(out / "summary.json", summary)
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
    pool: Pool,
    missing: Sequence[EvalCell],
    journal: Journal,
    *,
    what: str = "evaluating",
    until: float | None = None,
    check: Callable[[EvalCell, Mapping[str, Any] | None], object] = lambda cell, row: None,
) -> LeftOut:
    """Runs cells, in the journal one after another, none begun after `until`; returns those that were left out.

    What does not fit in memory is, with what is longer of its task and method; and what no worker could finish.
    what: the bar's name; its unit is tokens, so that its ETA knows long prompts. check: called with each cell and its
    row (None: it does not fit) before the row is kept; may raise.
    """
    too_large: dict[tuple[str, str], int] = {}
    left_out = LeftOut()
    cells = cells_of(made, missing)
    tokens, folder = partial(_tokens, made), journal.path.parent
    with watching(cells, what, weigh=tokens, unit="token", verbose=pool.verbose, folder=folder) as watch:
        for cell, outcome in run_in_turns(
            pool, cells, watch, wanted=lambda cell: not _is_beyond(cell, too_large), stop=partial(is_over, until)
        ):
            task, name, length = own = _own(cell)
            if outcome and outcome.lost:
                left_out.failed.append(own)
                watch.lost(cell, outcome.lost)
                continue
            if outcome:
                check(own, outcome.value)
            if outcome and outcome.value is not None:
                journal.add(own, outcome.value)
                continue
            too_large.setdefault((task, name), length)
            left_out.too_large.append(own)
            watch.tell(f"left out: {task} under {name} does not fit in memory at {length} tokens")
    return left_out


@dataclass
class LeftOut:
    """Cells that do not fit in memory, and those that no worker could finish."""

    too_large: list[EvalCell] = field(default_factory=list)
    failed: list[EvalCell] = field(default_factory=list)


def _own(cell: Cell) -> EvalCell:
    task, name, length = cell.key
    return str(task), str(name), int(length)


def _tokens(made: EvalPlan, cell: Cell) -> int:
    task, _, length = _own(cell)
    return TASKS[task].tokens(length, made.setting)


def _is_beyond(cell: Cell, too_large: Mapping[tuple[str, str], int]) -> bool:
    """Whether a cell is as long as one of its task and method that does not fit in memory."""
    task, name, length = _own(cell)
    return length >= too_large.get((task, name), length + 1)


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
