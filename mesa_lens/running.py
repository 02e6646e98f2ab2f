"""Runs what a command asks for: the estimate, or the experiment and its result; and what an interrupt says."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesa.errors import Failed, Refused
from mesa_lens.arguments import AddedOptions, FittedOptions, OutputOptions, TimedOptions, WorkerOptions
from probe.commands import Command, resume_command
from probe.experiment.journal import recorded
from probe.experiment.lock import how_to_resume
from probe.run_folder import RunFolder

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
    from probe.experiment.estimate import HALF_HOUR
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
    planned = plan(request, *own) if command.timed else fitted(command, request, own, options)
    if not command.timed and minutes is None and planned.longest:
        until = deadline(HALF_HOUR / 60)

    def passes(other: Any) -> Passes:
        return estimate(plan(other, *own), Path(os.devnull), *own, overwrite=True)[1]

    if options.estimate:
        from probe.experiment.estimate import shorter_request

        text, left = estimate(planned, options.out, *own, overwrite=options.overwrite)

        def shorter(speed: Speed) -> str:
            if not command.timed:
                if planned.longest:
                    return ""
                line = resume_command(command.name, options.out, recorded(request, *own))
                return f"as much of it as half an hour tells: {line} --minutes=30"
            less = shorter_request(planned, passes, speed)
            if less is None:
                return "fewer prompts, lengths and methods take more than half an hour too"
            out = options.out.with_name(f"{options.out.name}-short") if options.out.exists() else options.out
            return f"in about half an hour: {resume_command(command.name, out, recorded(less, *own))}"

        measured = getattr(planned, "speed", None)
        print_estimate(text, left, request, options.threads, shorter, as_json=options.json, speed=measured)
        return 0
    with owned(options.out), resumable(options):
        results = run_and_report(planned, options.out, *own, overwrite=options.overwrite, until=until, runner=runner)
        if command.layout.folder and results.text:  # a probe's report there tells of it
            from probe.commands.probe.report import write_report
            from probe.store.reader import store_of

            if store_of(options.out).exists():
                write_report(options.out)
    if results.refusal:
        raise Failed(results.refusal)
    if results.failed:
        print_continues(options, f"{results.failed} cells failed")
    elif results.left:
        over = f"{minutes:g} minutes are over, " if minutes else ""
        print_continues(options, f"{over}{results.left} tasks are left")
    if options.json:
        print(json_text(results.summary) if isinstance(results.summary, dict) else result_text(results.summary))
    elif results.text:
        print(results.text)
    return 1 if results.failed else 0


AMOUNT_FIELDS = ("samples", "texts", "lengths", "length", "refine")
"""Fields of a request that say how much is measured."""
CHEAP_RUN = 2e13
"""Floating-point operations of a run below which it takes minutes on a CPU: its speed is not measured."""


def fitted(command: Command, request: Any, own: Sequence[Any], options: FittedOptions) -> Any:
    """The plan of a request; of a run in stages, with --minutes, or where all of it takes more than half an hour.

    A run in --out keeps what it is, and its longest length. With an option that says how much, and without --minutes,
    all of the request is measured. Raises Refused where the time is too short for anything.
    """
    plan, estimate, _ = command.load()
    there = {} if options.overwrite else RunFolder(options.out).settings
    if options.minutes is not None and not getattr(request, "samples", 1):
        raise Refused(f"--minutes {options.minutes:g} with --samples 0: nothing is measured; leave one of them out")
    if "stages" in there:
        longest, length = int(there["longest"]), request.length
        if length and length > longest:
            raise Refused(
                f"--length {length}: the run in {options.out} measures up to {longest} tokens, and does not grow; "
                "give --overwrite or another --out"
            )
        planned = plan(request, *own, longest)
        estimate(planned, options.out, *own, overwrite=False)  # refused before the model is loaded
        return replace(planned, speed=_speed(planned, options))
    said = StringIO()
    with redirect_stderr(said):  # what a plan says is said once
        planned = plan(request, *own)
    stated = [name for name in AMOUNT_FIELDS if getattr(request, name) != getattr(type(request), name)]
    passes = estimate(planned, Path(os.devnull), *own, overwrite=True)[1]
    by_default = options.minutes is None and not stated and options.runner == "local" and not options.estimate
    in_time = options.minutes is not None
    if not in_time and (not by_default or there or operations(planned, passes) < CHEAP_RUN):
        sys.stderr.write(said.getvalue())
        return planned
    from probe.commands.probe.run import longest_that_fits, stage_passes
    from probe.experiment.estimate import HALF_HOUR, seconds_of
    from probe.experiment.pool import format_seconds

    seconds = 60 * options.minutes if options.minutes else HALF_HOUR
    speed = _speed(planned, options)
    takes = format_seconds(seconds_of(passes, speed))
    if not in_time and seconds_of(passes, speed) <= seconds:
        sys.stderr.write(said.getvalue())
        return planned
    # the plan's request may have a --length of its own: what fits into the store by default
    longest = longest_that_fits(replace(planned, request=request), speed, seconds)
    planned = replace(plan(request, *own, longest), speed=speed)
    full = "the request" if stated else "all that is measured by default"
    first = seconds_of(stage_passes(planned), speed)
    until = f"about {format_seconds(first)} until all methods are measured there"
    more = "the same command goes on" if first > seconds else "then more texts, passkeys, narrower brackets"
    sys.stderr.write(
        f"{full} takes about {takes} here; in stages, in {seconds / 60:g} minutes: up to {longest} tokens, {until}, "
        f"{more}\n"
    )
    return planned


def _speed(planned: Any, options: FittedOptions) -> Speed:
    """The model's speed, measured now."""
    from probe.experiment.estimate import measure_speed
    from probe.experiment.pool import computing
    from probe.experiment.run import ModelSpec

    request = planned.request
    sys.stderr.write("measuring the model's speed\n")
    with computing(options.threads):
        spec = ModelSpec(request.model, request.load)
        return measure_speed(spec, planned.longest or max(planned.lengths), request.executor)


def operations(planned: Any, passes: Passes) -> float:
    """Floating-point operations of the passes, estimated from the config."""
    from probe.capture.memory import pass_flops

    return sum(count * pass_flops(planned.config, length) for (_, length), count in passes.items())


def print_continues(output: OutputOptions, reason: str) -> None:
    """Prints on stderr why a run is not complete, and how it continues."""
    print(f"mesa-lens: {reason}; {how_to_resume(output.out, output.overwrite)}", file=sys.stderr)


def print_estimate(
    text: str,
    left: Passes,
    request: Any,
    threads: int | None,
    shorter: Callable[[Speed], str] = lambda speed: "",
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
        lines += filter(None, [shorter(speed)])
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
