"""`mesa-lens anatomy`: what the inside looks like under each method: heads, frequencies, logit lens, positions."""

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
from probe.request import AnatomyRequest


def add(commands: Any) -> None:
    """Adds the subcommand."""
    add_command(
        commands,
        "anatomy",
        run,
        example="mesa-lens anatomy --out runs/demo",
        help="measure heads, frequencies, logit lens and positional vectors under each method",
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
    from probe.attention.run import FOLDER, anatomy
    from probe.experiment.lock import owned
    from probe.files import json_text
    from probe.mechanism_report import write_anatomy_report
    from probe.report import write_report
    from probe.store.reader import store_of
    from probe.store.results import find_anatomy

    with owned(output.out):
        with resumable(output):
            journal, failed = anatomy(planned, output.out, overwrite=output.overwrite, until=until, runner=runner)
        summary, text = write(planned, journal, output.out)
        stored = find_anatomy(output.out)
        if stored is not None:
            write_anatomy_report(stored, output.out)
            if store_of(output.out).exists():
                write_report(output.out)
    if failed:
        print_failed(output, f"{len(failed)} cells")
    elif summary["tasks_left"] or summary["texts_left"]:
        print_remaining(output, time_limit, f"{summary['tasks_left']} cells and {summary['texts_left']} texts are left")
    if printing.json:
        print(json_text(summary))
        return 1 if failed else 0
    print(text)
    if stored is not None:
        print(f"wrote {output.out / FOLDER}: report.html, summary.json, tables")
    return 1 if failed else 0
