"""The journal of an experiment: a row a task, appended as it is finished, and what it records of the request."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from mesa.errors import Failed, Occupied, Refused
from mesa.methods import Method
from probe.experiment.pool import Key
from probe.files import JsonObject, checksum, difference
from probe.options import options
from probe.run_folder import CHECKSUM, is_complete, same_model, same_text

REQUEST = "request"
"""The key of what `recorded` gives, in a journal and in a store's attributes."""
NEVER_RECORDED = "trust_remote_code"
"""The option that no file gives: a file does not allow code to run."""


def recorded(*parts: Any) -> dict[str, list[str]]:
    """The options of a request that are not at their defaults: by key the values as they are typed; a flag has none."""
    record: dict[str, list[str]] = {}
    for part in parts:
        for item in options(type(part)):
            value = item.of(part)
            if item.key != NEVER_RECORDED and value not in (None, (), item.default):
                record[item.key] = [] if item.is_flag else [*value] if item.repeated else [item.written(value)]
    return record


JournalRows = Mapping[Key, JsonObject]
"""What a journal holds, by the key of the task."""
_BEGIN = '{"settings": '
_COLUMNS = "columns"
_MEASURED = ("scores", "nll", "score")
"""Values of a row that must be finite; others may have NaN, such as an entropy over no tokens."""
_EXPECTED = "cells"


@dataclass
class JournalFile:
    """What a journal's file holds. settings: None for a file cut short in its first line.

    expected: rows of the finished run, and request: what its command was asked last, see `resume`; None: unknown.
    intact: bytes of its full lines. damaged: numbers of lines that are not what was written; `rows` leaves these out.
    """

    settings: JsonObject | None
    rows: dict[Key, JsonObject] = field(default_factory=dict)
    expected: int | None = None
    request: Any = None
    intact: int = 0
    damaged: list[int] = field(default_factory=list)


def read_journal(path: Path) -> JournalFile:
    """What a journal's file holds; changes nothing. Raises Refused for a file that is not a journal."""
    text = path.read_bytes()
    full = text[: text.rfind(b"\n") + 1]
    if not full and _BEGIN.encode().startswith(text[: len(_BEGIN)]):
        return JournalFile(None)
    first, *lines = full.split(b"\n")
    try:
        header = json.loads(first)
        count = header.get(_EXPECTED)
        journal = JournalFile(
            dict(header["settings"]),
            expected=count if isinstance(count, int) else None,
            request=header.get(REQUEST),
            intact=len(full),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"{path} is not a journal of a run; use --overwrite or another --out") from error
    if not is_complete(header):
        raise Refused(f"{path}, line 1 is damaged: it is not what was written; use --overwrite or another --out")
    for number, line in enumerate(lines[:-1], 2):
        row: Any = None
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
        written = row.pop(CHECKSUM, None) if isinstance(row, dict) else None
        if written is None or written != checksum(row):
            journal.damaged.append(number)
        elif isinstance(key := row.get("cell"), list) and key and all(isinstance(part, int | str) for part in key):
            journal.rows[tuple(row.pop("cell"))] = row
        elif row.keys() & {_EXPECTED, REQUEST}:
            journal.expected, journal.request = row.get(_EXPECTED), row.get(REQUEST)
        else:
            journal.damaged.append(number)
    return journal


def known_rows(path: Path) -> JournalRows:
    """The rows of a journal; none where it is not there, or damaged."""
    try:
        return read_journal(path).rows
    except (Refused, OSError):
        return {}


def bad_row(path: Path, key: Key, problem: str) -> Refused:
    """The error for a row that is sealed and yet not what a command writes."""
    return Refused(f"{path}: the row of {list(key)} {problem}; remove its line, use --overwrite or another --out")


class Journal:
    """Rows of finished tasks in a file of JSON lines; the first line holds the run's settings.

    The file appears with the first row. Every line ends with its checksum. A line that an interrupt cut short is
    dropped; a journal without rows binds to nothing. Raises FileExistsError, naming what differs, for the journal of a
    run with other settings, or with other parameters of a method; Refused for a file that is not a journal, has a
    damaged line, or a row without a method's config or without any of the values `needed`. method_of: the method of a
    row by its key, whose config is stored with the row; None: of none that is known. request: what the command was
    asked, see `resume`; written before the next row where it changed. columns: the NamedTuple of the keys, whose fields
    the first line names; None: keys are plain tuples.
    """

    def __init__(
        self,
        path: Path,
        settings: JsonObject,
        method_of: Callable[[Key], Method | None] = lambda key: None,
        needed: Sequence[str] = (),
        request: JsonObject | None = None,
        columns: Any = None,
    ) -> None:
        self.path, self.settings, self.needed, self._method_of = path, dict(settings), needed, method_of
        self.columns = columns
        self.rows: dict[Key, JsonObject] = {}
        self._about: JsonObject = {} if request is None else {REQUEST: request}
        self._written: JsonObject = {}
        self._cut: int | None = None  # where a line that was cut short begins
        if path.exists() and path.stat().st_size:
            self._read()

    def expect(self, rows: int) -> None:
        """How many rows the finished run has; written with the next row."""
        self._about[_EXPECTED] = rows

    def add(self, key: Key, row: JsonObject) -> None:
        """Stores a task's row. Raises RuntimeError for a measured value that is not finite."""
        row = {**self._config(key), **row}
        if wrong := [name for name in _MEASURED if not _is_finite(row.get(name))]:
            raise Failed(
                f"{wrong[0]!r} of {' '.join(map(str, key))} is not finite; try a wider --dtype (float32, float64)"
            )
        if not self.rows:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._written |= self._about
            columns = {_COLUMNS: self.columns._fields} if self.columns else {}
            self._write("w", {"settings": self.settings, **columns, **self._written})
        self.note()
        self._write("a", {"cell": key, **row})
        self.rows[self.columns(*key) if self.columns else key] = row

    def note(self) -> None:
        """Writes what is expected and was asked, where there are rows and it changed."""
        about = self._written | self._about
        if self.rows and about != self._written:
            self._write("a", about)
            self._written = about

    def _config(self, key: Key) -> JsonObject:
        """The config of a row's method, as JSON gives it back."""
        method = self._method_of(key)
        return {"config": json.loads(json.dumps(method.describe()))} if method else {}

    def _read(self) -> None:
        file = read_journal(self.path)
        if file.settings is None:
            return
        if file.damaged:
            raise Refused(
                f"{self.path}, line {file.damaged[0]} is damaged: it is not what was written; remove it, use "
                "--overwrite or another --out"
            )
        kinds = tuple(get_type_hints(self.columns).values()) if self.columns else ()
        for key, row in file.rows.items():
            if kinds and (len(key) != len(kinds) or not all(map(isinstance, key, kinds))):
                raise bad_row(self.path, key, f"is of no {', '.join(self.columns._fields)}")
            if self.needed and (problem := _problem(row, self.needed)):
                raise bad_row(self.path, key, problem)
        stored, now = file.settings, json.loads(json.dumps(self.settings))
        keys = [key for key in sorted({*stored, *now}) if file.rows and stored.get(key) != now.get(key)]
        keys = [key for key in keys if key != "model" or not same_model(stored, now)]  # its folder may be moved
        keys = [key for key in keys if key != "text" or not same_text(stored, now)]  # and so may a text
        if keys:
            differing = ", ".join(difference(key, stored.get(key), now.get(key)) for key in keys)
            raise Occupied(f"{self.path} holds a run with another {differing}; use --overwrite or another --out")
        for key, row in file.rows.items():
            if (config := self._config(key)) and config["config"] != row.get("config"):
                name = config["config"]["name"]
                raise Occupied(f"{self.path} holds {name} with other parameters; use --overwrite or another --out")
        self.rows = {self.columns(*key) if kinds else key: row for key, row in file.rows.items()}
        about = {_EXPECTED: file.expected, REQUEST: file.request}
        self._written = {key: value for key, value in about.items() if value is not None}
        if file.intact < self.path.stat().st_size:
            self._cut = file.intact  # dropped with the next row: who only reads changes nothing

    def _write(self, mode: str, row: JsonObject) -> None:
        if self._cut is not None:
            os.truncate(self.path, self._cut)
            self._cut = None
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps({**row, CHECKSUM: checksum(row)}) + "\n")


def _problem(row: JsonObject, needed: Sequence[str]) -> str:
    """What is wrong with a row that must tell its method and hold one of the values `needed`; empty for nothing."""
    if not isinstance(row.get("config"), dict) or "name" not in row["config"]:
        return "has no 'config' of a method"
    if not any(row.get(name) is not None for name in needed):
        return f"holds no {' or '.join(map(repr, needed))}"
    nll = row.get("nll", [])
    numbers = isinstance(nll, list) and all(isinstance(value, int | float) for value in nll)
    return "" if numbers and _is_finite(nll) else "has an 'nll' that is not a list of numbers"


def _is_finite(value: Any) -> bool:
    """Whether all numbers in a value, of any depth, are finite."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
