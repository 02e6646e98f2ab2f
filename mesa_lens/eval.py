"""`mesa-lens eval`: tasks over methods and lengths, resumably, with intervals and curves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mesa_lens.model import add_model_options, load_options
from mesa_lens.options import (
    add_lengths,
    add_methods,
    add_minutes,
    add_output,
    add_runner,
    add_samples,
    add_seed,
    add_settings,
    goes_on,
    lengths,
    runner_of,
    tell_estimate,
    tell_failed,
    tell_left,
)
from mesa_lens.values import MOST_PROMPTS, listed, number, path, whole, word


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "eval",
        example="mesa-lens eval --task passkey,nll --samples 10 --out runs/eval",
        help="run passkey, RULER, LongEval, NLL, LongPPL, summaries, latency or lm-eval tasks under each method",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    what = command.add_argument_group("what to run")
    what.add_argument(
        "--task", type=listed, default="passkey,nll", help="names, separated by commas; --list-tasks explains them"
    )
    what.add_argument("--list-tasks", action="store_true", help="print the tasks and stop")
    add_lengths(what, "1, 2, 4, 8 M, less what holds no prompt")
    add_samples(what, 100)
    add_seed(what)
    add_methods(what)
    add_settings(what)
    what.add_argument(
        "--batch", type=whole(1, MOST_PROMPTS), default=8, help="prompts decoded at once; halved where memory runs out"
    )
    data = command.add_argument_group("data")
    data.add_argument(
        "--text", type=word, help="text for NLL and essays: a file, folder or hub dataset (None: the shipped one)"
    )
    data.add_argument("--data", type=word, help="documents and summaries: .jsonl, dataset folder or hub dataset")
    data.add_argument("--depth", type=number(0, 1), help="the key's place, 0 (start) to 1 (end) (None: uniform)")
    data.add_argument("--new-tokens", type=whole(1), default=128, help="tokens of a summary")
    add_model_options(command)
    keys = command.add_argument_group("longppl's key tokens")
    keys.add_argument(
        "--evaluator", type=word, help="the model that chooses them, with the same tokenizer (None: the model itself)"
    )
    keys.add_argument(
        "--evaluator-method",
        type=word,
        help="its method, which is not tested on it (None: rerope; origin in its window)",
    )
    harness = command.add_argument_group("lm-evaluation-harness, in place of --task")
    harness.add_argument("--harness", type=listed, help="lm-eval tasks, e.g. longbench_qasper,niah_single_1")
    harness.add_argument("--include-path", type=path, help="folder with tasks of your own")
    harness.add_argument("--limit", type=whole(1), help="documents a task (None: all)")
    add_output(command, "runs/eval", "")
    add_minutes(command)
    add_runner(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.evaluation.plan import EvalRequest, names, task_table

    if args.list_tasks:
        print("\n".join(f"{name:18s} {about}" for name, about in task_table()))
        return 0
    runner = runner_of(args)
    request = EvalRequest(
        tasks=names(args.task),
        model=args.model,
        load=load_options(args),
        methods=args.methods,
        settings=tuple(args.set),
        lengths=lengths(args),
        trained_length=args.trained_length,
        force=args.force,
        samples=args.samples,
        seed=args.seed,
        text=args.text,
        data=args.data,
        depth=args.depth,
        new_tokens=args.new_tokens,
        batch=args.batch,
        evaluator=args.evaluator,
        evaluator_method=args.evaluator_method,
        executor=args.executor,
    )
    with goes_on(args):
        return _harness(args, request, runner) if args.harness else _tasks(args, request, runner)


def _tasks(args: argparse.Namespace, request: Any, runner: Any) -> int:
    from probe.evaluation.plan import estimate, evaluator_work, plan, work

    for name in ("limit", "include_path"):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)} is for --harness, which is not given")
    made = plan(request)
    if args.estimate:
        models = [(made.config, work(made))]
        if made.evaluator:
            models.append((made.evaluator.config, evaluator_work(made)))
        tell_estimate(args, estimate(made), models, made.request)
        return 0
    from probe.evaluation.run import run as run_cells
    from probe.experiment.lock import owned
    from probe.experiment.progress import deadline
    from probe.figures.evaluation_chart import write_curves
    from probe.files import json_text

    until = deadline(args.minutes)
    with owned(args.out):
        summary = run_cells(made, args.out, overwrite=args.overwrite, until=until, runner=runner)
        written = write_curves(summary, args.out)
    if summary["cells_left"]:
        tell_left(args, f"{summary['cells_left']} of {len(made.cells)} cells are left")
    if failed := summary["failed"]:
        tell_failed(args, f"{len(failed)} cells")
    if args.json:
        print(json_text(summary))
    elif summary["cells"]:
        _print(summary, args.out, written)
    return 1 if failed else 0


def _print(summary: Mapping[str, Any], out: Path, written: Sequence[Path]) -> None:
    from probe.evaluation.summary import tables

    files = ", ".join(["samples.csv", "summary.json", *(path.name for path in written)])
    print("\n\n".join([tables(summary["cells"]), *_told(summary), f"wrote {out}: {files}"]))


def _told(summary: Mapping[str, Any]) -> Iterator[str]:
    """What is told below the tables of scores: sizes, effective lengths, who chose key tokens."""
    from probe.evaluation.effective import effective_table
    from probe.evaluation.summary import key_words, longppl_table, plain_table

    if summary["sizes"]:
        yield "\n".join(f"{task}: {size}" for task, size in summary["sizes"].items())
    for found in (effective_table(summary["effective"]), longppl_table(summary["longppl"])):
        if found:
            yield plain_table(found)
    if told := key_words(summary):
        yield "\n".join(told)


def _harness(args: argparse.Namespace, request: Any, runner: Any) -> int:
    from dataclasses import replace

    from probe.evaluation.harness import RESULTS, run_harness
    from probe.evaluation.plan import names, plan
    from probe.files import json_text

    for name in ("text", "data", "depth", "evaluator", "evaluator_method"):
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} {getattr(args, name)} is for --task; lm-eval's tasks have their own")
    if args.estimate:
        raise ValueError("--estimate is for --task; lm-eval's prompts are known only as they run")
    if args.minutes is not None:
        raise ValueError("--minutes is for --task; lm-eval's tasks are run whole")
    made = plan(replace(request, tasks=()))
    written = run_harness(
        made,
        names(args.harness),
        args.out,
        include_path=args.include_path,
        limit=args.limit,
        overwrite=args.overwrite,
        runner=runner,
    )
    if failed := written["failed"]:
        tell_failed(args, f"{len(failed)} cells")
    if args.json:
        print(json_text(written))
        return 1 if failed else 0
    for method, results in written["results"].items():
        for task, scores in results.items():
            shown = ", ".join(
                f"{name} {value:.4g}" for name, value in scores.items() if "," in name and "_stderr" not in name
            )
            print(f"{method:14s} {task}: {shown}")
    print(f"\nwrote {args.out / RESULTS}")
    return 1 if failed else 0
