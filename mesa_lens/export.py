"""`mesa-lens export`: figures of a run, and the numbers in them, as files; needs no model."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, make_dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from mesa.errors import Refused
from mesa.progress import Bar
from mesa.settings import ALL
from mesa_lens.arguments import JsonOptions, add_command
from probe.commands import Command, commands
from probe.options import (
    REQUIRED,
    Count,
    Folder,
    InputPath,
    Integer,
    Lengths,
    Names,
    OutputFolder,
    RangeList,
    Text,
    option,
    read_as,
)

if TYPE_CHECKING:
    from probe.figures.export import Export


def _pairs(text: Any) -> tuple[tuple[int, int], ...]:
    """Pairs (layer, dim) from e.g. '1:234,2:17'."""
    pairs = [part.strip().partition(":") for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}:[0-9]{1,9}", f"{layer}:{dim}") for layer, _, dim in pairs):
        raise Refused(f"{text!r} is not a list of layer:dim; write e.g. 1:234,2:17")
    return tuple((int(layer), int(dim)) for layer, _, dim in pairs)


Pairs = Annotated[tuple[tuple[int, int], ...], BeforeValidator(_pairs)]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What every kind of export takes; each adds flags for the parameters of the call that draws it."""

    kind: ClassVar[str] = ""
    store: InputPath = option(REQUIRED, "the run's folder, or its store", positional=True, metavar="STORE")
    format: Names = option(("png",), "html, png, svg, pdf, npz, csv; several with commas")
    out: OutputFolder | None = option(None, "folder for the files", unset="exports, next to the store")


_FLAGS: dict[str, tuple[Any, Any]] = {
    "methods": (Names, option((ALL,), "names separated by commas, or all")),
    "hook": (Text, option(None, "e.g. resid_post", unset="the first captured")),
    "prompt": (Text, option(None, "e.g. text-0", unset="the first captured")),
    "layers": (
        RangeList,
        option(
            None,
            "e.g. 0-10, ends included",
            unset="all; of drift, where it begins; of distance, the first and the most moved",
        ),
    ),
    "dims": (RangeList, option(None, "e.g. 0-639", unset="all")),
    "positions": (
        RangeList,
        option(None, "e.g. 4000-5000,7000-8000, side by side", unset="around M and the last M"),
    ),
    "minus": (Text, option(None, "show differences to this method", metavar="METHOD")),
    "cells": (bool, option(False, "a png a method, one pixel a value", key="native")),
    "pool": (
        Annotated[Integer, Field(ge=1, le=10**12)],
        option(None, "npz, csv: at most n values, each max-abs pooled from a block", unset="all values", metavar="N"),
    ),
    "pairs": (Pairs, option(None, "e.g. 1:234,2:17", unset="the best", metavar="LAYER:DIM,...")),
    "top": (Count, option(None, "how many of the best threshold dims", unset="4")),
    "lengths": (Lengths, option(None, "in tokens, e.g. 512,1024", unset="all")),
    "measures": (Names, option(None, "nll, passkey", unset="all")),
}
"""The type and flag of each parameter; unset, it is left to the call's own default."""

HELP = "write a run's figures and numbers as files"
KINDS = {
    "heatmap": (
        "Hidden states by layer, dim and position, methods side by side.",
        "minus methods layers dims positions prompt hook cells pool",
        "--minus origin --layers 1-3 --format svg,npz",
    ),
    "drift": (
        "How far a layer's states are from what they did inside the window, by position.",
        "prompt layers hook methods",
        "--format svg,csv",
    ),
    "distance": (
        "How far states on text lie from the in-window distribution, by length and position: collapse and growth.",
        "layers hook methods",
        "--format svg,csv",
    ),
    "thresholds": (
        "Values of (layer, dim) pairs over position, with threshold and crossings.",
        "pairs top prompt hook methods",
        "--pairs 3:150 --format pdf,csv",
    ),
    "curves": (
        "Tail NLL and passkey accuracy by length, with measured and predicted failures.",
        "methods",
        "--format svg,csv",
    ),
}
"""What each kind shows, the parameters of its call, which is the method of `Run` of this name, and an example.

A test holds the parameters to the calls' signatures: they are not imported here, where every command is parsed.
"""


def kinds() -> dict[str, tuple[str, str, str]]:
    """`KINDS`, and those of the commands that name one (`Command.export`), which need no store.

    Raises Refused for one that cannot be, naming its package.
    """
    return KINDS | {name: _checked(command) for name, command in commands().items() if command.export}


def _checked(command: Command) -> tuple[str, str, str]:
    """What the command says of its export; Refused where that cannot be."""
    match command.export:
        case (str(), str() as parameters, str()):
            unknown = [name for name in parameters.split() if name not in _FLAGS]
            if command.name in KINDS:
                problem = "is called as a figure of a run is; rename the command"
            elif unknown:
                problem = f"has no parameter {unknown[0]!r}; known: {', '.join(_FLAGS)}"
            elif "export" not in command.tells:
                problem = "is none of its `tells`; name it there"
            else:
                return command.export
        case _:
            problem = "is not three texts: what it shows, its parameters, an example"
    raise Refused(f"the export of {command.package} {problem}, or uninstall that package")


def options_of(kind: str) -> type[ExportOptions]:
    """The options of a kind, as a dataclass."""
    about, parameters, _ = kinds()[kind]
    fields = [(name, *_FLAGS[name]) for name in parameters.split()]
    cls = make_dataclass(f"{kind.capitalize()}Options", fields, bases=(ExportOptions,), frozen=True, kw_only=True)
    cls.kind, cls.__doc__ = kind, about
    return cls


def add(subcommands: Any) -> None:
    """Adds the subcommand, with one for each kind of export."""
    epilog = f"example: mesa-lens export drift runs/demo {KINDS['drift'][-1]}"
    command = subcommands.add_parser("export", epilog=epilog, help=HELP, description=__doc__)
    parsers = command.add_subparsers(title="kinds", required=True, metavar="KIND")
    for kind, (about, _, flags) in kinds().items():
        folder = "runs/demo" if kind in KINDS else commands()[kind].example_out
        example = f"mesa-lens export {kind} {folder} {flags}".strip()
        texts = {"example": example, "help": about, "description": about}
        add_command(parsers, kind, run, option_classes=(options_of(kind), JsonOptions), **texts)


def check(options: ExportOptions) -> None:
    """Raises Refused for an unknown format, and for an option that would change nothing."""
    from probe.figures.export import NUMBERS, PICTURES, check_format

    values = vars(options)
    methods = values.get("methods", ())
    if ALL in methods and len(methods) > 1:
        raise Refused(f"--methods {','.join(methods)}: {ALL} stands for every method; leave the others out")
    native, pool, top = (values.get(name) for name in ("cells", "pool", "top"))
    for form in options.format:
        check_format(form, bool(native))
    for flag, is_set, what, forms in (("--native", native, "pictures", PICTURES), ("--pool", pool, "numbers", NUMBERS)):
        if is_set and set(options.format).isdisjoint(forms):
            raise Refused(f"{flag} is about {what}; --format {','.join(options.format)} has none: leave it out")
    if pool and native:
        raise Refused("--native draws every value, --pool merges them: leave one out")
    if top is not None and values.get("pairs") is not None:
        raise Refused(f"--top {top} chooses the best dims, --pairs names them: leave one out")


def exported(options: ExportOptions, opened: Any) -> Export:
    """The figures and their numbers: the kind's call, with the options that are set.

    opened: the run; None for a command's kind.
    """
    names = kinds()[options.kind][1].split()
    values: dict[str, Any] = {name: value for name in names if (value := getattr(options, name)) is not None}
    if ALL in values.get("methods", ()):
        del values["methods"]
    if opened is None:
        return commands()[options.kind].on_page("export")(options.store, **values)
    from probe.figures.heatmap import CELLS
    from probe.store.reader import hook_values, in_ranges

    if options.kind == "distance" and "layers" in values:  # by length of four layers, whatever is stored
        values["layers"] = [layer for start, stop in values["layers"] for layer in range(start, stop)]
    for name, axis in (("layers", "layer"), ("dims", "dim")):
        if name in values and options.kind != "distance":
            values[name] = in_ranges(hook_values(opened, values.get("hook")), axis, values[name])[axis].values.tolist()
    if "cells" in values:
        values["cells"] = None if values["cells"] else CELLS
    result = getattr(opened, options.kind)(**values)
    if not result.names:
        raise Refused(f"{result.text}; name some with --pairs")
    return result.export


def run(options: ExportOptions, printing: JsonOptions) -> int:
    """Checks, exports, and prints the path of every file written."""
    from probe.figures.export import NUMBERS, check_size
    from probe.run import open_run

    check(options)
    opened = open_run(options.store) if options.kind in KINDS else None
    run_folder = opened.folder if opened else options.store  # a store's own path may be passed in place of its run's
    folder = read_as(Folder, run_folder / "exports") if options.out is None else options.out
    export = exported(options, opened)
    for form, numbers in product(options.format, export.numbers.values()):
        check_size(form, numbers)
    former = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    written = list(map(str, export.save(folder, Bar(options.format, desc="writing files", unit="format"))))
    if replaced := [path for path in written if Path(path).name in former]:
        print(f"mesa-lens: replaced {len(replaced)} of an earlier export: {', '.join(replaced)}", file=sys.stderr)
    for name, numbers in export.numbers.items():
        if "pooled" in numbers.attrs and not NUMBERS.keys().isdisjoint(options.format):
            print(f"mesa-lens: {name}: each value is {numbers.attrs['pooled']}", file=sys.stderr)
    print(json.dumps(written, indent=1) if printing.json else "\n".join(written))
    return 0
