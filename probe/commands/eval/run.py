"""`mesa-lens eval` from its plan to its report: runs the tasks, and stores every score in a folder."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd

from mesa.errors import Failed, Refused
from probe.commands.eval import HarnessOptions, page
from probe.commands.eval.page import Evaluated
from probe.eval_tasks.base import EvalKey
from probe.evaluation import TASKS, EvalPlan, Evaluation, eval_key, plan_evaluation as plan_tasks
from probe.experiment.estimate import Estimate, estimated
from probe.experiment.journal import Journal, JournalRows
from probe.experiment.pool import LOCAL, Runner, Task, is_over
from probe.experiment.run import CommandResult, opened, run_tasks, summary_of
from probe.figures.section import Section, as_text, plain_table, provenance, write_page
from probe.files import write
from probe.options import options
from probe.request import EvalRequest

COLUMNS = [*page.Sample._fields[:3], "seed", *page.Sample._fields[3:]]


def run_evaluation(
    plan: EvalPlan,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    until: float | None = None,
    runner: Runner = LOCAL,
) -> Evaluated:
    """Scores a model under methods on tasks, by length.

    Runs what is missing in the folder; the same call continues an interrupted one.

    Args:
        plan: What `plan_evaluation` returns.
        out: The folder; samples.csv and summary.json are written there.
        overwrite: Whether what is there is removed first; default False.
        until: No task begins after this time, in seconds of `time.monotonic`. Default: no limit.
        runner: Who runs the tasks. Default: this process.

    Returns:
        An `Evaluated`: `cells` by task, method and length, each with `mean` and its 95% interval `low` to `high`, in
        `unit`, `n`, and `difference` to Origin, or else the first method; `needles`, what is found by length and depth
        of the answer; `tasks_left`; `out_of_memory` and `failed`, what could not be run.

    Raises:
        FileExistsError: The folder holds another evaluation.
        RuntimeError: Nothing fits in memory, or a layer's states are not finite.

    Examples:
        >>> request = probe.EvalRequest(tasks=("nll",), methods="origin,crop", lengths=(512,), samples=2)
        >>> evaluated = probe.run_evaluation(probe.plan_evaluation(request), "runs/example-eval")
        >>> [(cell.method, cell.length, round(cell.mean, 2), cell.unit) for cell in evaluated.cells]
        [('origin', 512, 3.01, 'nats/token'), ('crop', 512, 2.63, 'nats/token')]
    """
    runner.check(plan.request.load)
    experiment, lost, out = Evaluation(plan), list[Task](), Path(out)
    with opened(experiment, out, overwrite=overwrite, runner=runner) as (journal, pool):
        try:
            if not is_over(until):
                lost = run_tasks(experiment, journal, pool, until=until)
        finally:  # what is done is readable, also after an interrupt
            if journal.rows:
                samples = _samples(experiment, journal.rows, cast(Iterable[EvalKey], journal.rows))
                samples = pd.DataFrame(samples, columns=page.Sample._fields).assign(seed=plan.setting.seed)
                write(out / "samples.csv", samples.to_csv(columns=COLUMNS, index=False).encode())
        return _write_summary(experiment, journal, out, [eval_key(task) for task in lost])


def _write_summary(experiment: Evaluation, journal: Journal, out: Path, failed: list[EvalKey]) -> Evaluated:
    plan, too_large = experiment.plan, experiment.too_large
    samples = _samples(experiment, journal.rows, plan.cells)
    if not samples and too_large:
        raise Failed(f"nothing fits in memory from {min(length for *_, length in too_large)} tokens on")
    summary = Evaluated(
        **summary_of(plan),
        sizes=dict(plan.sizes),
        out_of_memory=too_large,
        failed=failed,
        tasks_left=len(experiment.tasks(journal.rows)) - len(too_large) - len(failed),
        cells=page.summarize(samples, TASKS),
        needles=page.needles(samples, TASKS),
    )
    if journal.rows:  # else it would make the folder look like another program's
        page.EVALUATED.write(out, summary)
    return summary


def _samples(experiment: Evaluation, rows: JournalRows, keys: Iterable[EvalKey]) -> list[page.Sample]:
    """The scores of these cells at the plan's lengths."""
    return [
        page.Sample(
            key.task,
            key.method,
            score.length,
            score.sample,
            score.metric,
            score.value,
            score.seconds,
            rows[key]["peak_mib"],
            score.depth,
        )
        for key in keys
        for score in experiment.scored(rows, key)
    ]


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
    from probe.commands.eval.harness import RESULTS, run_harness  # with lm-eval, which our own tasks do without

    scores = run_harness(planned, harness.harness, out, include_path=harness.include_path, limit=harness.limit, **how)
    text = f"{plain_table(page.harness_table(scores))}\n\nwrote {out / RESULTS}"
    return CommandResult(scores, text, len(scores.failed), "")


def _for_tasks(flag: str) -> Refused:
    return Refused(f"{flag} is not for --harness; lm-eval's tasks have their own prompts")


def _run_tasks(plan: EvalPlan, out: Path, **how: Any) -> CommandResult:
    summary = run_evaluation(plan, out, **how)
    written = page.write_curves(summary, out)
    if summary.cells:
        parts = [*page.sections(summary), provenance(summary)]
        written.append(write_page(out, page.title(summary), parts, {"samples": None}))
    left = f"{summary.tasks_left} of {len(plan.cells)}" if summary.tasks_left else ""
    text = ""
    if summary.cells:
        files = ", ".join(["samples.csv", "summary.json", *(path.name for path in written)])
        scores = Section(tables=list(page.score_tables(summary.cells)))
        text = as_text([scores, Section("", [*page.notes(summary), f"wrote {out}: {files}"])])
    return CommandResult(summary, text, len(summary.failed), left)
