"""`mesa-lens eval` from its plan to its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mesa.errors import Refused
from probe.commands.eval.figures import write_curves
from probe.commands.eval.harness import RESULTS, run_harness
from probe.commands.eval.plan import TASKS, EvalPlan
from probe.commands.eval.plan import plan as plan_tasks
from probe.commands.eval.request import EvalRequest, HarnessOptions
from probe.commands.eval.run import Evaluation
from probe.commands.eval.run import run as run_cells
from probe.commands.eval.sections import harness_table, notes, sections, title
from probe.commands.eval.summary import score_tables
from probe.experiment.estimate import Estimate, estimated
from probe.experiment.run import CommandResult
from probe.figures.section import Section, as_text, provenance, write_page
from probe.options import options
from probe.tables import plain_table

_OF_TASKS = ("samples", "seed", "text", "depth", "batch", "task")


def listing(harness: HarnessOptions) -> dict[str, str]:
    """What each task is, by name, where that is asked for; else empty."""
    return {task.name: task.about for task in TASKS.values()} if harness.list_tasks else {}


def plan(request: EvalRequest, harness: HarnessOptions) -> EvalPlan:
    """The plan of the tasks, or of those of lm-eval; Refused for an option of the others."""
    if not harness.harness:
        for flag in ("limit", "include_path"):
            if (value := getattr(harness, flag)) is not None:
                raise Refused(f"--{flag.replace('_', '-')} {value} is for --harness, which is not given")
        return plan_tasks(request)
    for item in options(EvalRequest):
        if item.key in _OF_TASKS and item.of(request) != item.default:
            raise _for_tasks(item.flag)
    return plan_tasks(replace(request, tasks=()))


def estimate(planned: EvalPlan, out: Path, harness: HarnessOptions, *, overwrite: bool) -> Estimate:
    """What the plan takes; Refused for lm-eval's tasks."""
    if harness.harness:
        raise _for_tasks("--estimate")
    return estimated(Evaluation, planned, out, overwrite=overwrite)


def run_and_report(planned: EvalPlan, out: Path, harness: HarnessOptions, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    if not harness.harness:
        return _run_tasks(planned, out, **how)
    if how.pop("until") is not None:
        raise _for_tasks("--minutes")
    scores = run_harness(planned, harness.harness, out, include_path=harness.include_path, limit=harness.limit, **how)
    text = f"{plain_table(harness_table(scores))}\n\nwrote {out / RESULTS}"
    return CommandResult(scores, text, len(scores.failed), "")


def _for_tasks(flag: str) -> Refused:
    return Refused(f"{flag} is not for --harness; lm-eval's tasks have their own prompts")


def _run_tasks(plan: EvalPlan, out: Path, **how: Any) -> CommandResult:
    summary = run_cells(plan, out, **how)
    written = write_curves(summary, out)
    if summary.cells:
        parts = [*sections(summary), provenance(summary)]
        written.append(write_page(out, title(summary), parts, {"samples": None}))
    left = f"{summary.tasks_left} of {len(plan.cells)}" if summary.tasks_left else ""
    text = ""
    if summary.cells:
        files = ", ".join(["samples.csv", "summary.json", *(path.name for path in written)])
        scores = Section(tables=list(score_tables(summary.cells)))
        text = as_text([scores, Section("", [*notes(summary), f"wrote {out}: {files}"])])
    return CommandResult(summary, text, len(summary.failed), left)
