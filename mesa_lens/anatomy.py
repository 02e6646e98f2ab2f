"""`mesa-lens anatomy`: what the inside looks like under each method: heads, frequencies, logit lens, positions."""

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
from probe.request import AnatomyRequest


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "anatomy",
        example="mesa-lens anatomy --out runs/demo",
        help="measure heads, frequencies, logit lens and positional vectors under each method",
        description=__doc__,
    )
    add_options(command, AnatomyRequest, *RUN_OPTIONS, out="runs/anatomy")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.attention.request import estimate, plan, work
    from probe.experiment.progress import deadline

    request = read_options(args, AnatomyRequest)
    runner, until = runner_of(args, request.load), deadline(args.minutes)
    planned = plan(request)
    if args.estimate:
        print_estimate(args, estimate(planned), [(planned.config, work(planned))], request)
        return 0
    from probe.attention.results import write
    from probe.attention.run import FOLDER, anatomy
    from probe.experiment.lock import owned
    from probe.files import json_text
    from probe.mechanism_report import write_anatomy_report
    from probe.report import write_report
    from probe.store.reader import store_of
    from probe.store.results import find_anatomy

    with owned(args.out):
        with resumable(args):
            journal, failed = anatomy(planned, args.out, overwrite=args.overwrite, until=until, runner=runner)
        summary, text = write(planned, journal, args.out)
        stored = find_anatomy(args.out)
        if stored is not None:
            write_anatomy_report(stored, args.out)
            if store_of(args.out).exists():
                write_report(args.out)
    if failed:
        print_failed(args, f"{len(failed)} cells")
    elif summary["cells_left"] or summary["texts_left"]:
        print_remaining(args, f"{summary['cells_left']} cells and {summary['texts_left']} texts are left")
    if args.json:
        print(json_text(summary))
        return 1 if failed else 0
    print(text)
    if stored is not None:
        print(f"wrote {args.out / FOLDER}: report.html, summary.json, tables")
    return 1 if failed else 0
