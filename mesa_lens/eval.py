"""`mesa-lens eval`: tasks over methods and lengths, resumably, with intervals and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
    from probe.evaluation.plan import task_table

    if harness.list_tasks:
        print("\n".join(f"{name:18s} {about}" for name, about in task_table()))
        return 0
    runner = runner_of(workers, request.load)
    if harness.harness:
        _check_no_task_options(request, output, time_limit)
        with resumable(output):
            return _run_harness(request, harness, output, printing, runner)
    for flag, value in (("limit", harness.limit), ("include-path", harness.include_path)):
        if value is not None:
            raise ValueError(f"--{flag} {value} is for --harness, which is not given")
    with resumable(output):
        return _run_tasks(request, output, printing, time_limit, workers, runner)


def _run_tasks(
    request: EvalRequest,
    output: OutputOptions,
    printing: JsonOptions,
    time_limit: MinutesOptions,
    workers: WorkerOptions,
    runner: Any,
) -> int:
    from probe.evaluation.plan import estimate, evaluator_passes, pass_counts, plan

    planned = plan(request)
    if output.estimate:
        models = [(planned.config, pass_counts(planned))]
        if planned.evaluator:
            models.append((planned.evaluator.config, evaluator_passes(planned)))
        print_estimate(workers, estimate(planned), models, request)
        return 0
    from probe.evaluation.run import run as run_cells
    from probe.experiment.lock import owned
    from probe.experiment.progress import deadline
    from probe.figures.curves import write_curves
    from probe.files import json_text

    until = deadline(time_limit.minutes)
    with owned(output.out):
        summary = run_cells(planned, output.out, overwrite=output.overwrite, until=until, runner=runner)
        written = write_curves(summary, output.out)
    if summary["tasks_left"]:
        print_remaining(output, time_limit, f"{summary['tasks_left']} of {len(planned.cells)} tasks are left")
    if failed := summary["failed"]:
        print_failed(output, f"{len(failed)} cells")
    if printing.json:
        print(json_text(summary))
    elif summary["cells"]:
        _print(summary, output.out, written)
    return 1 if failed else 0


def _print(summary: Mapping[str, Any], out: Path, written: Sequence[Path]) -> None:
    from probe.evaluation.summary import tables

    files = ", ".join(["samples.csv", "summary.json", *(path.name for path in written)])
    print("\n\n".join([tables(summary["cells"]), *_notes(summary), f"wrote {out}: {files}"]))


def _notes(summary: Mapping[str, Any]) -> Iterator[str]:
    """What stands below the tables of scores: sizes, effective lengths, who chose key tokens."""
    from probe.evaluation.effective import effective_table
    from probe.evaluation.summary import key_words, longppl_table, plain_table

    if summary["sizes"]:
        yield "\n".join(f"{task}: {size}" for task, size in summary["sizes"].items())
    for table in (effective_table(summary["effective"]), longppl_table(summary["longppl"])):
        if table:
            yield plain_table(table)
    if sentences := key_words(summary):
        yield "\n".join(sentences)


def _check_no_task_options(request: EvalRequest, output: OutputOptions, time_limit: MinutesOptions) -> None:
    for name in ("text", "data", "depth", "evaluator", "evaluator_method"):
        if (value := getattr(request, name)) is not None:
            raise ValueError(f"--{name.replace('_', '-')} {value} is for --task; lm-eval's tasks have their own")
    if output.estimate:
        raise ValueError("--estimate is for --task; lm-eval's prompts are known only as they run")
    if time_limit.minutes is not None:
        raise ValueError("--minutes is for --task; lm-eval's tasks are run whole")


def _run_harness(
    request: EvalRequest, harness: HarnessOptions, output: OutputOptions, printing: JsonOptions, runner: Any
) -> int:
    from probe.evaluation.harness import RESULTS, run_harness
    from probe.evaluation.plan import plan
    from probe.files import json_text

    written = run_harness(
        plan(replace(request, tasks=())),
        harness.harness or (),
        output.out,
        include_path=harness.include_path,
        limit=harness.limit,
        overwrite=output.overwrite,
        runner=runner,
    )
    if failed := written["failed"]:
        print_failed(output, f"{len(failed)} cells")
    if printing.json:
        print(json_text(written))
        return 1 if failed else 0
    for method, results in written["results"].items():
        for task, scores in results.items():
            text = ", ".join(
                f"{name} {value:.4g}" for name, value in scores.items() if "," in name and "_stderr" not in name
            )
            print(f"{method:14s} {task}: {text}")
    print(f"\nwrote {output.out / RESULTS}")
    return 1 if failed else 0
