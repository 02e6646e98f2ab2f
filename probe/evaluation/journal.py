"""Finished cells of a long run, kept on disk, so that it takes up where it was interrupted."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mesa.fingerprints import IDENTITY

Cell = tuple[str | int, ...]
"""What a cell is: names and numbers, e.g. task, method and length."""
_BEGIN = '{"settings": '
_SEAL, _FORCED = "crc32", "forced"
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
    except ValueError:
        return None


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
        if path.exists() and path.stat().st_size:
            self._read(json.loads(json.dumps(settings)))

    def add(self, cell: Cell, row: Mapping[str, Any]) -> None:
        """Keeps what a cell gave."""
        if not self.rows:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write("w", {"settings": self.settings, _SEAL: True})
        self._add_sealed({"cell": cell, **row})
        self.rows[cell] = dict(row)

    @property
    def told(self) -> dict[str, Any]:
        """What a summary tells of it: `forced`, where anything was."""
        return {_FORCED: self.forced} if self.forced else {}

    def _read(self, settings: Mapping[str, Any]) -> None:
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if not whole and _BEGIN.encode().startswith(text[: len(_BEGIN)]):
            return
        first, *lines = whole.split(b"\n")
        try:
            header = json.loads(first)
            stored, has_seals = dict(header["settings"]), header.get(_SEAL, False)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.path} is no journal of a run; use --overwrite or another --out") from error
        self._keep([_row(line) for line in lines[:-1]], has_seals)
        for changed in self.forced:
            stored |= changed
        compared = {*settings, *stored} - ({*_LATER} - {*stored})
        differing = sorted(key for key in compared if settings.get(key) != stored.get(key))
        refused = [key for key in differing if not (self.force and key in IDENTITY)]
        if refused and self.rows:
            raise FileExistsError(
                f"{self.path} holds a run with another {', '.join(refused)}; use --overwrite or another --out"
                f"{'; --force goes on and records it' if {*refused} <= {*IDENTITY} else ''}"
            )
        if whole != text:
            os.truncate(self.path, len(whole))
        if differing and self.rows:
            self._add_sealed({_FORCED: {key: settings[key] for key in differing}})
            self.forced.append({key: settings[key] for key in differing})

    def _keep(self, rows: Sequence[Any], has_seals: bool) -> None:
        for number, row in enumerate(rows, 2):
            seal = row.pop(_SEAL, None) if isinstance(row, dict) else None
            damaged = not isinstance(row, dict) or not (isinstance(row.get("cell"), list) or _FORCED in row)
            if damaged or (has_seals and seal != _seal(row)):
                raise ValueError(f"{self.path}, line {number} is damaged; remove it, use --overwrite or another --out")
            if _FORCED in row:
                self.forced.append(row[_FORCED])
            else:
                self.rows[tuple(row.pop("cell"))] = row

    def _add_sealed(self, row: Mapping[str, Any]) -> None:
        self._write("a", {**row, _SEAL: _seal(row)})

    def _write(self, mode: str, row: Mapping[str, Any]) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
