"""Finished tasks of a run, a row each on disk, so that an interrupted run continues where it was."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mesa.fingerprints import IDENTITY
from probe.experiment.task import Key
from probe.files import difference

Row = Mapping[str, Any]
Rows = Mapping[Key, dict[str, Any]]
"""What a journal holds, by the key of the task."""
_BEGIN = '{"settings": '
_MEASURED = ("scores", "nll", "score")
"""Values of a row that must be finite; others may have NaN, such as an entropy over no tokens."""
_CHECKSUM, _FORCED, _EXPECTED = "crc32", "forced", "cells"


@dataclass
class JournalFile:
    """What a journal's file holds. settings: None for a file cut short in its first line.

    expected: rows of the finished run; None: unknown. whole: bytes of its whole lines. damaged: by the
    number of a line that cannot be trusted, why; `rows` leaves these out.
    """

    settings: dict[str, Any] | None
    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    forced: list[dict[str, Any]] = field(default_factory=list)
    expected: int | None = None
    whole: int = 0
    damaged: dict[int, str] = field(default_factory=dict)


def has_rows(path: Path) -> bool:
    """Whether a file is a journal with a row."""
    with path.open("rb") as file:
        header, row = file.readline(), file.readline()
    return header.startswith(_BEGIN.encode()) and row.endswith(b"\n")


def read_journal(path: Path) -> JournalFile:
    """What a journal's file holds; changes nothing. Raises ValueError for a file that is no journal."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if not whole and _BEGIN.encode().startswith(text[: len(_BEGIN)]):
        return JournalFile(None)
    first, *lines = whole.split(b"\n")
    try:
        header = json.loads(first)
        count = header.get(_EXPECTED)
        journal = JournalFile(
            dict(header["settings"]), expected=count if isinstance(count, int) else None, whole=len(whole)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is no journal of a run; use --overwrite or another --out") from error
    if header.get(_CHECKSUM) is not True:
        raise ValueError(f"{path}, line 1 is damaged: it lacks {_CHECKSUM!r}; use --overwrite or another --out")
    for number, line in enumerate(lines[:-1], 2):
        row = _parsed(line)
        checksum = row.pop(_CHECKSUM, None) if isinstance(row, dict) else None
        if checksum is None or checksum != _checksum(row):
            journal.damaged[number] = "it is not what was written"
        elif problem := _line_problem(row):
            journal.damaged[number] = problem
        elif _FORCED in row:
            journal.forced.append(row[_FORCED])
        elif "cell" in row:
            journal.rows[tuple(row.pop("cell"))] = row
        else:
            journal.expected = row[_EXPECTED]
    return journal


def other_run(path: Path, keys: Sequence[str], stored: Mapping[str, Any], now: Mapping[str, Any]) -> FileExistsError:
    """The error for a file of a run whose `stored` settings differ by these keys."""
    differing = ", ".join(difference(key, stored.get(key), now.get(key)) for key in keys)
    forced = "; --force continues and records it" if {*keys} <= {*IDENTITY} else ""
    return FileExistsError(f"{path} holds a run with another {differing}; use --overwrite or another --out{forced}")


class Journal:
    """Rows of finished tasks in a file of JSON lines; the first line holds the run's settings.

    The file appears with the first row. Every later line ends with its checksum. A line that an interrupt cut short is
    dropped; a journal without rows binds to nothing. Raises FileExistsError, naming what differs, for the journal of a
    run with other settings, and ValueError for a file that is no journal or has a damaged line. With `force` what
    `IDENTITY` names may differ; the file and `forced` record it.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, force: bool = False) -> None:
        self.path, self.settings, self.force = path, dict(settings), force
        self.forced: list[dict[str, Any]] = []
        self.rows: dict[Key, dict[str, Any]] = {}
        self._expected: int | None = None
        self._written: int | None = None
        if path.exists() and path.stat().st_size:
            self._read(json.loads(json.dumps(settings)))

    def expect(self, rows: int) -> None:
        """How many rows the finished run has; written with the next row."""
        self._expected = rows

    def add(self, key: Key, row: Row) -> None:
        """Stores a task's row. Raises RuntimeError for a measured value that is not finite."""
        if wrong := [name for name in _MEASURED if not _is_finite(row.get(name))]:
            raise RuntimeError(
                f"{wrong[0]!r} of {' '.join(map(str, key))} is not finite; try a wider --dtype (float32, float64)"
            )
        expected = {} if self._expected is None else {_EXPECTED: self._expected}
        if not self.rows:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write("w", {"settings": self.settings, _CHECKSUM: True, **expected})
        elif self._written != (self._expected or self._written):
            self._append(expected)
        self._written = self._expected or self._written
        self._append({"cell": key, **row})
        self.rows[key] = dict(row)

    @property
    def provenance(self) -> dict[str, Any]:
        """What a summary records of the journal: `forced`, where anything was."""
        return {_FORCED: self.forced} if self.forced else {}

    def _read(self, settings: Mapping[str, Any]) -> None:
        file = read_journal(self.path)
        if file.settings is None:
            return
        if file.damaged:
            number, problem = next(iter(file.damaged.items()))
            raise ValueError(
                f"{self.path}, line {number} is damaged: {problem}; remove it, use --overwrite or another --out"
            )
        self.rows, self.forced, self._written = file.rows, file.forced, file.expected
        stored = file.settings
        for changed in self.forced:
            stored |= changed
        differing = sorted(key for key in {*settings, *stored} if settings.get(key) != stored.get(key))
        refused = [key for key in differing if not (self.force and key in IDENTITY)]
        if refused and self.rows:
            raise other_run(self.path, refused, stored, settings)
        if file.whole < self.path.stat().st_size:
            os.truncate(self.path, file.whole)
        if differing and self.rows:
            self._append({_FORCED: {key: settings[key] for key in differing}})
            self.forced.append({key: settings[key] for key in differing})

    def _append(self, row: Row) -> None:
        self._write("a", {**row, _CHECKSUM: _checksum(row)})

    def _write(self, mode: str, row: Row) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _line_problem(row: dict[str, Any]) -> str:
    """What is wrong with a line whose checksum holds; empty for nothing."""
    if _FORCED in row:
        return "" if isinstance(row[_FORCED], dict) else f"{_FORCED!r} holds no settings"
    if "cell" not in row:
        return "" if isinstance(row.get(_EXPECTED), int) else f"it holds neither 'cell' nor {_EXPECTED!r}"
    key = row["cell"]
    is_key = isinstance(key, list) and bool(key) and all(isinstance(part, int | str) for part in key)
    return "" if is_key else f"its cell {key!r} is no list of names and numbers"


def _is_finite(value: Any) -> bool:
    """Whether all numbers in a value, of any depth, are finite."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _checksum(row: Row) -> str:
    return f"{zlib.crc32(json.dumps(row).encode()):08x}"


def _parsed(line: bytes) -> Any:
    """What a line holds; None for one that cannot be read."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
