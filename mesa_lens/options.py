"""The options that several commands share, in one wording, and what an interrupt says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mesa_lens.values import MOST_PROMPTS, MOST_SEED, MOST_WORKERS, listed, number, output, runner, whole
from probe.experiment.lock import how_to_resume

LOAD = ("revision", "dtype", "device", "device_map", "trust_remote_code")
"""The options of `mesa.load`, as arguments and in configs."""

FLEETING = ("memory://",)
"""URLs of what is gone with a process."""


def add_methods(group: Any, default: str = "all", more: str = "or 'all'") -> None:
    """Adds --methods; None is `default`, less what the model cannot have."""
    less = f"(None: {default}, less what the model cannot have)"
    group.add_argument("--methods", type=listed, help=f"names, separated by commas, {more} {less}")


def add_settings(group: Any) -> None:
    """Adds --set and --executor: parameters of the methods, and what runs them."""
    group.add_argument(
        "--set", action="append", default=[], metavar="METHOD.PARAMETER=VALUE", help="e.g. rerope.window=512"
    )
    group.add_argument("--executor", default="fused", help="fused, or dense (O(T^2) memory)")


def add_samples(group: Any, default: int, more: str = "", least: int = 1) -> None:
    """Adds --samples."""
    of = whole(least, MOST_PROMPTS)
    group.add_argument("--samples", type=of, default=default, help=f"prompts a length and method{more}")


def add_lengths(group: Any, default: str) -> None:
    """Adds --lengths, which `lengths` reads; `default` says what None is."""
    group.add_argument("--lengths", type=listed, help=f"tokens, e.g. 256,512 or 1k:16k:1k (None: {default})")


def add_seed(group: Any) -> None:
    """Adds --seed."""
    says = "of all that is drawn; runs of text are spread evenly"
    group.add_argument("--seed", type=whole(0, MOST_SEED), default=0, help=says)


def add_output(command: argparse.ArgumentParser, default: str, about: str, *, shows: bool = True) -> Any:
    """Adds --out and --overwrite and, with `shows`, --estimate and --json; returns their group."""
    out = command.add_argument_group("output")
    says = f"folder{about}; an interrupted run goes on in it"
    out.add_argument("--out", type=output, default=Path(default), help=says)
    out.add_argument("--overwrite", action="store_true", help="begin anew, in place of what is already there")
    add_force(out)
    if shows:
        out.add_argument(
            "--estimate", action="store_true", help="print the work, time, memory and disk it takes, and stop"
        )
        out.add_argument("--json", action="store_true", help="print summary.json in place of tables")
    return out


def add_force(group: Any) -> None:
    """Adds --force."""
    says = "go on with what other weights, tokenizer, config or versions began, and record it"
    group.add_argument("--force", action="store_true", help=says)


def add_minutes(command: Any) -> None:
    """Adds --minutes."""
    says = "begin nothing after this; the same command goes on (None: all)"
    command.add_argument("--minutes", type=number(0, above=True), help=says)


def add_threads(group: Any) -> None:
    """Adds --threads."""
    says = "CPU threads, of a worker with --runner ray (None: OMP_NUM_THREADS, else one an idle core; one a CPU of Ray)"
    group.add_argument("--threads", type=whole(1, MOST_WORKERS), help=says)


def add_runner(command: argparse.ArgumentParser) -> None:
    """Adds --runner and what goes with it, which `runner_of` reads."""
    who = command.add_argument_group("who runs it")
    who.add_argument(
        "--runner",
        type=runner,
        default="local",
        metavar="local|ray[:ADDRESS]",
        help="this process, or workers on Ray: of its own, or of the cluster at ADDRESS (auto: of this job)",
    )
    who.add_argument("--workers", type=whole(1, MOST_WORKERS), help="of Ray (None: one a GPU, else one a CPU)")
    who.add_argument(
        "--gpus-per-worker", type=number(0), help="e.g. 2 with --device-map auto (None: 1 with --device cuda, else 0)"
    )
    who.add_argument("--verbose", action="store_true", help="a line a worker and a finished cell, and what Ray says")


def runner_of(args: argparse.Namespace, load: Mapping[str, Any] | None = None) -> Any:
    """The `Runner` that is asked for, checked. load: options of `mesa.load`, where they are no arguments.

    Raises ValueError for one that cannot be.
    """
    from probe.experiment.runner import Runner

    kind, address = args.runner
    runner = Runner(kind, address, args.workers, args.gpus_per_worker, args.verbose, args.threads)
    runner.check({name: getattr(args, name) for name in LOAD} if load is None else load)
    return runner


def tell_left(args: argparse.Namespace, left: str) -> None:
    """Says on stderr what is left of a run, because --minutes are over, and how it goes on."""
    over = f"{args.minutes:g} minutes are over, " if args.minutes else ""
    print(f"mesa-lens: {over}{left}; {how_to_resume(args.out, args.overwrite)}", file=sys.stderr)


def tell_failed(args: argparse.Namespace, failed: str) -> None:
    """Says on stderr what no worker could finish, and how the run goes on."""
    print(f"mesa-lens: {failed} failed; {how_to_resume(args.out, args.overwrite)}", file=sys.stderr)


def tell_estimate(args: argparse.Namespace, text: str, models: Any, request: Any) -> None:
    """Prints an estimate, and the time that passes take on this machine.

    models: configs, each with the work of its model, passes by method and length.
    """
    from probe.experiment.estimate import time_of
    from probe.experiment.threads import computing

    with computing(args.threads):
        print(f"{text}\n{time_of(models, request.load, getattr(request, 'executor', 'fused'))}")


def lengths(args: argparse.Namespace) -> tuple[int, ...] | None:
    """What --lengths says, in tokens. Raises ValueError for what it cannot read."""
    from probe.options import parse_lengths

    try:
        return None if args.lengths is None else parse_lengths(args.lengths)
    except ValueError as error:
        raise ValueError(f"--lengths {error}") from None


def url(text: str) -> str:
    """The URL of an object store that outlasts this process."""
    from probe.store.place import checked_url

    if text.startswith(FLEETING):
        raise argparse.ArgumentTypeError(f"{text!r} is gone as this command ends; give s3://, gs:// or abfs://")
    try:
        return checked_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@contextmanager
def goes_on(args: argparse.Namespace) -> Iterator[None]:
    """An interrupt says that the same command goes on from --out, where there is something to go on from."""
    try:
        yield
    except KeyboardInterrupt as error:
        from probe.status import has_results

        if has_results(args.out) and not hasattr(error, "__notes__"):
            error.add_note(how_to_resume(args.out, args.overwrite))
        raise
