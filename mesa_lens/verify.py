"""`mesa-lens verify`: the paper's theorems as constructed transformers, checked numerically (see docs/theory.md)."""

from __future__ import annotations

from typing import Any

from mesa_lens.values import output
from theory.cli import add_arguments, run


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "verify",
        example="mesa-lens verify --claim 3.3 --M 64 --N 4",
        help="check the theorems on constructed models",
        description=__doc__,
    )
    add_arguments(command, output)
    command.set_defaults(run=run)
