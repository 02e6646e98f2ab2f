"""The paper's figures and tables that a model allows, from one config, in one report."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa.errors import Refused
from mesa_lens.arguments import MinutesOptions, OutputOptions, WorkerOptions, add_options, read_options
from mesa_lens.running import print_continues, print_estimate, runner_of
from probe.commands.eval.harness import checked_tasks
from probe.experiment.lock import how_to_resume, owned
from probe.experiment.pool import deadline
from research.paper.config import check, estimate, read
from research.paper.report import write_report
from research.paper.runner import left, run_sections
from research.paper.sections import SECTIONS, PaperOptions
from research.script import run as run_script

OPTIONS = (PaperOptions, OutputOptions, MinutesOptions, WorkerOptions)


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/paper/run.py", description=__doc__)
    add_options(top, *OPTIONS, out=Path("runs/paper"))
    return top


def main(args: argparse.Namespace) -> None:
    """Runs the sections; exits with 1 where a cell failed or it was interrupted."""
    choice, output, *others = (read_options(args, cls) for cls in OPTIONS)
    try:
        code = run(choice, output, *others)
    except KeyboardInterrupt:
        sys.exit(f"interrupted; {how_to_resume(output.out, output.overwrite)}")
    if code:
        sys.exit(code)


def run(choice: PaperOptions, output: OutputOptions, time_limit: MinutesOptions, workers: WorkerOptions) -> int:
    """Checks every section, runs what is missing, writes the report."""
    config = _config(choice)
    runner = runner_of(workers, config.load)
    try:
        if output.estimate:
            text, passes = estimate(config)
            print_estimate(text, passes, config, workers.threads)
            return 0
        plans = check(config)
        for name in [name for name in plans if SECTIONS[name].by_lm_eval]:
            values = config.sections[name]
            checked_tasks(plans[name], values["tasks"], values.get("include_path"))
    except Refused as error:
        raise Refused(f"{choice.config}: {error}") from error
    until = deadline(time_limit.minutes)
    with ExitStack() as stack:
        for name in plans:
            stack.enter_context(owned(output.out / name))
        results = run_sections(config, plans, output.out, overwrite=output.overwrite, until=until, runner=runner)
        path = write_report(config, results, output.out)
    for name, result in results.items():
        if result.left_out:
            print(f"{name}: left out, {result.left_out}")
    print(f"wrote {path}")
    if remaining := left(results):
        over = f"{time_limit.minutes:g} minutes are over, " if time_limit.minutes else ""
        print_continues(output, f"{over}left: {', '.join(remaining)}")
    failed = [f"{name} ({len(cells)} cells)" for name, result in results.items() if (cells := result.failed)]
    if failed:
        print_continues(output, f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _config(choice: PaperOptions) -> Any:
    """The config, with only the sections of --sections."""
    config = read(choice.config)
    if not choice.sections:
        return config
    unknown = [name for name in choice.sections if name not in config.sections]
    if unknown:
        raise Refused(f"--sections {unknown[0]!r} is not in {choice.config}; there: {', '.join(config.sections)}")
    return replace(config, sections={name: config.sections[name] for name in choice.sections})


if __name__ == "__main__":
    run_script(main, parser())
