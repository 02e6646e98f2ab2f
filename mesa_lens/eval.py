"""`mesa-lens eval`: tasks over methods and lengths, resumably, with intervals and curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mesa_lens.arguments import (
    JsonOptions,
    MinutesOptions,
    OutputOptions,
    WorkerOptions,
    add_command,
    print_estimate,
    print_failed,
    print_remaining,
    resumable,
    runner_of,
)
from probe.options import InputPath, Names, Tokens, option
from probe.request import EvalRequest

_HARNESS = "lm-evaluation-harness, in place of --task"


@dataclass(frozen=True)
class HarnessOptions:
    """Tasks of lm-eval."""

    list_tasks: bool = option(False, "print the tasks and stop")
    harness: Names | None = option(None, "lm-eval tasks, e.g. longbench_qasper,niah_single_1", group=_HARNESS)
    include_path: InputPath | None = option(None, "folder with further task definitions", group=_HARNESS)
    limit: Tokens | None = option(None, "documents a task", group=_HARNESS, unset="all")


def add(commands: Any) -> None:
    """Adds the subcommand."""
    add_command(
        commands,
        "eval",
        run,
        example="mesa-lens eval --task passkey,nll --samples 10 --out runs/eval",
        help="run passkey, RULER, LongEval, NLL, LongPPL, summaries, latency or lm-eval tasks under each method",
        description=__doc__,
        out="runs/eval",
    )


def run(
    request: EvalRequest,
    harness: HarnessOptions,
    output: OutputOptions,
    printing: JsonOptions,
    time_limit: MinutesOptions,
    workers: WorkerOptions,
) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.evaluation.plan import TASKS
    from probe.files import json_text

    if harness.list_tasks:
        print("\n".join(f"{task.name:18s} {task.about}" for task in TASKS.values()))
        return 0
    runner = runner_of(workers, request.load)
    for flag in ("limit", "include_path"):
        if not harness.harness and getattr(harness, flag) is not None:
            raise ValueError(
                f"--{flag.replace('_', '-')} {getattr(harness, flag)} is for --harness, which is not given"
            )
    with resumable(output):
        if harness.harness:
            _check_no_task_options(request, output, time_limit)
            summary, printed = _run_harness(request, harness, output, runner)
        else:
            summary, printed = _run_tasks(request, output, time_limit, workers, runner)
    if failed := summary.get("failed"):
        print_failed(output, f"{len(failed)} cells")
    if printing.json and summary:
        print(json_text(summary))
    elif printed:
        print(printed)
    return 1 if failed else 0


def _run_tasks(
    request: EvalRequest, output: OutputOptions, time_limit: MinutesOptions, workers: WorkerOptions, runner: Any
) -> tuple[Mapping[str, Any], str]:
    """The summary, and what is printed of it."""
    from probe.evaluation.plan import estimate, pass_counts, plan

    planned = plan(request)
    if output.estimate:
        print_estimate(workers, estimate(planned), [(planned.config, pass_counts(planned))], request)
        return {}, ""
    from probe.evaluation.run import run as run_cells
    from probe.evaluation.summary import plain_table, tables
    from probe.evaluation.text import notes, summary_tables
    from probe.experiment.lock import owned
    from probe.experiment.progress import deadline
    from probe.figures.curves import write_curves

    until = deadline(time_limit.minutes)
    with owned(output.out):
        summary = run_cells(planned, output.out, overwrite=output.overwrite, until=until, runner=runner)
        written = write_curves(summary, output.out)
    if summary["tasks_left"]:
        print_remaining(output, time_limit, f"{summary['tasks_left']} of {len(planned.cells)} tasks are left")
    if not summary["cells"]:
        return summary, ""
    files = ", ".join(["samples.csv", "summary.json", *(path.name for path in written)])
    paragraphs = [tables(summary["cells"]), *map(plain_table, summary_tables(summary)), "\n".join(notes(summary))]
    return summary, "\n\n".join([*filter(None, paragraphs), f"wrote {output.out}: {files}"])


def _check_no_task_options(request: EvalRequest, output: OutputOptions, time_limit: MinutesOptions) -> None:
    given = {name: getattr(request, name) for name in ("text", "data", "depth", "evaluator_method")}
    given |= {"estimate": output.estimate or None, "minutes": time_limit.minutes}
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for --task; lm-eval's tasks have their own prompts")


def _run_harness(
    request: EvalRequest, harness: HarnessOptions, output: OutputOptions, runner: Any
) -> tuple[Mapping[str, Any], str]:
    """lm-eval's results, and what is printed of them."""
    from probe.evaluation.harness import RESULTS, run_harness
    from probe.evaluation.plan import plan
    from probe.evaluation.summary import plain_table
    from probe.evaluation.text import harness_table

    summary = run_harness(
        plan(replace(request, tasks=())),
        harness.harness or (),
        output.out,
        include_path=harness.include_path,
        limit=harness.limit,
        overwrite=output.overwrite,
        runner=runner,
    )
    return summary, f"{plain_table(harness_table(summary))}\n\nwrote {output.out / RESULTS}"
