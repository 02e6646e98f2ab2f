"""Finished cells of a long run, kept on disk, so that it takes up where it was interrupted."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mesa.fingerprints import IDENTITY
from probe.evaluation.rows import problem
from probe.files import difference

Cell = tuple[str | int, ...]
"""What a cell is: names and numbers, e.g. task, method and length."""
_BEGIN = '{"settings": '
_SEAL, _FORCED, _ASKED = "crc32", "forced", "cells"
_LATER = ("config", "tokenizer", "versions")  # settings that older journals lack


def has_cells(path: Path) -> bool:
    """Whether a file is a journal with a finished cell."""
    with path.open("rb") as file:
        header, row = file.readline(), file.readline()
    return header.startswith(_BEGIN.encode()) and row.endswith(b"\n")


def _seal(row: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(row).encode()):08x}"


def _row(line: bytes) -> Any:
    """What a line holds; None for one that cannot be read."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _wrong(row: dict[str, Any]) -> str:
    """What is wrong with a sealed line; empty for none."""
    if _FORCED in row:
        return "" if isinstance(row[_FORCED], dict) else f"{_FORCED!r} holds no settings"
    if "cell" not in row:
        return "" if isinstance(row.get(_ASKED), int) else f"it holds neither 'cell' nor {_ASKED!r}"
    return problem(row["cell"], row)


@dataclass
class Lines:
    """What a journal's file holds. settings: None for one cut short in its first line, which binds to nothing.

    asked: cells in all, as the last run told; older journals do not say. whole: bytes of its whole lines. damaged: the
    numbers of lines that cannot be trusted, which are left out of `rows`, and why.
    """

    settings: dict[str, Any] | None
    rows: dict[Cell, dict[str, Any]] = field(default_factory=dict)
    forced: list[dict[str, Any]] = field(default_factory=list)
    asked: int | None = None
    whole: int = 0
    damaged: dict[int, str] = field(default_factory=dict)


def read_lines(path: Path) -> Lines:
    """What lies in a journal's file, which stays as it is. Raises ValueError for a file that is no journal."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if not whole and _BEGIN.encode().startswith(text[: len(_BEGIN)]):
        return Lines(None)
    first, *lines = whole.split(b"\n")
    try:
        header = json.loads(first)
        asked = header.get(_ASKED)
        found = Lines(dict(header["settings"]), asked=asked if isinstance(asked, int) else None, whole=len(whole))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is no journal of a run; use --overwrite or another --out") from error
    if header.get(_SEAL) is not True:
        raise ValueError(f"{path}, line 1 is damaged: it lacks {_SEAL!r}; use --overwrite or another --out")
    for number, line in enumerate(lines[:-1], 2):
        row = _row(line)
        seal = row.pop(_SEAL, None) if isinstance(row, dict) else None
        if wrong := "it is not what was written" if seal is None or seal != _seal(row) else _wrong(row):
            found.damaged[number] = wrong
        elif _FORCED in row:
            found.forced.append(row[_FORCED])
        elif "cell" in row:
            found.rows[tuple(row.pop("cell"))] = row
        else:
            found.asked = row[_ASKED]
    return found


def another(path: Path, keys: Sequence[str], there: Mapping[str, Any], now: Mapping[str, Any]) -> FileExistsError:
    """The refusal of a file whose run has other settings, `there`, by these keys than the one that goes on."""
    differing = ", ".join(difference(key, there.get(key), now.get(key)) for key in keys)
    forced = "; --force goes on and records it" if {*keys} <= {*IDENTITY} else ""
    return FileExistsError(f"{path} holds a run with another {differing}; use --overwrite or another --out{forced}")


class Journal:
    """Finished cells in a file of one JSON line each; the first line holds the run's settings.

    It appears with the first cell. Every line after it ends with a check sum of its own. A line that an interrupt cut
    short is dropped, also the first; a journal without
    cells binds to nothing. Raises FileExistsError, naming what differs, for the journal of a run with other settings,
    and ValueError for a file that is no journal or has a damaged row. With `force` what `IDENTITY` names may differ;
    the file and `forced` then tell of it.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, force: bool = False) -> None:
        self.path, self.settings, self.force = path, dict(settings), force
        self.forced: list[dict[str, Any]] = []
        self.rows: dict[Cell, dict[str, Any]] = {}
        self._asked: int | None = None
        self._told: int | None = None
        if path.exists() and path.stat().st_size:
            self._read(json.loads(json.dumps(settings)))

    def expect(self, cells: int) -> None:
        """Has the file tell, with the next cell, how many there will be in all."""
        self._asked = cells

    def add(self, cell: Cell, row: Mapping[str, Any]) -> None:
        """Keeps what a cell gave. Raises RuntimeError for what could not be read again: no number, or a key missing."""
        if wrong := problem(cell, json.loads(json.dumps(row))):
            raise RuntimeError(
                f"what {' '.join(map(str, cell))} gave is not kept, {wrong}; try a wider --dtype (float32, float64)"
            )
        asked = {} if self._asked is None else {_ASKED: self._asked}
        if not self.rows:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write("w", {"settings": self.settings, _SEAL: True, **asked})
        elif self._told != (self._asked or self._told):
            self._add_sealed(asked)
        self._told = self._asked or self._told
        self._add_sealed({"cell": cell, **row})
        self.rows[cell] = dict(row)

    @property
    def told(self) -> dict[str, Any]:
        """What a summary tells of it: `forced`, where anything was."""
        return {_FORCED: self.forced} if self.forced else {}

    def _read(self, settings: Mapping[str, Any]) -> None:
        found = read_lines(self.path)
        if found.settings is None:
            return
        if found.damaged:
            number, wrong = next(iter(found.damaged.items()))
            raise ValueError(
                f"{self.path}, line {number} is damaged: {wrong}; remove it, use --overwrite or another --out"
            )
        self.rows, self.forced, self._told = found.rows, found.forced, found.asked
        stored = found.settings
        for changed in self.forced:
            stored |= changed
        compared = {*settings, *stored} - ({*_LATER} - {*stored})
        differing = sorted(key for key in compared if settings.get(key) != stored.get(key))
        refused = [key for key in differing if not (self.force and key in IDENTITY)]
        if refused and self.rows:
            raise another(self.path, refused, stored, settings)
        if found.whole < self.path.stat().st_size:
            os.truncate(self.path, found.whole)
        if differing and self.rows:
            self._add_sealed({_FORCED: {key: settings[key] for key in differing}})
            self.forced.append({key: settings[key] for key in differing})

    def _add_sealed(self, row: Mapping[str, Any]) -> None:
        self._write("a", {**row, _SEAL: _seal(row)})

    def _write(self, mode: str, row: Mapping[str, Any]) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
