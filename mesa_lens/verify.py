"""`mesa-lens verify`: the paper's theorems as constructed transformers, checked numerically (see docs/theory.md)."""

from __future__ import annotations

import argparse
from typing import Any

from mesa_lens.arguments import ThreadOptions, add_options, reader
from probe.options import OutputFolder
from theory.cli import add_arguments
from theory.cli import run as verify


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "verify",
        example="mesa-lens verify --claim 3.3 --M 64 --N 4",
        help="check the theorems on constructed models",
        description=__doc__,
    )
    add_arguments(command, reader(OutputFolder))
    add_options(command, ThreadOptions)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks the claims; returns 1 where one fails that must hold."""
    from probe.experiment.threads import computing

    with computing(args.threads):
        return verify(args)
