"""`mesa-lens paper`: the paper's figures and tables that a model allows, from one config, in one report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mesa_lens.options import (
    add_force,
    add_minutes,
    add_runner,
    add_threads,
    goes_on,
    runner_of,
    tell_estimate,
    tell_left,
)
from mesa_lens.values import listed, output, word
from probe.experiment.lock import how_to_resume


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "paper",
        example="mesa-lens paper --minutes 10",
        help="run the paper's experiments from a config, into one report",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("--config", type=word, default="default", help="a YAML file, or the name of one of configs/")
    command.add_argument(
        "--out", type=output, default=Path("runs/paper"), help="folder; an interrupted run goes on in it"
    )
    command.add_argument("--sections", type=listed, help="only these, separated by commas")
    command.add_argument("--overwrite", action="store_true", help="begin the sections anew that are already there")
    add_force(command)
    add_minutes(command)
    add_threads(command)
    add_runner(command)
    command.add_argument("--estimate", action="store_true", help="print cells, tokens, time and memory, and stop")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks every section, runs what is missing, writes the report."""
    from mesa_lens.paper.config import check, estimate, model_of, work

    config = _config(args)
    runner = runner_of(args, config.load)
    try:
        if args.estimate:
            tell_estimate(args, estimate(config), [(model_of(config), work(config))], config)
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
        with goes_on(args):
            found = run_sections(config, plans, args.out, overwrite=args.overwrite, until=until, runner=runner)
        path = write_report(config, found, args.out)
    for name, result in found.items():
        if "left_out" in result:
            print(f"{name}: left out, {result['left_out']}")
    print(f"wrote {path}")
    if remaining := left(found):
        tell_left(args, f"left: {', '.join(remaining)}")
    failed = [f"{name} ({len(cells)} cells)" for name, result in found.items() if (cells := result.get("failed"))]
    if failed:
        print(f"mesa-lens: failed: {', '.join(failed)}; {how_to_resume(args.out, args.overwrite)}", file=sys.stderr)
    return 1 if failed else 0


def _config(args: argparse.Namespace) -> Any:
    """The config, with the sections alone that are asked for."""
    from dataclasses import replace

    from mesa_lens.paper.config import read

    config = replace(read(args.config), force=args.force)
    if not args.sections:
        return config
    wanted = [name.strip() for name in args.sections.split(",")]
    unknown = [name for name in wanted if name not in config.sections]
    if unknown:
        raise ValueError(f"--sections {unknown[0]!r} is not in {args.config}; there: {', '.join(config.sections)}")
    return replace(config, sections={name: config.sections[name] for name in wanted})
