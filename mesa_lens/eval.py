"""`mesa-lens eval`: tasks over methods and lengths, resumably, with intervals and curves."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mesa_lens.model import add_model_options, load_options


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "eval",
        help="run passkey, NLL, needle, LongEval, summaries, latency or lm-eval tasks under each method",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    what = command.add_argument_group("what to run")
    what.add_argument("--task", default="passkey,nll", help="names, separated by commas; --list-tasks explains them")
    what.add_argument("--list-tasks", action="store_true", help="print the tasks and stop")
    what.add_argument("--lengths", help="tokens, e.g. 256,512 or 1k:16k:1k (None: 1, 2, 4, 8 M)")
    what.add_argument("--samples", type=int, default=100, help="prompts a length and method")
    what.add_argument("--seed", type=int, default=0)
    what.add_argument("--methods", default="all", help="names, separated by commas, or 'all'")
    what.add_argument("--set", action="append", default=[], metavar="METHOD.PARAMETER=VALUE")
    what.add_argument("--executor", default="fused", help="fused, or dense (O(T^2) memory)")
    what.add_argument("--batch", type=int, default=8, help="prompts decoded at once; halved where memory runs out")
    data = command.add_argument_group("data")
    data.add_argument("--text", help="text for NLL and essays: a file, folder or hub dataset (None: the shipped one)")
    data.add_argument("--data", help="documents and summaries: .jsonl, dataset folder or hub dataset")
    data.add_argument("--depth", type=float, help="the key's place, 0 (start) to 1 (end) (None: uniform)")
    data.add_argument("--new-tokens", type=int, default=128, help="tokens of a summary")
    add_model_options(command)
    harness = command.add_argument_group("lm-evaluation-harness, in place of --task")
    harness.add_argument("--harness", help="lm-eval tasks, e.g. longbench_qasper,niah_single_1")
    harness.add_argument("--include-path", type=Path, help="folder with tasks of your own")
    harness.add_argument("--limit", type=int, help="documents a task (None: all)")
    out = command.add_argument_group("output")
    out.add_argument("--out", type=Path, default=Path("runs/eval"), help="folder; an interrupted run goes on in it")
    out.add_argument("--overwrite", action="store_true", help="replace an evaluation that is already there")
    out.add_argument("--minutes", type=float, help="begin no cell after this; the same command goes on (None: run all)")
    out.add_argument("--estimate", action="store_true", help="print cells, tokens and memory, and stop")
    out.add_argument("--json", action="store_true", help="print summary.json in place of tables")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.evaluation.plan import EvalRequest, names, parse_lengths, task_table

    if args.list_tasks:
        print("\n".join(f"{name:18s} {about}" for name, about in task_table()))
        return 0
    request = EvalRequest(
        tasks=names(args.task),
        model=args.model,
        load=load_options(args),
        methods=args.methods,
        settings=tuple(args.set),
        lengths=None if args.lengths is None else parse_lengths(args.lengths),
        trained_length=args.trained_length,
        samples=args.samples,
        seed=args.seed,
        text=args.text,
        data=args.data,
        depth=args.depth,
        new_tokens=args.new_tokens,
        batch=args.batch,
        executor=args.executor,
    )
    try:
        return _harness(args, request) if args.harness else _tasks(args, request)
    except KeyboardInterrupt:
        print(f"\nmesa-lens: interrupted; {_again(args)}", file=sys.stderr)
        return 1


def _again(args: argparse.Namespace) -> str:
    again = "without --overwrite, the" if args.overwrite else "the"
    return f"{again} same command goes on from {args.out}"


def _tasks(args: argparse.Namespace, request: Any) -> int:
    from probe.evaluation.plan import estimate, plan

    if not request.tasks:
        raise ValueError("--task names no task; --list-tasks shows them")
    made = plan(request)
    if args.estimate:
        print(estimate(made))
        return 0
    from probe.evaluation.clock import deadline
    from probe.evaluation.run import run as run_cells
    from probe.evaluation.summary import tables
    from probe.figures.evaluation_chart import write_curves

    summary = run_cells(made, args.out, overwrite=args.overwrite, until=deadline(args.minutes))
    written = write_curves(summary, args.out)
    if summary["cells_left"]:
        left = f"{summary['cells_left']} of {len(made.cells)} cells are left"
        print(f"mesa-lens: {args.minutes:g} minutes are over, {left}; {_again(args)}", file=sys.stderr)
    if args.json:
        print(json.dumps(summary, indent=1))
        return 0
    files = ", ".join(["samples.csv", "summary.json", *(path.name for path in written)])
    print(f"{tables(summary['cells'])}\n\nwrote {args.out}: {files}")
    return 0


def _harness(args: argparse.Namespace, request: Any) -> int:
    from dataclasses import replace

    from probe.evaluation.harness import RESULTS, run_harness
    from probe.evaluation.plan import names, plan

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
    )
    if args.json:
        print(json.dumps(written, indent=1))
        return 0
    for method, results in written["results"].items():
        for task, scores in results.items():
            shown = ", ".join(
                f"{name} {value:.4g}" for name, value in scores.items() if "," in name and "_stderr" not in name
            )
            print(f"{method:14s} {task}: {shown}")
    print(f"\nwrote {args.out / RESULTS}")
    return 0
