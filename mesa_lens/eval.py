"""`mesa-lens eval`: scores tasks under each method at several lengths, with 95% intervals and curves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mesa.errors import Refused
from mesa_lens.arguments import Results, RunOptions, print_continues, resumable, run_experiment, runner_of
from probe.commands.eval.request import EvalRequest, HarnessOptions
from probe.options import options as options_of

HELP = "run passkey, RULER, LongEval, NLL, summaries, latency or lm-eval tasks under each method"
EXAMPLE = "mesa-lens eval --task passkey,nll --samples 10 --out runs/eval"
OUT = "runs/eval"


def run(request: EvalRequest, harness: HarnessOptions, options: RunOptions) -> int:
    """Runs the tasks, or those of lm-eval."""
    from probe.commands.eval.plan import TASKS, plan
    from probe.commands.eval.run import Evaluation

    if harness.list_tasks:
        about = {task.name: task.about for task in TASKS.values()}
        text = "\n".join(f"{name:18s} {what}" for name, what in about.items())
        print(json.dumps(about, indent=1) if options.json else text)
        return 0
    if harness.harness:
        return _run_harness(request, harness, options)
    for flag in ("limit", "include_path"):
        if (value := getattr(harness, flag)) is not None:
            raise Refused(f"--{flag.replace('_', '-')} {value} is for --harness, which is not given")
    return run_experiment(request, options, plan, Evaluation, _measured, reported=False)


def _measured(plan: Any, out: Path, **how: Any) -> Results:
    from probe.commands.eval.figures import write_curves
    from probe.commands.eval.report import write_eval_report
    from probe.commands.eval.run import run as run_cells
    from probe.commands.eval.summary import tables
    from probe.commands.eval.text import notes

    summary = run_cells(plan, out, **how)
    written = write_curves(summary, out)
    if summary.cells:
        written.append(write_eval_report(summary, out))
    left = f"{summary.tasks_left} of {len(plan.cells)}" if summary.tasks_left else ""
    text = ""
    if summary.cells:
        files = ", ".join(["samples.csv", "summary.json", *(path.name for path in written)])
        paragraphs = [tables(summary.cells), "\n".join(notes(summary))]
        text = "\n\n".join([*filter(None, paragraphs), f"wrote {out}: {files}"])
    return Results(summary, text, len(summary.failed), left)


def _run_harness(request: EvalRequest, harness: HarnessOptions, options: RunOptions) -> int:
    """lm-eval's results, written and printed."""
    from probe.commands.eval.harness import RESULTS, run_harness
    from probe.commands.eval.plan import plan
    from probe.commands.eval.text import harness_table
    from probe.store.result_file import result_text
    from probe.tables import plain_table

    runner = runner_of(options, request.load)
    default = {item.key: item.default for item in options_of(EvalRequest)}
    unused = {key: getattr(request, key) for key in ("samples", "seed", "text", "data", "depth", "new_tokens", "batch")}
    unused |= {"task": request.tasks, "estimate": options.estimate or None, "minutes": options.minutes}
    for key, value in unused.items():
        if value != default.get(key):
            raise Refused(f"--{key.replace('_', '-')} is for --task; lm-eval's tasks have their own prompts")
    with resumable(options):
        scores = run_harness(
            plan(replace(request, tasks=())),
            harness.harness or (),
            options.out,
            include_path=harness.include_path,
            limit=harness.limit,
            overwrite=options.overwrite,
            runner=runner,
        )
    if scores.failed:
        print_continues(options, f"{len(scores.failed)} cells failed")
    table = f"{plain_table(harness_table(scores))}\n\nwrote {options.out / RESULTS}"
    print(result_text(scores) if options.json else table)
    return 1 if scores.failed else 0
