"""`mesa-lens export`: figures of a run, and the numbers in them, as files; needs no model."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from mesa.errors import Refused
from mesa.progress import Bar
from mesa.settings import ALL
from mesa_lens.arguments import JsonOptions, add_command
from probe.commands import commands
from probe.options import (
    REQUIRED,
    Count,
    Folder,
    InputPath,
    Lengths,
    Names,
    OutputFolder,
    RangeList,
    Ranges,
    Text,
    Whole,
    option,
    read_as,
)

if TYPE_CHECKING:
    from probe.figures.export import Export
    from probe.run import Run


def _pairs(text: Any) -> tuple[tuple[int, int], ...]:
    """Pairs (layer, dim) from e.g. '1:234,2:17'."""
    pairs = [part.strip().partition(":") for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}:[0-9]{1,9}", f"{layer}:{dim}") for layer, _, dim in pairs):
        raise Refused(f"{text!r} is not a list of layer:dim; write e.g. 1:234,2:17")
    return tuple((int(layer), int(dim)) for layer, _, dim in pairs)


Pairs = Annotated[tuple[tuple[int, int], ...], BeforeValidator(_pairs)]
Values = Annotated[Whole, Field(ge=1, le=10**12)]
TOP = 4
"""Threshold dims of an export."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What every kind of export takes."""

    format: Names = option(("png",), "html, png, svg, pdf, npz, csv; several with commas")
    out: OutputFolder | None = option(None, "folder for the files", unset="exports, beside the store")
    methods: Names = option(("all",), "names separated by commas, or all")

    @property
    def chosen(self) -> list[str] | None:
        """The methods; None for all."""
        return None if ALL in self.methods else list(self.methods)

    def check(self) -> None:
        """Raises Refused for an unknown format, and for an option that would change nothing."""
        from probe.figures.export import check_format

        for form in self.format:
            check_format(form, getattr(self, "native", False))

    def writes(self, kind: Iterable[str]) -> bool:
        """Whether a format of this kind is among those asked for."""
        return not set(self.format).isdisjoint(kind)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        raise NotImplementedError

    def export(self) -> Export:
        """The figures and their numbers."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class StoreOptions(ExportOptions):
    """What the exports of a store take."""

    store: InputPath = option(
        REQUIRED,
        "the folder that `mesa-lens probe` wrote, or its store",
        positional=True,
        metavar="STORE",
    )

    @cached_property
    def run(self) -> Run:
        """The captured run."""
        from probe.run import open_run

        return open_run(self.store)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.run.folder


@dataclass(frozen=True, kw_only=True)
class StateOptions(StoreOptions):
    """What the exports of hidden states take."""

    hook: Text | None = option(None, "e.g. resid_post", unset="the first captured")
    prompt: Text | None = option(None, "e.g. text-0", unset="the first captured")

    def captured(self, dim: str, ranges: Ranges | None) -> list[int] | None:
        """The labels in half-open ranges; None stays. Refused if one of a range was not captured."""
        from probe.store.select import hook_values, in_ranges

        return None if ranges is None else in_ranges(hook_values(self.run, self.hook), dim, ranges)[dim].values.tolist()


@dataclass(frozen=True)
class HeatmapOptions(StateOptions):
    """Hidden states by layer, dim and position, methods side by side."""

    layers: RangeList = option(None, "e.g. 0-10, ends included", unset="all")
    dims: RangeList = option(None, "e.g. 0-639", unset="all")
    positions: RangeList = option(None, "e.g. 4000-5000,7000-8000, side by side", unset="around M and the last M")
    minus: Text | None = option(None, "show differences to this method", metavar="METHOD")
    native: bool = option(False, "a png a method, one pixel a value")
    pool: Values | None = option(
        None, "npz, csv: at most so many values, each the farthest from 0 of a block", unset="all values"
    )

    def check(self) -> None:
        """Raises Refused for an unknown format, and for --native without pictures and --pool without numbers."""
        from probe.figures.export import NUMBERS
        from probe.figures.render import PICTURES

        super().check()
        if self.native and not self.writes(PICTURES):
            raise Refused(f"--native is about pictures; --format {','.join(self.format)} has none: leave it out")
        if self.pool and not self.writes(NUMBERS):
            raise Refused(f"--pool is about numbers; --format {','.join(self.format)} has none: leave it out")
        if self.pool and self.native:
            raise Refused("--native draws every value, --pool merges them: leave one out")

    def export(self) -> Export:
        """The panels of all methods, or their differences to one."""
        from probe.figures.heatmap import CELLS

        return self.run.heatmap(
            self.minus,
            self.chosen,
            self.captured("layer", self.layers),
            self.captured("dim", self.dims),
            self.positions,
            self.prompt,
            self.hook,
            cells=None if self.native else CELLS,
            pool=self.pool,
        ).export


@dataclass(frozen=True)
class DriftOptions(StateOptions):
    """How far a layer's states are from what they did inside the window, by position."""

    layers: RangeList = option(None, "e.g. 3,7", unset="the first, and where drift begins")

    def export(self) -> Export:
        """The drift of one prompt."""
        return self.run.drift(self.prompt, self.captured("layer", self.layers), self.hook, self.chosen).export


@dataclass(frozen=True)
class ThresholdOptions(StateOptions):
    """Values of (layer, dim) pairs over position, with threshold and crossings."""

    pairs: Pairs | None = option(None, "e.g. 1:234,2:17", unset="the best", metavar="LAYER:DIM,...")
    top: Count | None = option(None, "how many of the best threshold dims", unset=str(TOP))

    def check(self) -> None:
        """Raises Refused for an unknown format, and for --top beside --pairs."""
        super().check()
        if self.pairs is not None and self.top is not None:
            raise Refused(f"--top {self.top} chooses the best dims, --pairs names them: leave one out")

    def export(self) -> Export:
        """The pairs of --pairs, or the best."""
        result = self.run.thresholds(self.pairs, self.top or TOP, self.prompt, self.hook, self.chosen)
        if not result.names:
            raise Refused(f"{result.text}; name some with --pairs")
        return result.export


@dataclass(frozen=True)
class CurveOptions(StoreOptions):
    """Tail NLL and passkey accuracy by length, with measured and predicted failures."""

    def export(self) -> Export:
        """The scores, with drift onsets of the first prompt."""
        return self.run.curves(self.chosen).export


@dataclass(frozen=True, kw_only=True)
class FolderOptions(ExportOptions):
    """What the exports that need no store take."""

    store: InputPath = option(
        REQUIRED, "the folder that the command of this name wrote to", positional=True, metavar="RUN"
    )
    lengths: Lengths | None = option(None, "in tokens, e.g. 512,1024", unset="all")

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.store


@dataclass(frozen=True)
class LocateOptions(FolderOptions):
    """What methods and clamps in one place recover, by layer and head."""

    measures: Names | None = option(None, "nll, passkey", unset="all")

    def export(self) -> Export:
        """What `mesa-lens locate` measured."""
        from probe.commands.locate.page import located_export
        from probe.commands.locate.result import LOCATED

        return located_export(LOCATED.read(self.store), self.chosen, self.lengths, self.measures)


@dataclass(frozen=True)
class AnatomyOptions(FolderOptions):
    """What heads attend to under each method."""

    def export(self) -> Export:
        """What `mesa-lens anatomy` measured."""
        from probe.commands.anatomy.page import anatomy_export
        from probe.commands.anatomy.result import ANATOMY

        return anatomy_export(ANATOMY.read(self.store), self.chosen, self.lengths)


_KINDS = {
    "heatmap": (HeatmapOptions, "--minus origin --layers 1-3 --format svg,npz"),
    "drift": (DriftOptions, "--format svg,csv"),
    "thresholds": (ThresholdOptions, "--pairs 3:150 --format pdf,csv"),
    "curves": (CurveOptions, "--format svg,csv"),
    "locate": (LocateOptions, "--format svg,csv"),
    "anatomy": (AnatomyOptions, "--format svg,csv"),
}
_OF_COMMANDS = {"locate", "anatomy"}
KINDS = {name: kind for name, kind in _KINDS.items() if name not in _OF_COMMANDS - {*commands()}}
"""The options of each kind, whose docstring says what it shows, and an example of them."""


def add(subcommands: Any) -> None:
    """Adds the subcommand, with one for each kind of export."""
    example = "mesa-lens export {} runs/demo {}"
    epilog, shows = (
        f"example: {example.format('drift', KINDS['drift'][1])}",
        "write a run's figures and numbers as files",
    )
    command = subcommands.add_parser("export", epilog=epilog, help=shows, description=__doc__)
    kinds = command.add_subparsers(title="kinds", required=True, metavar="KIND")
    for name, (cls, flags) in KINDS.items():
        texts = {"example": example.format(name, flags), "help": str(cls.__doc__), "description": str(cls.__doc__)}
        add_command(kinds, name, run, option_classes=(cls, JsonOptions), **texts)


def run(options: ExportOptions, printing: JsonOptions) -> int:
    """Checks, exports, and prints the path of every file written."""
    from probe.figures.export import NUMBERS
    from probe.figures.labels import check_size

    options.check()
    folder = read_as(Folder, options.folder / "exports") if options.out is None else options.out
    export = options.export()
    for form, numbers in product(options.format, export.numbers.values()):
        check_size(form, numbers)
    former = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    written = list(map(str, export.save(folder, Bar(options.format, desc="writing files", unit="format"))))
    if replaced := [path for path in written if Path(path).name in former]:
        print(f"mesa-lens: replaced {len(replaced)} of an earlier export: {', '.join(replaced)}", file=sys.stderr)
    for name, numbers in export.numbers.items():
        if "pooled" in numbers.attrs and options.writes(NUMBERS):
            print(f"mesa-lens: {name}: each value is {numbers.attrs['pooled']}", file=sys.stderr)
    print(json.dumps(written, indent=1) if printing.json else "\n".join(written))
    return 0
