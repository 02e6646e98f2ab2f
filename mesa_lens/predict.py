"""`mesa-lens predict`: at which length each method fails, from one measured curve and the distances of its plan."""

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
from probe.request import PredictRequest


def add(commands: Any) -> None:
    """Adds the subcommand."""
    add_command(
        commands,
        "predict",
        run,
        example="mesa-lens predict --config leaky-rerope:k=2,log_n=false --check --out runs/predict",
        help="predict at which length each method fails, from Origin's losses and the method's distances",
        description=__doc__,
        out="runs/predict",
    )


def run(
    request: PredictRequest,
    output: OutputOptions,
    printing: JsonOptions,
    time_limit: MinutesOptions,
    workers: WorkerOptions,
) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.experiment.progress import deadline
    from probe.law.plan import estimate, plan, work

    runner, until = runner_of(workers, request.load), deadline(time_limit.minutes)
    planned = plan(request)
    if output.estimate:
        print_estimate(workers, estimate(planned), [(planned.config, work(planned))], request)
        return 0
    from probe.experiment.lock import owned
    from probe.files import json_text
    from probe.law.report import sentences, write
    from probe.law.run import FOLDER, Predict
    from probe.law.run import run as run_passes
    from probe.report import write_report
    from probe.store.reader import store_of

    with owned(output.out):
        with resumable(output):
            journal, failed = run_passes(planned, output.out, overwrite=output.overwrite, until=until, runner=runner)
        if failed:
            print_failed(output, f"{len(failed)} passes")
            return 1
        if remaining := len(Predict(planned).tasks(journal.rows)):
            print_remaining(output, time_limit, f"{remaining} passes are left")
            return 0
        summary, written = write(planned, journal.rows, output.out)
        if store_of(output.out).exists():
            write_report(output.out)
    if printing.json:
        print(json_text(summary))
        return 0
    print(
        "\n\n".join([*sentences(summary), f"wrote {output.out / FOLDER}: {', '.join(path.name for path in written)}"])
    )
    return 0
