"""`mesa-lens check`: whether the methods are computed rightly on a checkpoint, row by row, with numbers."""

from __future__ import annotations

import argparse
import json
from typing import Any

from mesa_lens.model import add_model_options, load_options
from mesa_lens.options import add_methods
from mesa_lens.values import number, whole


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "check",
        example="mesa-lens check --model default",
        help="whether the methods are computed rightly on your own checkpoint",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_model_options(command)
    how = command.add_argument_group("what to check")
    add_methods(how)
    says = "M that methods are made for here, in tokens, so that they act at lengths a machine can do"
    how.add_argument("--pretended", type=whole(24, 4096), default=64, help=says)
    says = "begin nothing after this; the rest is 'not run' (None: all)"
    how.add_argument("--minutes", type=number(0, above=True), help=says)
    how.add_argument("--json", action="store_true", help="print JSON in place of a table")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table; 1 where a row failed."""
    from mesa.models import check_placement, config_of, load
    from mesa.settings import make_methods
    from mesa.support import check_config, trained_length
    from probe.experiment.threads import check_threads, computing

    check_threads(args.threads)
    methods = args.methods or "all"
    make_methods(methods, args.pretended)
    options = load_options(args)
    check_placement(options)
    config = config_of(args.model, revision=args.revision, trust_remote_code=args.trust_remote_code)
    check_config(config)
    if args.trained_length is None:
        trained_length(config)
    loaded = load(args.model, **options)
    from mesa.checking.check import check

    with computing(args.threads):
        report = check(
            loaded.model,
            loaded.tokenizer,
            methods=methods,
            trained_length=args.trained_length,
            pretended=args.pretended,
            minutes=args.minutes,
            name=args.model,
        )
    print(json.dumps(report.record(), indent=1) if args.json else report)
    return int(bool(report.failed))
