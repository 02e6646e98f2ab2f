"""`mesa-lens locate`: where inside a model length breaks it, and which heads a method must reach to mend it."""

from __future__ import annotations

from typing import Any

from mesa_lens.arguments import (
    JsonOptions,
    MinutesOptions,
    OutputOptions,
    WorkerOptions,
    add_command,
    print_estimate,
    print_failed,
    print_remaining,
    resumable,
    runner_of,
)
from probe.request import LocateRequest


def add(commands: Any) -> None:
    """Adds the subcommand."""
    add_command(
        commands,
        "locate",
        run,
        example="mesa-lens locate --out runs/demo",
        help="intervene layer by layer and head by head: where does length break the model, what mends it?",
        description=__doc__,
        out="runs/locate",
    )


def run(
    request: LocateRequest,
    output: OutputOptions,
    printing: JsonOptions,
    time_limit: MinutesOptions,
    workers: WorkerOptions,
) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.experiment.progress import deadline
    from probe.interventions.request import estimate, plan, work

    runner, until = runner_of(workers, request.load), deadline(time_limit.minutes)
    planned = plan(request)
    if output.estimate:
        print_estimate(workers, estimate(planned), [(planned.config, work(planned))], request)
        return 0
    from probe.experiment.lock import owned
    from probe.files import json_text
    from probe.interventions.results import write
    from probe.interventions.run import FOLDER, locate
    from probe.interventions.sentences import located_findings
    from probe.mechanism_report import write_locate_report
    from probe.report import write_report
    from probe.store.reader import store_of

    with owned(output.out):
        with resumable(output):
            journal, failed = locate(planned, output.out, overwrite=output.overwrite, until=until, runner=runner)
        summary = write(planned, journal, output.out)
        if journal.rows:
            write_locate_report(summary, output.out)
            if store_of(output.out).exists():
                write_report(output.out)
    if failed:
        print_failed(output, f"{len(failed)} cells")
    elif summary["tasks_left"] and time_limit.minutes:
        print_remaining(output, time_limit, f"{summary['tasks_left']} tasks are left")
    if printing.json:
        print(json_text(summary))
        return 1 if failed else 0
    for heading, sentences in located_findings(summary):
        print("\n  ".join([heading, *sentences]) + "\n")
    if journal.rows:
        print(f"wrote {output.out / FOLDER}: report.html, summary.json, tables")
    return 1 if failed else 0
