"""`mesa-lens paper`: the paper's figures and tables that a model allows, from one config, in one report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mesa.errors import Refused
from mesa_lens.arguments import (
    MinutesOptions,
    OutputOptions,
    WorkerOptions,
    print_continues,
    print_estimate,
    resumable,
    runner_of,
)
from probe.options import Names, Text, option


@dataclass(frozen=True)
class PaperOptions:
    """Which experiments are run."""

    config: Text = option("default", "a YAML file, or the name of one of configs/")
    sections: Names | None = option(None, "only these, separated by commas", unset="all of the config")


HELP = "run the paper's experiments from a config, into one report"
EXAMPLE = "mesa-lens paper --minutes 10"
OUT = "runs/paper"


def run(choice: PaperOptions, output: OutputOptions, time_limit: MinutesOptions, workers: WorkerOptions) -> int:
    """Checks every section, runs what is missing, writes the report."""
    from mesa_lens.paper.config import check, estimate

    config = _config(choice)
    runner = runner_of(workers, config.load)
    try:
        if output.estimate:
            print_estimate(workers, *estimate(config), config)
            return 0
        plans = check(config)
        if "longbench" in plans:
            from probe.evaluation.harness import checked_tasks

            values = config.sections["longbench"]
            checked_tasks(plans["longbench"], values["tasks"], values.get("include_path"))
    except Refused as error:
        raise Refused(f"{choice.config}: {error}") from error
    from mesa_lens.paper.report import write_report
    from mesa_lens.paper.runner import left, run_sections
    from probe.experiment.lock import owned
    from probe.experiment.progress import deadline

    until = deadline(time_limit.minutes)
    begun = [folder for folder in (output.out / name for name in plans) if folder.exists()]
    with owned(output.out, *begun):
        with resumable(output):
            results = run_sections(config, plans, output.out, overwrite=output.overwrite, until=until, runner=runner)
        path = write_report(config, results, output.out)
    for name, result in results.items():
        if "left_out" in result:
            print(f"{name}: left out, {result['left_out']}")
    print(f"wrote {path}")
    if remaining := left(results):
        over = f"{time_limit.minutes:g} minutes are over, " if time_limit.minutes else ""
        print_continues(output, f"{over}left: {', '.join(remaining)}")
    failed = [f"{name} ({len(cells)} cells)" for name, result in results.items() if (cells := result.get("failed"))]
    if failed:
        print_continues(output, f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _config(choice: PaperOptions) -> Any:
    """The config, with only the sections of --sections."""
    from mesa_lens.paper.config import read

    config = read(choice.config)
    if not choice.sections:
        return config
    unknown = [name for name in choice.sections if name not in config.sections]
    if unknown:
        raise Refused(f"--sections {unknown[0]!r} is not in {choice.config}; there: {', '.join(config.sections)}")
    return replace(config, sections={name: config.sections[name] for name in choice.sections})
