"""Flags from dataclasses of options, and the options that commands share."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, Field

from mesa.errors import Refused
from probe.commands import commands as measuring
from probe.options import Count, Number, OutputFolder, Text, from_values, option, options, read_as
from probe.request import MethodsRequest
from probe.run_folder import RunFolder

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
    estimate: bool = option(False, "print what the run would take, such as time and memory, and stop", group=_OUTPUT)


@dataclass(frozen=True)
class JsonOptions:
    """How a result is printed."""

    json: bool = option(False, "print JSON", group=_OUTPUT)


@dataclass(frozen=True)
class MinutesOptions:
    """How long a run takes at most."""

    minutes: Minutes | None = option(
        None, "start no test after this many minutes; those left out are listed", group=_OUTPUT, unset="no limit"
    )


@dataclass(frozen=True)
class ThreadOptions:
    """What a process computes with."""

    threads: Count | None = option(
        None, "CPU threads", group=_WORKERS, unset="OMP_NUM_THREADS, else one for each idle core"
    )


@dataclass(frozen=True)
class WorkerOptions(ThreadOptions):
    """Who runs the tasks."""

    threads: Count | None = option(
        None,
        "CPU threads, for each worker with --runner ray",
        group=_WORKERS,
        unset="OMP_NUM_THREADS, else one for each idle core; with Ray one for each CPU of a worker",
    )
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
        None, "GPUs of each worker, e.g. 2 with --device-map auto", group=_WORKERS, unset="1 on GPUs, else 0"
    )
    verbose: bool = option(
        False, "print a line for each worker and each finished task, and Ray's messages", group=_WORKERS
    )


@dataclass(frozen=True)
class FittedOptions(WorkerOptions, MinutesOptions, JsonOptions, OutputOptions):
    """All of an experiment that chooses how much it measures."""

    minutes: Minutes | None = option(
        None,
        "answer in about this long, in stages: the most telling is measured first; the same command narrows the answer",
        group=_OUTPUT,
        unset="30 where no option says how much and it would take longer",
    )


@dataclass(frozen=True)
class TimedOptions(WorkerOptions, MinutesOptions, JsonOptions, OutputOptions):
    """All of an experiment."""

    minutes: Minutes | None = option(
        None, "start no task after this many minutes; the same command continues", group=_OUTPUT, unset="no limit"
    )


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
            how |= {} if new.positional else {"required": True}
        group.add_argument(new.flag, help=new.help_text.replace("%", "%%"), **how)


def take_from_run(args: argparse.Namespace, classes: Sequence[type]) -> None:
    """Options of the model that were not passed become those of the run in --out, where there is one."""
    request = next((cls for cls in classes if issubclass(cls, MethodsRequest)), None)
    if request is None or "out" not in args:
        return
    command = next(command for command in measuring().values() if request in command.options)
    if args.overwrite and command.name == "probe":  # nothing is taken from what is written again
        return
    folder = RunFolder(args.out, command.layout.names if args.overwrite else ())
    for key, value in folder.taken(vars(args), vars(args).get("passed", ()), request.default_methods).items():
        if key != "seed" or not vars(args).get("harness"):  # lm-eval's tasks have prompts of their own
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
