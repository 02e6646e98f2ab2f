"""Runs the sections one after another, one folder a section, and continues where it was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.commands.eval.harness import Harness, run_harness
from probe.commands.eval.run import run_evaluation as run_cells
from probe.commands.probe.plan import ProbePlan
from probe.commands.probe.run import check_fits, is_complete, remove_run, run_probe
from probe.commands.probe.verdict import run_summary
from probe.evaluation import Evaluation, EvalWorker
from probe.experiment.pool import LOCAL, Runner, Task, TasksLost, is_over
from probe.experiment.run import ModelSpec
from research.paper.config import PaperConfig, reason_left_out
from research.paper.report import REPORTED, Outcome
from research.paper.sections import SECTIONS

_TIME_OVER = "the time was over; the same command continues"


def run_sections(
    config: PaperConfig,
    plans: Mapping[str, Any],
    out: Path,
    *,
    overwrite: bool = False,
    until: float | None = None,
    runner: Runner = LOCAL,
) -> dict[str, Outcome]:
    """By section of the config what it gave; in the report's order.

    They run in the config's order; nothing begins after the `deadline` `until`. What no worker could finish is in a
    section's `failed`, and the others go on. Raises FileExistsError, before anything runs, for folders of another run,
    unless `overwrite`, which removes what they hold once the model was loaded; also what `Runner.check` raises.
    """
    runner.check(config.load)
    if overwrite:
        _check_before_removal(config, plans, out, runner)
    for name, plan in plans.items():
        _prepare_folder(config, name, plan, out / name, overwrite)
    if overwrite:
        for name in REPORTED:
            (out / name).unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    results = {name: _section(config, plans, name, out / name, until, runner) for name in config.sections}
    return {name: results[name] for name in SECTIONS if name in results}


def _check_before_removal(config: PaperConfig, plans: Mapping[str, Any], out: Path, runner: Runner) -> None:
    """Checks the probe's memory and loads the model once, where there is something to remove."""
    if runner.is_local and "probe" in plans:
        check_fits(plans["probe"])
    for name, plan in plans.items():
        if (out / name).exists():
            worker = EvalWorker(plan, ModelSpec(config.model, config.load))
            with replace(runner, workers=None if runner.is_local else 1).pool(worker, [Task("load", ())]):
                return


def _prepare_folder(config: PaperConfig, name: str, plan: Any, folder: Path, overwrite: bool) -> None:
    """Removes what a section's folder holds, or raises FileExistsError, naming what differs, for another run's."""
    if name == "probe":
        remove_run(folder) if overwrite else is_complete(plan, folder)
        return
    experiment = Harness(plan, **_harness_options(config, name)) if SECTIONS[name].by_lm_eval else Evaluation(plan)
    if overwrite or (folder / experiment.journal).exists():
        experiment.open_journal(folder, overwrite=overwrite)


def left(results: Mapping[str, Outcome]) -> list[str]:
    """The sections left when the time was over, with the number of missing cells of those begun."""
    cells = {name: getattr(result.result, "tasks_left", 0) for name, result in results.items()}
    begun = [f"{name} ({count} cells)" for name, count in cells.items() if count]
    return [*begun, *(name for name, result in results.items() if result.left_out == _TIME_OVER)]


def _section(
    config: PaperConfig, plans: Mapping[str, Any], name: str, folder: Path, until: float | None, runner: Runner
) -> Outcome:
    if reason := reason_left_out(name, config.sections[name]):
        return Outcome(left_out=reason)
    if name == "probe":
        return _probe(plans[name], folder, until, runner)
    if SECTIONS[name].by_lm_eval:
        if is_over(until):
            return Outcome(left_out=_TIME_OVER)
        scores = run_harness(plans[name], out=folder, **_harness_options(config, name), runner=runner)
        return Outcome(scores, failed=scores.failed)
    summary = run_cells(plans[name], folder, until=until, runner=runner)
    is_begun = summary.cells or not summary.tasks_left
    return Outcome(summary, failed=summary.failed) if is_begun else Outcome(left_out=_TIME_OVER)


def _probe(plan: ProbePlan, folder: Path, until: float | None, runner: Runner) -> Outcome:
    """The summary of a probe run; a finished one is not run again."""
    if is_complete(plan, folder) and (summary := run_summary(folder)):
        return Outcome(summary)
    if is_over(until):
        return Outcome(left_out=_TIME_OVER)
    try:
        return Outcome(run_probe(plan.request, folder, runner=runner)[0])
    except TasksLost as error:
        return Outcome(left_out=str(error), failed=error.keys)


def _harness_options(config: PaperConfig, name: str) -> dict[str, Any]:
    values = config.sections[name]
    return {"names": values["tasks"], "include_path": values.get("include_path"), "limit": values.get("limit")}
