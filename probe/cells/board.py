"""What is under way and what was lost, told in a file beside a journal, for whoever asks how far a run is."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.cells.cell import Cell
from probe.files import write

BOARD = ".mesa-lens.cells"
"""The file's name. It is there while cells are run, and after that as long as some are lost."""
Told = tuple[str, tuple[str | int, ...]]
"""A cell's kind and key."""


@dataclass(frozen=True)
class Posted:
    """How many rows of the journal cells give: those under way, and those that no worker could finish."""

    running: Mapping[Told, int] = field(default_factory=dict)
    lost: Mapping[Told, int] = field(default_factory=dict)


class Board:
    """The file of a folder that is there; where it is not, or cannot be written, nothing is told.

    kinds: of the cells that are run now, all of whose lost ones are tried again; what else was lost stays told.
    """

    def __init__(self, folder: Path | None, kinds: Collection[str]) -> None:
        self._path = None if folder is None else folder / BOARD
        self._running: dict[Told, int] = {}
        known = {} if folder is None else posted(folder).lost
        self._lost = {told: rows for told, rows in known.items() if told[0] not in kinds}

    def began(self, cell: Cell) -> None:
        """Somebody is at a cell."""
        self._running[cell.kind, cell.key] = _rows(cell)
        self._post()

    def ended(self, cell: Cell, *, lost: bool = False) -> None:
        """Nobody is at a cell any more."""
        told = cell.kind, cell.key
        if self._running.pop(told, None) is None and not lost:
            return
        if lost:
            self._lost[told] = _rows(cell)
        self._post()

    def close(self) -> None:
        """No cell is under way."""
        self._running.clear()
        self._post()

    def _post(self) -> None:
        if self._path is None or not self._path.parent.is_dir():
            return
        content = {
            name: [[kind, list(key), count] for (kind, key), count in told.items()]
            for name, told in (("running", self._running), ("lost", self._lost))
        }
        with suppress(OSError):
            if self._running or self._lost:
                write(self._path, json.dumps(content).encode())
            else:
                self._path.unlink(missing_ok=True)


def _rows(cell: Cell) -> int:
    return max(1, len(cell.given))


def posted(folder: Path) -> Posted:
    """What the folder's board says; nothing where there is none, or one that cannot be read."""
    try:
        said = json.loads((folder / BOARD).read_text(encoding="utf-8"))
        return Posted(*(_told(said[name]) for name in ("running", "lost")))
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return Posted()


def _told(rows: Any) -> dict[Told, int]:
    return {(str(kind), tuple(key)): int(count) for kind, key, count in rows}
