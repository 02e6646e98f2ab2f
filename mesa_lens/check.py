"""`mesa-lens check`: whether the methods are computed rightly on a checkpoint, row by row, with numbers."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from mesa_lens.arguments import JsonOptions, MinutesOptions, ThreadOptions, add_options, read_options
from probe.options import JoinedNames, Whole, option
from probe.request import ModelOptions


@dataclass(frozen=True)
class CheckRequest(ModelOptions):
    """What is checked."""

    methods: JoinedNames = option("all", "names, separated by commas; all: less what the model cannot have")
    pretended: Annotated[Whole, Field(ge=24, le=4096)] = option(
        64, "M that methods are made for here, in tokens, so that they act at lengths a machine can do"
    )


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "check",
        example="mesa-lens check --model default",
        help="whether the methods are computed rightly on your own checkpoint",
        description=__doc__,
    )
    add_options(command, CheckRequest, MinutesOptions, JsonOptions, ThreadOptions)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table; 1 where a row failed."""
    from mesa.models import load
    from mesa.settings import make_methods
    from probe.experiment.threads import check_threads, computing

    check_threads(args.threads)
    request = read_options(args, CheckRequest)
    make_methods(request.methods, request.pretended)
    request.checked_model()
    loaded = load(request.model, **request.load)
    from mesa.checking.check import check

    with computing(args.threads):
        report = check(
            loaded.model,
            loaded.tokenizer,
            methods=request.methods,
            trained_length=request.trained_length,
            pretended=request.pretended,
            minutes=args.minutes,
            name=request.model,
        )
    print(json.dumps(report.record(), indent=1) if args.json else report)
    return int(bool(report.failed))
