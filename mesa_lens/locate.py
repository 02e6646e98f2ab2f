"""`mesa-lens locate`: where inside a model length breaks it, and which heads a method must reach to restore it."""

from __future__ import annotations

from collections.abc import Callable
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
        help="intervene layer by layer and head by head: where does length break the model, what restores it?",
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
    from probe.interventions.results import write
    from probe.interventions.run import locate
    from probe.interventions.sentences import located_findings
    from probe.mechanism_report import write_locate_report

    def text(summary: Any) -> str:
        return "\n\n".join("\n  ".join([heading, *lines]) for heading, lines in located_findings(summary))

    return run_in_folder(
        lambda: locate(planned, output.out, overwrite=output.overwrite, until=until, runner=runner),
        lambda journal: write(planned, journal, output.out),
        write_locate_report,
        text,
        output,
        printing,
        time_limit,
    )


def run_in_folder(
    measure: Callable[[], tuple[Any, list[Any]]],
    write: Callable[[Any], dict[str, Any]],
    write_own_report: Callable[..., Any],
    text: Callable[[Any], str],
    output: OutputOptions,
    printing: JsonOptions,
    time_limit: MinutesOptions,
) -> int:
    """Measures into the folder --out, writes its reports anew and prints what was found; the exit status.

    measure: gives the journal and the tasks that were lost. write: writes the summary. text: of the summary.
    """
    from probe.experiment.lock import owned
    from probe.files import json_text
    from probe.report import write_report
    from probe.store.reader import store_of

    with owned(output.out):
        with resumable(output):
            journal, failed = measure()
        summary = write(journal)
        report = write_own_report(summary, output.out) if journal.rows else None
        if report is not None and store_of(output.out).exists():
            write_report(output.out)
    if failed:
        print_failed(output, f"{len(failed)} cells")
    elif summary["tasks_left"]:
        print_remaining(output, time_limit, f"{summary['tasks_left']} tasks are left")
    if printing.json:
        print(json_text(summary))
        return 1 if failed else 0
    print(text(summary))
    if report is not None:
        print(f"wrote {report.parent}: report.html, summary.json, tables")
    return 1 if failed else 0
