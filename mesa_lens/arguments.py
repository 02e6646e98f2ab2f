"""Flags from dataclasses of options, the options that commands share, and what an interrupt says."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, Field

from mesa.errors import Failed, Refused
from probe.commands.table import COMMANDS, Command
from probe.experiment.lock import how_to_resume
from probe.identity import taken
from probe.options import Count, Number, OutputFolder, Text, from_values, option, options, read_as
from probe.request import MethodsRequest

if TYPE_CHECKING:
    from probe.experiment.runner import Runner

T = TypeVar("T")
_LAST = ("output", "workers")
"""Groups that end a help."""
_OUTPUT, _WORKERS = _LAST


def _runner(text: str) -> str:
    kind, colon, address = text.partition(":")
    if text not in ("local", "ray") and not (kind == "ray" and colon and address.strip()):
        raise Refused(f"{text!r} is not a runner; take local, ray, or ray:ADDRESS (e.g. ray:auto)")
    return text


Minutes = Annotated[Number, Field(gt=0)]


@dataclass(frozen=True)
class OutputOptions:
    """Where a run goes."""

    out: OutputFolder = option(
        Path("runs"), "folder for the results; the same command continues an interrupted run there", group=_OUTPUT
    )
    overwrite: bool = option(False, "start over, and replace what is already there", group=_OUTPUT)
    estimate: bool = option(False, "print what the run would take (work, time, memory, disk) and stop", group=_OUTPUT)


@dataclass(frozen=True)
class JsonOptions:
    """How a result is printed."""

    json: bool = option(False, "print JSON instead of tables", group=_OUTPUT)


@dataclass(frozen=True)
class MinutesOptions:
    """How long a run takes at most."""

    minutes: Minutes | None = option(
        None, "start no task after this many minutes; the same command continues", group=_OUTPUT, unset="no limit"
    )


@dataclass(frozen=True)
class ThreadOptions:
    """What a process computes with."""

    threads: Count | None = option(
        None,
        "CPU threads, for each worker with --runner ray",
        group=_WORKERS,
        unset="OMP_NUM_THREADS, else one for each idle core; with Ray one for each CPU of a worker",
    )


@dataclass(frozen=True)
class WorkerOptions(ThreadOptions):
    """Who runs the tasks."""

    runner: Annotated[Text, AfterValidator(_runner)] = option(
        "local",
        "local: this process; ray: workers on a Ray that it starts; ray:ADDRESS: on that cluster (auto: this job's)",
        group=_WORKERS,
        metavar="local|ray[:ADDRESS]",
    )
    workers: Count | None = option(
        None, "number of Ray workers", group=_WORKERS, unset="one for each GPU, else one for each CPU"
    )
    gpus_per_worker: Annotated[Number, Field(ge=0)] | None = option(
        None, "GPUs of each worker, e.g. 2 with --device-map auto", group=_WORKERS, unset="1 with --device cuda, else 0"
    )
    verbose: bool = option(
        False, "print a line for each worker and each finished task, and Ray's messages", group=_WORKERS
    )


@dataclass(frozen=True)
class RunOptions(WorkerOptions, JsonOptions, OutputOptions):
    """All of an experiment, but for how long it takes."""


@dataclass(frozen=True)
class TimedOptions(WorkerOptions, MinutesOptions, JsonOptions, OutputOptions):
    """All of an experiment."""


@dataclass(frozen=True)
class AddedOptions(TimedOptions):
    """All of an experiment whose results a run's report takes up."""

    out: OutputFolder = option(
        Path("runs"),
        "the run that its results are added to, which `mesa-lens probe` wrote; or a new folder",
        group=_OUTPUT,
    )


def add_command(
    commands: Any,
    name: str,
    run: Callable[..., int],
    *,
    option_classes: Sequence[type] = (),
    example: str,
    help: str,
    description: str | None = None,
    **defaults: Any,
) -> argparse.ArgumentParser:
    """Adds a subcommand with a flag for every option; returns its parser.

    `cli.main` calls `run` with an instance of the class of each parameter. option_classes: these classes, where they
    are not the annotations of `run`. defaults: as in `add_options`.
    """
    if not option_classes:
        option_classes = [cls for name, cls in get_type_hints(run).items() if name != "return"]
    command = commands.add_parser(name, epilog=f"example: {example}", help=help, description=description)
    add_options(command, *option_classes, **defaults)

    def begin(args: argparse.Namespace) -> int:
        take_from_run(args, option_classes)
        return run(*(_named(read_options(args, cls)) for cls in option_classes))

    command.set_defaults(run=begin)
    return command


def _named(options: T) -> T:
    """The options; names in them of models and methods are looked up first, before torch is loaded."""
    check_names = getattr(options, "check_names", None)
    if check_names:
        check_names()
    return options


def add_options(parser: argparse.ArgumentParser, *classes: type, **defaults: Any) -> None:
    """Adds a flag for every option of the dataclasses, by group. defaults: in place of those declared."""
    declared = [item for cls in classes for item in options(cls)]
    names = dict.fromkeys(item.group for item in declared if item.group)
    groups = {name: parser.add_argument_group(name) for name in sorted(names, key=_LAST.__contains__)}
    for item in declared:
        new = dataclasses.replace(item, default=defaults.get(item.key, item.default))
        group = groups.get(item.group, parser)
        how: dict[str, Any] = {
            "type": reader(new.inner),
            "metavar": new.metavar or new.key.replace("_", "-").upper(),
            "default": new.default,
        }
        if new.is_flag:
            how = {"action": "store_true"}
        elif new.repeated:
            how |= {"type": str, "action": "append", "default": list(new.default)}
        elif new.positional and not new.is_required:
            how["nargs"] = "?"
        elif new.is_required:
            del how["default"]
        group.add_argument(new.flag, help=new.help_text.replace("%", "%%"), **how)


def take_from_run(args: argparse.Namespace, classes: Sequence[type]) -> None:
    """Options of the model that were not given become those of the run in --out, where there is one."""
    request = next((cls for cls in classes if issubclass(cls, MethodsRequest)), None)
    if request is None or "out" not in args:
        return
    command = next(command for command in COMMANDS.values() if request in command.options)
    if args.overwrite and command.name == "probe":  # nothing is taken from what is written anew
        return
    but = command.layout.names if args.overwrite else ()
    for key, value in taken(args.out, vars(args), vars(args).get("given", ()), request.default_methods, but).items():
        setattr(args, key, value)


def reader(hint: Any) -> Callable[[str], object]:
    """What argparse reads a value of this type with."""

    def read(text: str) -> object:
        try:
            return read_as(hint, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def read_options(args: argparse.Namespace, cls: Callable[..., T]) -> T:
    """The options of a dataclass, as the parser read them."""
    values = vars(args)
    for item in options(cls):  # type: ignore[arg-type]
        if item.repeated:
            try:
                values = values | {item.key: item.read(values[item.key])}
            except ValueError as error:
                raise Refused(f"{item.flag} {error}") from None
    return from_values(cls, values)


def runner_of(workers: WorkerOptions, load: Mapping[str, Any]) -> Runner:
    """The `Runner` of these options. load: options of `mesa.load`. Raises Refused for one that cannot be."""
    from probe.experiment.runner import Runner

    kind, _, address = workers.runner.partition(":")
    runner = Runner(kind, address or None, workers.workers, workers.gpus_per_worker, workers.verbose, workers.threads)
    runner.check(load)
    return runner


def run_options(command: Command) -> type[RunOptions | TimedOptions]:
    """How a command runs, in options."""
    return AddedOptions if command.layout.folder else TimedOptions if command.timed else RunOptions


def run_experiment(command: Command, request: Any, *more: Any) -> int:
    """Checks everything that can be checked, then estimates, or measures into --out and prints; the exit status.

    more: the further options of the command, and `run_options`.
    """
    from probe.experiment.lock import owned
    from probe.experiment.progress import deadline
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
    planned = plan(request, *own)
    if options.estimate:
        text, left = estimate(planned, options.out, *own, overwrite=options.overwrite)
        print_estimate(text, planned.config, left, request, options.threads, as_json=options.json)
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


def print_continues(output: OutputOptions, reason: str) -> None:
    """Prints on stderr why a run is not whole, and how it continues."""
    print(f"mesa-lens: {reason}; {how_to_resume(output.out, output.overwrite)}", file=sys.stderr)


def print_estimate(
    text: str, config: Any, left: Mapping[Any, float], request: Any, threads: int | None, *, as_json: bool = False
) -> None:
    """Prints an estimate, and the time that the passes left take on this machine.

    left: as `passes_of` gives them. as_json: as {"estimate": its lines}.
    """
    from probe.experiment.estimate import time_text
    from probe.experiment.threads import computing

    with computing(threads):
        whole = f"{text}\n{time_text(config, left, request.load, getattr(request, 'executor', 'fused'))}"
    print(json.dumps({"estimate": whole.splitlines()}, indent=1) if as_json else whole)


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
