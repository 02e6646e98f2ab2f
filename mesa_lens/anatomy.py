"""`mesa-lens anatomy`: what the heads attend to under each method, and which of them retrieve."""

from __future__ import annotations

from typing import Any

from mesa_lens.arguments import (
    JsonOptions,
    MinutesOptions,
    OutputOptions,
    WorkerOptions,
    add_command,
    print_estimate,
    runner_of,
)
from mesa_lens.locate import run_in_folder
from probe.request import AnatomyRequest


def add(commands: Any) -> None:
    """Adds the subcommand."""
    add_command(
        commands,
        "anatomy",
        run,
        example="mesa-lens anatomy --out runs/demo",
        help="measure what every head attends to under each method",
        description=__doc__,
        out="runs/anatomy",
    )


def run(
    request: AnatomyRequest,
    output: OutputOptions,
    printing: JsonOptions,
    time_limit: MinutesOptions,
    workers: WorkerOptions,
) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.attention.request import estimate, plan, work
    from probe.experiment.progress import deadline

    runner, until = runner_of(workers, request.load), deadline(time_limit.minutes)
    planned = plan(request)
    if output.estimate:
        print_estimate(workers, estimate(planned), [(planned.config, work(planned))], request)
        return 0
    from probe.attention.results import write
    from probe.attention.run import anatomy
    from probe.attention.sentences import anatomy_findings, head_table
    from probe.mechanism_report import write_anatomy_report

    def text(summary: Any) -> str:
        return "\n".join(part for part in (head_table(summary), *anatomy_findings(summary)) if part)

    return run_in_folder(
        lambda: anatomy(planned, output.out, overwrite=output.overwrite, until=until, runner=runner),
        lambda journal: write(planned, journal, output.out),
        write_anatomy_report,
        text,
        output,
        printing,
        time_limit,
    )
