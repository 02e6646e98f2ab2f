"""`mesa-lens methods`: lists the methods, and draws the relative positions of one."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from mesa.errors import Refused
from mesa.methods import Method, known_method, make, registry
from mesa.plan import distances
from mesa.settings import drawing_sizes, make_methods
from mesa.support import table
from mesa_lens.arguments import JsonOptions, add_command
from probe.options import REQUIRED, Integer, Repeated, Text, Window, option

HELP = "list the methods, or explain one"
_WIDEST, _LONGEST = 48, 4096


@dataclass(frozen=True)
class ListOptions:
    """What is listed."""

    trained_length: Window = option(4096, "M in tokens (4096: LLaMA2's)")
    table: bool = option(False, "print which model families take which methods")


@dataclass(frozen=True)
class ExplainOptions:
    """What is drawn."""

    name: Text = option(REQUIRED, f"one of {', '.join(registry())}", positional=True)
    length: Annotated[Integer, Field(ge=1, le=_LONGEST)] = option(12, "tokens to draw")
    trained_length: Window | None = option(None, "M in tokens", unset="two thirds of the length")
    settings: Repeated = option((), "a parameter", key="set", metavar="METHOD.PARAMETER=VALUE", repeated=True)


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = add_command(
        commands,
        "methods",
        run_list,
        example="mesa-lens methods --trained-length 8192",
        help=HELP,
        description=__doc__,
    )
    add_command(
        command.add_subparsers(metavar="explain"),
        "explain",
        run_explain,
        example="mesa-lens methods explain rerope --length 12",
        help="draw a method's relative-position matrix",
        description="The matrix of effective relative positions of a method, one row a query.",
    )


def run_list(options: ListOptions, printing: JsonOptions) -> int:
    """Prints every method with its formula, parameters and source."""
    if options.table:
        if options.trained_length != ListOptions.trained_length:
            raise Refused(f"--trained-length {options.trained_length} with --table: the table is the same for every M")
        if printing.json:
            raise Refused("--json with --table: the table is Markdown; take one of the two")
        print(table())
        return 0
    methods = make_methods("all", options.trained_length)
    methods |= {name: make(name, options.trained_length) for name in registry() if name not in methods}
    if printing.json:
        print(json.dumps([_record(method) for method in methods.values()], indent=1))
        return 0
    print(
        f"Trained length M = {options.trained_length} tokens. "
        "t: query, i: key, r = t - i, R: the distance it is computed at\n"
    )
    for method in methods.values():
        note = " (experimental, not in `all`)" if method.experimental else ""
        print(f"{method.name:14s} {method.formula}{note}")
        print(f"{'':14s} {_parameters(method)}")
        print(f"{'':14s} {method.source}")
        print(f"{'':14s} served by: {', '.join(method.served_by) or 'Python alone'}\n")
    return 0


def run_explain(options: ExplainOptions, printing: JsonOptions) -> int:
    """Prints the matrix of effective relative positions, one row a query."""
    known_method(options.name)
    trained_length = max(2, options.length * 2 // 3) if options.trained_length is None else options.trained_length
    targets = {setting.partition("=")[0].strip() for setting in options.settings}
    drawn = {f"{options.name}.{size}": value for size, value in drawing_sizes(options.name, trained_length).items()}
    sizes = [f"{target}={value}" for target, value in drawn.items() if target not in targets]
    method = make_methods(options.name, trained_length, [*sizes, *options.settings])[options.name]
    matrix = distances(method.plan(options.length))
    if printing.json:
        print(json.dumps({**_record(method), "length": options.length, "relative_positions": matrix.tolist()}))
        return 0
    if options.length > _WIDEST:
        raise Refused(f"--length {options.length} is too wide to draw; use at most {_WIDEST}, or --json")
    print(f"{method.name}: {method.formula}")
    print(f"M = {trained_length}; {_parameters(method)}")
    if method.plan(options.length).frequency_scale is not None:
        print("rotary frequencies are changed at this length; the distances below are not")
    print("rows: query t, columns: key i, '.': masked\n")
    print(_drawn(matrix))
    return 0


def _drawn(matrix: np.ndarray) -> str:
    cells = [["." if value < 0 else f"{value:.4g}" for value in row] for row in matrix]
    width = max(len(cell) for row in cells for cell in row)
    label = len(str(len(cells) - 1))
    head = " " * (label + 3) + " ".join(f"{key:>{width}}" for key in range(len(cells)))
    rows = [
        f"{query:>{label}} | " + " ".join(f"{cell:>{width}}" for cell in row[: query + 1])
        for query, row in enumerate(cells)
    ]
    return "\n".join([head, *rows])


def _record(method: Method) -> dict[str, Any]:
    return {
        **method.describe(), "formula": method.formula, "source": method.source, "served_by": method.served_by
    }  # fmt: skip


def _parameters(method: Method) -> str:
    names = (field.name for field in dataclasses.fields(method) if field.name != "trained_length")
    return ", ".join(f"{name}={getattr(method, name)}" for name in names)
