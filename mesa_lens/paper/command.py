"""`mesa-lens paper`: the paper's figures and tables that a model allows, from one config, in one report."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from typing import Any

from mesa_lens.arguments import (
    MinutesOptions,
    OutputOptions,
    WorkerOptions,
    add_options,
    print_estimate,
    print_remaining,
    resumable,
    runner_of,
)
from probe.experiment.lock import how_to_resume
from probe.options import Names, Text, option


@dataclass(frozen=True)
class PaperOptions:
    """Which experiments are run."""

    config: Text = option("default", "a YAML file, or the name of one of configs/")
    sections: Names | None = option(None, "only these, separated by commas", unset="all of the config")
    force: bool = option(
        False, "continue what other weights, tokenizer, config or versions began, and record it", group="output"
    )


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "paper",
        example="mesa-lens paper --minutes 10",
        help="run the paper's experiments from a config, into one report",
        description=__doc__,
    )
    add_options(command, PaperOptions, OutputOptions, MinutesOptions, WorkerOptions, out="runs/paper")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks every section, runs what is missing, writes the report."""
    from mesa_lens.paper.config import check, estimate, model_of, work

    config = _config(args)
    runner = runner_of(args, config.load)
    try:
        if args.estimate:
            print_estimate(args, estimate(config), [(model_of(config), work(config))], config)
            return 0
        plans = check(config)
    except ValueError as error:
        raise ValueError(f"{args.config}: {error}") from error
    from mesa_lens.paper.report import write_report
    from mesa_lens.paper.runner import left, run_sections
    from probe.experiment.lock import owned
    from probe.experiment.progress import deadline

    until = deadline(args.minutes)
    begun = [folder for folder in (args.out / name for name in plans) if folder.exists()]
    with owned(args.out, *begun):
        with resumable(args):
            found = run_sections(config, plans, args.out, overwrite=args.overwrite, until=until, runner=runner)
        path = write_report(config, found, args.out)
    for name, result in found.items():
        if "left_out" in result:
            print(f"{name}: left out, {result['left_out']}")
    print(f"wrote {path}")
    if remaining := left(found):
        print_remaining(args, f"left: {', '.join(remaining)}")
    failed = [f"{name} ({len(cells)} cells)" for name, result in found.items() if (cells := result.get("failed"))]
    if failed:
        print(f"mesa-lens: failed: {', '.join(failed)}; {how_to_resume(args.out, args.overwrite)}", file=sys.stderr)
    return 1 if failed else 0


def _config(args: argparse.Namespace) -> Any:
    """The config, with the sections alone that are asked for."""
    from mesa_lens.paper.config import read

    config = replace(read(args.config), force=args.force)
    if not args.sections:
        return config
    unknown = [name for name in args.sections if name not in config.sections]
    if unknown:
        raise ValueError(f"--sections {unknown[0]!r} is not in {args.config}; there: {', '.join(config.sections)}")
    return replace(config, sections={name: config.sections[name] for name in args.sections})
