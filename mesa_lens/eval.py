"""`mesa-lens eval`: scores tasks under each method at several lengths, with 95% intervals and curves."""

from __future__ import annotations

import json
from dataclasses import replace

from mesa.errors import Refused
from mesa_lens.arguments import RunOptions, print_continues, resumable, run_experiment, runner_of
from probe.commands.eval.request import EvalRequest, HarnessOptions
from probe.commands.table import COMMANDS
from probe.options import options as options_of


def run(request: EvalRequest, harness: HarnessOptions, options: RunOptions) -> int:
    """Runs the tasks, or those of lm-eval."""
    from probe.commands.eval.plan import TASKS

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
    return run_experiment(COMMANDS["eval"], request, options)


def _run_harness(request: EvalRequest, harness: HarnessOptions, options: RunOptions) -> int:
    """lm-eval's results, written and printed."""
    from probe.commands.eval.harness import RESULTS, run_harness
    from probe.commands.eval.plan import plan
    from probe.commands.eval.sections import harness_table
    from probe.store.result_file import result_text
    from probe.tables import plain_table

    runner = runner_of(options, request.load)
    default = {item.key: item.default for item in options_of(EvalRequest)}
    unused = {key: getattr(request, key) for key in ("samples", "seed", "text", "depth", "batch")}
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
