"""A run's status: what is done, running, failed and left, who holds it, and how long it will take."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from probe.ownership import LOCK, held
from probe.status.parts import Part, parts_of
from probe.store.reader import partial_path, store_of
from probe.store.summary import REPORTED

SECTIONS = "sections.json"
"""What a paper run writes as it begins: how many cells each of its sections has."""


@dataclass(frozen=True)
class Status:
    """state: running, finished or unfinished. holder: what the process that writes, or died, says of itself.

    seconds: by part, what is left, from the pace of what was done; None: unknown.
    """

    path: Path
    state: str
    parts: tuple[Part, ...]
    holder: dict[str, Any]
    seconds: tuple[float | None, ...]
    lacking: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """One line a part, ready for JSON."""
        return [
            {
                "command": part.command,
                **({"section": part.section} if part.section else {}),
                "what": part.what,
                "done": part.done,
                "running": part.running,
                "failed": part.failed,
                "left": part.left,
                "of": part.cells,
                "seconds_left": None if seconds is None else round(seconds, 1),
                **({"damaged_lines": list(part.damaged)} if part.damaged else {}),
            }
            for part, seconds in zip(self.parts, self.seconds, strict=True)
        ]

    def told(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        rows, known = self.rows(), {key: value for key, value in self.holder.items() if key != "found"}
        whole = {
            key: _sum(row[key] for row in rows) for key in ("done", "running", "failed", "left", "of", "seconds_left")
        }
        return {"run": str(self.path), "state": self.state, "holder": known or None, **whole, "parts": rows}


def status_of(folder: Path) -> Status:
    """The status of the run in a folder, of any command. Raises FileNotFoundError and ValueError for what is no run."""
    if not folder.exists():
        raise FileNotFoundError(f"{folder} is not there; name the folder that a run writes to (its --out)")
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; name the folder that a run writes to (its --out)")
    running, holder = held(folder)
    try:
        found = [(_now(part, place), _left(part, place)) for part, place in _parts(folder)]
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} is damaged ({error!r}): its journal is not as a command writes it") from error
    if not found and not running:
        raise ValueError(
            f"{folder} holds no run: no journal, no store; name the folder that a run writes to (its --out)"
        )
    parts, seconds = tuple(part for part, _ in found), tuple(left for _, left in found)
    lacking = _lacking(folder)
    whole = all(part.left == 0 and not part.damaged for part in parts) and not lacking
    state = "running" if running else "finished" if whole else "unfinished"
    return Status(folder, state, parts, holder, seconds, lacking)


def text(status: Status) -> str:
    """The status in words, a line a part."""
    lines = [f"{status.path}: {status.state}{_held(status)}"]
    for row in status.rows():
        name = f"{row['command']}{', ' + row['section'] if 'section' in row else ''}"
        of = "unknown" if row["of"] is None else row["of"]
        failed = f", {row['failed']} failed" if row["failed"] else ""
        now = f", {row['running']} running" if row["running"] else ""
        left = f", {row['left']} left" if row["left"] else ""
        time = f", about {spoken(row['seconds_left'])}" if row["left"] and row["seconds_left"] is not None else ""
        damaged = f"; damaged: line {', '.join(map(str, row['damaged_lines']))}" if "damaged_lines" in row else ""
        lines.append(f"  {name}: {row['done']} of {of} {row['what']} done{now}{failed}{left}{time}{damaged}")
    if not status.parts:
        lines.append("  nothing is done yet")
    return "\n".join([*lines, *([f"  {status.lacking}"] if status.lacking else [])])


def _now(part: Part, folder: Path) -> Part:
    """The part; nothing of it is under way where nobody holds the folder."""
    return part if held(folder)[0] else replace(part, running=0)


def _parts(folder: Path) -> Iterator[tuple[Part, Path]]:
    """The parts in the folder and in the sections below it, each with the folder that its lock lies in."""
    own = [(part, folder) for part in parts_of(folder)]
    yield from own
    planned = _planned(folder)
    inner = {each.name: each for each in sorted(folder.iterdir()) if each.is_dir() and not own}
    for name in [*planned, *(name for name in inner if name not in planned)] if planned or _is_paper(folder) else ():
        found = list(parts_of(inner[name])) if name in inner else []
        if not found and planned.get(name):
            yield Part("paper", "cells", 0, planned[name], section=name), folder
        yield from ((replace(part, command="paper", section=name), inner[name]) for part in found)


def _planned(folder: Path) -> dict[str, int]:
    """How many cells each section of a paper run has."""
    try:
        found = json.loads((folder / SECTIONS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_paper(folder: Path) -> bool:
    return (folder / "results.json").exists()


def _lacking(folder: Path) -> str:
    """What a run that has all its cells still has to write."""
    store = store_of(folder)
    if partial_path(store).exists():
        return "the store is not finished"
    if store.exists() and not all((folder / name).exists() for name in REPORTED):
        return "the report is not written; `mesa-lens report` writes it"
    return ""


def _left(part: Part, folder: Path) -> float | None:
    """Seconds that what is left takes: by the pace since the holder began, else by what cells' own passes took."""
    if part.left is None:
        return None
    running, holder = held(folder)
    if running and part.file is not None and part.file.exists() and (fresh := _fresh(part.file, folder, holder)):
        try:
            since = datetime.fromisoformat(holder["since"])
        except (KeyError, TypeError, ValueError):
            return None
        return part.left * (datetime.now(UTC) - since).total_seconds() / fresh
    return None if part.seconds is None else part.left * part.seconds


def _fresh(file: Path, folder: Path, holder: dict[str, Any]) -> int:
    """Lines that the holder has added to a journal, beside the first."""
    content = file.read_bytes()
    size, total = holder.get("found", {}).get(file.relative_to(folder).as_posix(), (0, 0))
    known = size if size and zlib.crc32(content[:size]) == total else 0
    return content[known:].count(b"\n") - (not known)


def _held(status: Status) -> str:
    by = status.holder
    if not by:
        return "" if status.state != "running" else ", another process holds it"
    who = f"process {by.get('pid')} on {by.get('host')} since {by.get('since')} ({by.get('command')})"
    return f", {who}" if status.state == "running" else f"; {who} ended and left its {LOCK}"


def spoken(seconds: float) -> str:
    """A time as it is said, such as '4 min'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _sum(values: Any) -> Any:
    """The sum; None where a part does not know."""
    known = list(values)
    return None if None in known else sum(known)
