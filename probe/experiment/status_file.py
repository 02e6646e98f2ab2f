"""The file beside a journal that lists the tasks under way and those lost, for `mesa-lens status`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.experiment.task import Key, Task
from probe.files import write

STATUS_FILE = ".mesa-lens.tasks"
"""Its name. The file exists while tasks run, and after that as long as some are lost."""
Counts = Mapping[tuple[str, Key], int]
"""Rows of the journal by a task's kind and key."""


@dataclass(frozen=True)
class TaskStatus:
    """Tasks under way, and those that no worker could finish."""

    running: Counts = field(default_factory=dict)
    lost: Counts = field(default_factory=dict)


class StatusFile:
    """Writes the file of a folder; None, a missing or a read-only folder: writes nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / STATUS_FILE
        self._running: dict[tuple[str, Key], int] = {}
        self._lost = {} if folder is None else dict(read_status(folder).lost)

    def expect(self, tasks: Iterable[Task]) -> None:
        """Forgets what an earlier run lost of these kinds: it is tried again."""
        kinds = {task.kind for task in tasks}
        self._lost = {name: count for name, count in self._lost.items() if name[0] not in kinds}

    def began(self, task: Task) -> None:
        """Lists a task as running."""
        self._running[task.kind, task.key] = _rows(task)
        self._write()

    def ended(self, task: Task, *, lost: bool = False) -> None:
        """Takes a task off the list; lists it as lost, if it is."""
        name = task.kind, task.key
        if self._running.pop(name, None) is None and not lost:
            return
        if lost:
            self._lost[name] = _rows(task)
        self._write()

    def close(self) -> None:
        """Nothing is running any more."""
        self._running.clear()
        self._write()

    def _write(self) -> None:
        if self._path is None or not self._path.parent.is_dir():
            return
        content = {
            name: [[kind, list(key), count] for (kind, key), count in counts.items()]
            for name, counts in (("running", self._running), ("lost", self._lost))
        }
        with suppress(OSError):
            if self._running or self._lost:
                write(self._path, json.dumps(content).encode())
            else:
                self._path.unlink(missing_ok=True)


def _rows(task: Task) -> int:
    return max(1, len(task.inputs))


def read_status(folder: Path) -> TaskStatus:
    """What the folder's file lists; nothing where it is missing or unreadable."""
    try:
        content = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
        return TaskStatus(*(_counts(content[name]) for name in ("running", "lost")))
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return TaskStatus()


def _counts(rows: Any) -> Counts:
    return {(str(kind), tuple(key)): int(count) for kind, key, count in rows}
