"""`mesa-lens locate`: where inside a model length breaks it, and which heads a method must reach to mend it."""

from __future__ import annotations

import argparse
from typing import Any

from mesa_lens.arguments import (
    RUN_OPTIONS,
    add_options,
    print_estimate,
    print_failed,
    print_remaining,
    read_options,
    resumable,
    runner_of,
)
from probe.request import LocateRequest


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "locate",
        example="mesa-lens locate --out runs/demo",
        help="intervene layer by layer and head by head: where does length break the model, what mends it?",
        description=__doc__,
    )
    add_options(command, LocateRequest, *RUN_OPTIONS, out="runs/locate")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.experiment.progress import deadline
    from probe.interventions.request import estimate, plan, work

    request = read_options(args, LocateRequest)
    runner, until = runner_of(args, request.load), deadline(args.minutes)
    planned = plan(request)
    if args.estimate:
        print_estimate(args, estimate(planned), [(planned.config, work(planned))], request)
        return 0
    from probe.experiment.lock import owned
    from probe.files import json_text
    from probe.interventions.results import write
    from probe.interventions.run import FOLDER, locate
    from probe.interventions.sentences import located_findings
    from probe.mechanism_report import write_locate_report
    from probe.report import write_report
    from probe.store.reader import store_of

    with owned(args.out):
        with resumable(args):
            journal, failed = locate(planned, args.out, overwrite=args.overwrite, until=until, runner=runner)
        summary = write(planned, journal, args.out)
        if journal.rows:
            write_locate_report(summary, args.out)
            if store_of(args.out).exists():
                write_report(args.out)
    if failed:
        print_failed(args, f"{len(failed)} cells")
    elif summary["cells_left"] and args.minutes:
        print_remaining(args, f"{summary['cells_left']} cells are left")
    if args.json:
        print(json_text(summary))
        return 1 if failed else 0
    for heading, sentences in located_findings(summary):
        print("\n  ".join([heading, *sentences]) + "\n")
    if journal.rows:
        print(f"wrote {args.out / FOLDER}: report.html, summary.json, tables")
    return 1 if failed else 0
