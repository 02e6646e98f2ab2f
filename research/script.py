"""What the research scripts share: options, errors in one line, and a journal of finished cells."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Cell = tuple[str | int, ...]


def make_parser(description: str | None, out: str, prog: str) -> argparse.ArgumentParser:
    """A parser with the options of a model, --out and --minutes."""
    parser = argparse.ArgumentParser(
        prog=f"python research/{prog}/run.py",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", default="default", help="default, nope, alibi, smollm2, a folder or a hub id")
    parser.add_argument("--dtype", help="e.g. float32 (None: float32 on a CPU, else the checkpoint's)")
    parser.add_argument("--device", default="cpu", help="e.g. cuda:0")
    parser.add_argument("--trained-length", type=int, help="M in tokens (None: what the config states)")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder; an interrupted run continues in it")
    parser.add_argument("--overwrite", action="store_true", help="start again")
    parser.add_argument("--minutes", type=float, help="start nothing after this; the same command continues")
    return parser


def add_device(parser: argparse.ArgumentParser) -> None:
    """Adds --device to a script that measures in float32 anywhere."""
    parser.add_argument("--device", default="cpu", help="e.g. cuda:0; float32 there too")


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Adds --executor, and --device, to a script that measures long prompts."""
    add_device(parser)
    parser.add_argument(
        "--executor", default="fused", help="dense: compiles nothing on a GPU, and takes 35 GB at 16384 tokens"
    )


def on_device(args: argparse.Namespace) -> dict[str, str]:
    """What a row of a journal says of a device other than the CPU."""
    return {} if args.device == "cpu" else {"device": args.device}


def load_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `mesa.load`."""
    options = {"revision": None, "dtype": args.dtype, "device": args.device, "device_map": None}
    return {**options, "trust_remote_code": False}


def names(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated text."""
    return tuple(part.strip() for part in text.split(","))


def deadline(minutes: float | None) -> Callable[[], bool]:
    """Whether so many minutes are over; None: never."""
    ends = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    return lambda: time.monotonic() >= ends


def run(main: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Runs `main` with the command line; an error becomes one line and exit code 1."""
    args = parser.parse_args()
    try:
        main(args)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        sys.exit(f"{parser.prog}: {error}")


class Journal:
    """Finished cells and what they gave, in `rows`; a file of JSON lines, the first of which holds the settings.

    A last line that an interrupt cut short is dropped. Raises ValueError, naming what differs, for the file of a run
    with other settings; other library versions are accepted.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path, self.rows = path, dict[Cell, dict[str, Any]]()
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() and not overwrite else []
        lines = [line for line in lines if line.endswith("\n")]
        settings = json.loads(json.dumps(settings))
        if lines:
            stored = json.loads(lines[0])["settings"]
            differing = [
                key for key in {**stored, **settings} if key != "versions" and stored.get(key) != settings.get(key)
            ]
            if differing:
                raise ValueError(f"{path} holds a run with another {', '.join(differing)}; use --overwrite or --out")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines) or json.dumps({"settings": settings}) + "\n", encoding="utf-8")
        for row in map(json.loads, lines[1:]):
            self.rows[tuple(row.pop("cell"))] = row

    def add(self, cell: Cell, row: Mapping[str, Any]) -> None:
        """Stores what a cell gave. Raises ValueError for a number that is not finite."""
        line = json.dumps({"cell": cell, **row}, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self.rows[cell] = json.loads(json.dumps(row))
