"""The results that commands write as JSON: typed on writing and on reading, with a version and a checksum."""

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, cast

from pydantic import AliasChoices, BeforeValidator, Field, TypeAdapter, ValidationError, computed_field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from mesa.errors import NotFound, Refused
from probe.eval_tasks.sources import TextSource
from probe.files import JsonObject, json_text, read_result, write_result
from probe.options import head_name
from probe.run_folder import RUN, RunFolder, layouts, run_of

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that may be missing: NaN, and null in JSON."""


class Interval(NamedTuple):
    """A value, such as a mean over texts, with its 95% interval; NaN where there is none."""

    mean: Number
    low: Number
    high: Number


NOT_RECORDED = "not recorded"
"""What earlier versions did not write."""
T = TypeVar("T")


def formerly(name: str, present: str) -> Any:
    """A field's former name, under which older files hold it, for `Annotated`."""
    return Field(validation_alias=AliasChoices(present, name))


@dataclass(frozen=True)
class ResultFile(Generic[T]):
    """A command's summary in the folder of a run. path: below the folder; its first part names the command, or `by`.

    type: a pydantic dataclass; its `version` is the one that is written and read. flags: without which the command does
    not write it.
    """

    path: Path
    type: type[T]
    indent: int | None = 1
    by: str = ""
    flags: str = ""

    @property
    def command(self) -> str:
        """The command that writes it."""
        return self.by or self.path.parent.name

    def _line(self, folder: Path) -> str:
        return f"`mesa-lens {self.command}{self.flags} --out {quote(str(folder))}`"

    def find(self, folder: Path) -> T | None:
        """What the command wrote into the folder; None where it was not run.

        None too, after a line on stderr, for a file of another model than the run there. Raises Refused, naming the
        file and the command that writes it again, for one that is damaged.
        """
        result, problem = self._opened(folder)
        if problem:
            sys.stderr.write(f"{problem}\n")
        return result

    def read(self, folder: Path) -> T:
        """As `find`; raises NotFound where the command was not run, and Refused where it is of another model."""
        result, problem = self._opened(folder)
        if problem:
            raise Refused(problem)
        if result is None:
            raise NotFound(f"{folder / self.path} is not there; write it: {self._line(folder)}")
        return result

    def write(self, folder: Path, result: T) -> None:
        """Writes it with its checksum, and with the model that its journal is of; a probe's names its store."""
        path = folder / self.path
        run = run_of(RunFolder(folder).journal_of(path, self.command)) if self.command in layouts() else {}
        write_result(path, as_json(result) | ({RUN: run} if run else {}), self.indent)

    def _opened(self, folder: Path) -> tuple[T | None, str]:
        """The result, and why it is not of the run in the folder; None where it is not, or not there."""
        path = folder / self.path
        if not path.is_file():
            return None, ""
        try:
            content = read_result(path)
            result = self.parse(content, path)
        except Refused as error:
            if (writer := RunFolder(folder).writer(path)) not in ("", self.command):
                remedy = f"name a folder that `mesa-lens {self.command}` wrote to"
                raise Refused(f"{path} is of `mesa-lens {writer}`, not of `{self.command}`; {remedy}") from error
            raise Refused(f"{error}; write it again: {self._line(folder)}") from error
        problem = RunFolder(folder).not_of_run(path, content, self.command)
        return (None, problem) if problem else (result, "")

    def parse(self, content: JsonObject, path: Path) -> T:
        """The typed result of a file's content; raises Refused, naming what is missing or wrong."""
        try:
            return self._adapter.validate_python(content)
        except ValidationError as error:
            if content.get("version") != (expected := cast(Any, self.type).__dataclass_fields__["version"].default):
                raise Refused(f"{path} is of another version of mesa-lens, not of version {expected}") from error
            first = error.errors()[0]
            location = ".".join(map(str, first["loc"]))
            raise Refused(f"{path} is damaged ({location}: {first['msg'].lower()})") from error

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self.type)


@pydantic_dataclass(frozen=True)
class InWords:
    """A result that stands in words in its file too."""

    @computed_field
    @property
    def text(self) -> str:
        """As `str`."""
        return str(self)


class OfHead:
    """A row of one head."""

    layer: Any
    head: Any

    @property
    def name(self) -> str:
        """Layer and head, such as 'L3H1'."""
        return head_name(self.layer, self.head)


@dataclass(frozen=True)
class RunSummary:
    """What the summary of every plan says of the model and the methods."""

    model: str
    trained_length: int
    """M, in tokens."""
    seed: int
    executor: str
    versions: dict[str, str]
    methods: dict[str, JsonObject]
    """Configs by name; Origin's first where others are compared with it."""
    trained_length_by: str = field(default="", kw_only=True)
    """What states M; empty in earlier files."""
    as_trained: str = field(default="", kw_only=True)
    """Layers that stay as trained under every method, and why; empty: none, or not recorded."""
    origin: dict[str, str] | None = field(default=None, kw_only=True)
    """Of weights and tokenizer, as `mesa.models.origin` tells them; None: not recorded, by an earlier version."""
    text_source: TextSource | None = field(default=None, kw_only=True)
    """What the measures of text read; None: not recorded, by an earlier version."""


def as_json(result: Any) -> JsonObject:
    """A typed result as plain values, null for NaN: what its file holds."""
    return json.loads(json_text(TypeAdapter(type(result)).dump_python(result)))


def result_text(result: Any) -> str:
    """A typed result as JSON, as `--json` prints it."""
    return json_text(as_json(result))


def having(rows: Iterable[T], **labels: Any) -> list[T]:
    """The rows with all these labels."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in labels.items())]


def or_nan(value: float | None) -> float:
    """The value, NaN for None."""
    return math.nan if value is None else float(value)


def percent(value: float | None, low: float | None, high: float | None) -> str:
    """A share with its 95% interval, such as '82% [60, 106]'."""
    if not math.isfinite(or_nan(value)):
        return "unknown"
    ends = or_nan(low), or_nan(high)
    has_interval = all(map(math.isfinite, ends))
    interval = f"[{', '.join(str(round(100 * end)) for end in ends)}]" if has_interval else "(no interval)"
    return f"{round(100 * or_nan(value))}% {interval}"


def ranged(value: float | None, low: float | None, high: float | None, digits: int = 2) -> str:
    """A value with its 95% interval, such as '2.41 [2.20, 2.60]'; the interval is left out where there is none."""
    if not math.isfinite(or_nan(value)):
        return "unknown"
    ends = [or_nan(low), or_nan(high)]
    interval = f" [{', '.join(f'{end:z.{digits}f}' for end in ends)}]" if all(map(math.isfinite, ends)) else ""
    return f"{or_nan(value):z.{digits}f}{interval}"
