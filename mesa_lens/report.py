"""`mesa-lens report`: the report of a captured run, written anew from its store; needs no model."""

from __future__ import annotations

import argparse
import json
from typing import Any

from mesa_lens.probe import RULES
from mesa_lens.values import place


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "report",
        example="mesa-lens report runs/demo",
        help="write a captured run's report, summary and figures anew",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument(
        "store", type=place, metavar="RUN", help="the folder that `mesa-lens probe` wrote, or its store"
    )
    command.add_argument("--rule", default="drift", choices=RULES, help="what failures are predicted by")
    command.add_argument("--json", action="store_true", help="print summary.json in place of tables")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks that the store is whole, then writes beside it."""
    from probe.experiment.lock import owned
    from probe.report import write_report
    from probe.store.place import Remote
    from probe.store.reader import open_run
    from probe.verdict.shown import told

    folder = open_run(args.store).folder
    if isinstance(folder, Remote):
        raise ValueError(f"{folder} is a URL; give the folder that `mesa-lens probe` was given as --out")
    with owned(folder, option="RUN"):
        summary = write_report(args.store, args.rule)
    print(json.dumps(summary, indent=1) if args.json else f"{told(summary)}\n\nwrote {folder / 'report.html'}")
    return 0
