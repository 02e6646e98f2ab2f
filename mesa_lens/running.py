"""Runs what a command asks for: the estimate, or the experiment and its result; and what an interrupt says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mesa.errors import Failed
from mesa_lens.arguments import AddedOptions, FittedOptions, OutputOptions, TimedOptions, WorkerOptions
from probe.commands import Command, resume_command
from probe.experiment.journal import recorded
from probe.experiment.lock import how_to_resume
from probe.run_folder import STORES

if TYPE_CHECKING:
    from probe.experiment.estimate import Passes, Speed
    from probe.experiment.pool import Runner


def runner_of(workers: WorkerOptions, load: Mapping[str, object]) -> Runner:
    """The `Runner` of these options. load: options of `mesa.load`. Raises Refused for one that cannot be."""
    from probe.experiment.pool import Runner

    kind, _, address = workers.runner.partition(":")
    if kind == "ray":
        from probe.experiment.ray import RayRunner as Runner
    runner = Runner(address or None, workers.workers, workers.gpus_per_worker, workers.verbose, workers.threads)
    runner.check(load)
    return runner


def run_options(command: Command) -> type[FittedOptions | TimedOptions]:
    """How a command runs, in options."""
    return AddedOptions if command.layout.folder else TimedOptions if command.timed else FittedOptions


def run_experiment(command: Command, request: Any, *more: Any) -> int:
    """Checks everything that can be checked, then estimates, or measures into --out and prints; the exit status.

    more: the further options of the command, and `run_options`.
    """
    from probe.experiment.lock import owned
    from probe.experiment.pool import deadline
    from probe.files import json_text
    from probe.store.result_file import result_text

    *own, options = more
    minutes = getattr(options, "minutes", None)
    if listing := command.listing(*own):
        lines = "\n".join(f"{name:18s} {text}" for name, text in listing.items())
        print(json.dumps(listing, indent=1) if options.json else lines)
        return 0
    plan, estimate, run_and_report = command.load()
    runner, until = runner_of(options, request.load), deadline(minutes)
    if command.timed:
        planned, limit = plan(request, *own), minutes
    else:
        planned, limit = command.plan_in_time(
            request,
            *own,
            options.out,
            minutes=minutes,
            overwrite=options.overwrite,
            threads=options.threads,
            may_stage=options.runner == "local" and not options.estimate,
        )
        until = until or deadline(limit)

    if options.estimate:
        text, left = estimate(planned, options.out, *own, overwrite=options.overwrite)
        shorter = "" if limit else _in_half_an_hour(command, request, *more)
        measured = getattr(planned, "speed", None)
        print_estimate(text, left, request, options.threads, shorter, as_json=options.json, speed=measured)
        return 0
    with owned(options.out), resumable(options):
        results = run_and_report(planned, options.out, *own, overwrite=options.overwrite, until=until, runner=runner)
        if command.layout.folder and results.text:  # a probe's report there tells of it
            from probe.commands.probe.report import update_report
            from probe.store.reader import store_of

            if store_of(options.out).exists():
                update_report(options.out)
    if results.refusal:
        raise Failed(results.refusal)
    if results.failed:
        print_continues(options, f"{results.failed} cells failed")
    elif results.left:
        over = f"nothing more fits in {minutes:g} minutes, " if minutes else ""
        of_tasks = "task is" if results.left.split()[-1] == "1" else "tasks are"
        print_continues(options, f"{over}{results.left} {of_tasks} left")
    if options.json:
        print(json_text(results.summary) if isinstance(results.summary, dict) else result_text(results.summary))
    elif results.text:
        print(results.text)
    return 1 if results.failed else 0


def _in_half_an_hour(command: Command, request: Any, *more: Any) -> str:
    """A line with the same command and --minutes=30; empty where that is refused, or cannot be written.

    A run that is not in stages has none with the full run's files in its folder, nor without samples.
    """
    *_, options = more
    full = () if options.overwrite else (options.out / name for name in (*STORES, *command.layout.journals))
    if not command.timed and (any(path.exists() for path in full) or not request.samples):
        return ""
    record = {key: value for key, value in recorded(request, *more).items() if key not in _UNREPEATED}
    line = resume_command(command.name, options.out, record, type(options))
    what = "half an hour of it at a time" if command.timed else "as much of it as half an hour tells"
    again = " (repeated without --overwrite)" if options.overwrite else ""
    return line and f"{what}{again}: {line} --minutes=30"


_UNREPEATED = ("out", "estimate", "json", "minutes")
"""Options of an estimate that the offered command has not, or names itself."""


def print_continues(output: OutputOptions, reason: str) -> None:
    """Prints on stderr why a run is not complete, and how it continues."""
    print(f"mesa-lens: {reason}; {how_to_resume(output.out, output.overwrite)}", file=sys.stderr)


def print_estimate(
    text: str,
    left: Passes,
    request: Any,
    threads: int | None,
    shorter: str = "",
    *,
    as_json: bool = False,
    speed: Speed | None = None,
) -> None:
    """Prints an estimate, then the time that the passes left take on this machine, for which the model is loaded.

    left: as `passes_of` gives them. shorter: a line on what takes less, of a run that takes much longer than half an
    hour. as_json: as {"estimate": its lines}. speed: the model's, where it was measured.
    """
    from probe.experiment.estimate import HALF_HOUR, seconds_of, time_text
    from probe.experiment.pool import computing
    from probe.experiment.run import ModelSpec

    if not as_json:
        print(text, flush=True)
    with computing(threads):
        spec = ModelSpec(request.model, request.load)
        line, speed = time_text(left, spec, getattr(request, "executor", "fused"), speed)
    lines = [line]
    if speed and seconds_of(left, speed) > 2 * HALF_HOUR:
        lines += filter(None, [shorter])
    print(json.dumps({"estimate": [*text.splitlines(), *lines]}, indent=1) if as_json else "\n".join(lines))


@contextmanager
def resumable(output: OutputOptions) -> Iterator[None]:
    """An interrupt names the command that continues, where --out holds something to continue."""
    try:
        yield
    except KeyboardInterrupt as error:
        from probe.status import has_results

        if has_results(output.out) and not hasattr(error, "__notes__"):
            error.add_note(how_to_resume(output.out, output.overwrite))
        raise
