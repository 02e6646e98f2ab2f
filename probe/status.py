"""How far a run of any command is, from its journals, store and lock."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import zarr

from probe.experiment.journal import JournalFile, has_rows, read_journal
from probe.experiment.lock import LOCK, lock_state
from probe.experiment.status_file import read_status
from probe.store.place import zarr_place
from probe.store.reader import is_half, partial_path, store_of, stored_array, whole_passes
from probe.store.summary import REPORTED

CELLS, HARNESS, MEASURED = "cells.jsonl", "harness.jsonl", "measured.jsonl"
_EITHER = ("nll", "passkey")  # tasks that a probe run measures failure by
SECTIONS = "sections.json"
"""What a paper run writes as it begins: how many cells each of its sections has."""
_KINDS = {
    ("eval", "cells"): "measure",
    ("eval", "lm-eval tasks"): "harness",
    ("probe", "measured cells"): "measure",
    ("probe", "captured passes"): "capture",
    ("anatomy", "cells"): "look",
    ("anatomy", "texts"): "vectors",
}
"""The kind of cells that a part counts; of a locate run all."""


@dataclass(frozen=True)
class Part:
    """Work of one kind. cells: how many in all, None where the folder does not tell. failed: left out for good.

    running: of those that are left. file: the journal they are kept in; seconds: what one of them took on the mean,
    where that was measured.
    """

    command: str
    what: str
    done: int
    cells: int | None
    failed: int = 0
    file: Path | None = None
    seconds: float | None = None
    section: str = ""
    damaged: tuple[int, ...] = ()
    running: int = 0

    @property
    def left(self) -> int | None:
        """What is still to be done, or under way."""
        return None if self.cells is None else max(0, self.cells - self.done - self.failed)


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
    running, holder = lock_state(folder)
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
    return part if lock_state(folder)[0] else replace(part, running=0)


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
    running, holder = lock_state(folder)
    if running and part.file is not None and part.file.exists() and (fresh := _fresh(part.file, folder, holder)):
        try:
            since = datetime.fromisoformat(holder["since"])
        except (KeyError, TypeError, ValueError):
            return None
        return part.left * (datetime.now(UTC) - since).total_seconds() / fresh
    return None if part.seconds is None else part.left * part.seconds


def _fresh(file: Path, folder: Path, holder: dict[str, Any]) -> int:
    """JournalFile that the holder has added to a journal, beside the first."""
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


def parts_of(folder: Path) -> Iterator[Part]:
    """The parts of a run that lie in the folder itself. Raises ValueError, naming the file, for what cannot be read.

    With what was told last of cells under way, and of those that no worker could finish.
    """
    for part in _kept(folder):
        inner = folder / part.command if part.command in ("locate", "anatomy") else folder
        said, kind = read_status(inner), _KINDS.get((part.command, part.what))
        running, lost = (
            sum(rows for (each, _), rows in told.items() if kind in (None, each)) for told in (said.running, said.lost)
        )
        yield replace(part, running=running, failed=part.failed or lost)


def _kept(folder: Path) -> Iterator[Part]:
    """The parts, as journals and stores hold them."""
    if (path := folder / CELLS).exists():
        lines = read_journal(path)
        yield _evaluation(path, lines)
    if (path := folder / HARNESS).exists():
        lines = read_journal(path)
        yield _part("eval", "lm-eval tasks", path, lines, _asked(lines, path, folder / "harness.json"))
    yield from _probe(folder)
    if (path := folder / "locate" / CELLS).exists():
        yield _summed("locate", path)
    yield from _anatomy(folder / "anatomy")


def _part(command: str, what: str, path: Path, lines: JournalFile, cells: int | None, failed: int = 0) -> Part:
    taken = seconds_of(lines)
    mean = float(np.mean(taken)) if taken else None
    return Part(command, what, len(lines.rows), cells, failed, path, mean, damaged=tuple(lines.damaged))


def _evaluation(path: Path, lines: JournalFile) -> Part:
    summary = _ended(path, path.with_name("summary.json"))
    failed = len(summary.get("out_of_memory", ())) + len(summary.get("failed", ()))
    known = len(lines.rows) + failed + summary["cells_left"] if "cells_left" in summary else lines.asked
    return _part("eval", "cells", path, lines, known, failed)


def _summed(command: str, path: Path) -> Part:
    """A part whose summary says what was left as it ended."""
    lines, summary = read_journal(path), _ended(path, path.with_name("summary.json"))
    known = len(lines.rows) + summary["cells_left"] if "cells_left" in summary else lines.asked
    return _part(command, "cells", path, lines, known)


def _probe(folder: Path) -> Iterator[Part]:
    place, journal = store_of(folder), folder / MEASURED
    store = next((each for each in (partial_path(place), place) if each.exists()), None)
    if store is None or is_half(store):
        if journal.exists():
            yield _part("probe", "measured cells", journal, read_journal(journal), None)
        return
    try:
        group = zarr.open_group(zarr_place(store, reads=True), mode="r", use_consolidated=False)
        grid = json.loads(str(group.attrs.get("lengths", "[]")))
        methods, prompts = (stored_array(group, name).shape[0] for name in ("method", "prompt"))
        captured = len(whole_passes(store))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{store} is damaged ({str(error).partition(chr(10))[0]})") from error
    if journal.exists() or grid:
        lines = read_journal(journal) if journal.exists() else JournalFile(None)
        further = sum(cell[2] not in grid for cell in lines.rows)  # refined: counted as they come
        yield _part("probe", "measured cells", journal, lines, len(_EITHER) * methods * len(grid) + further)
    yield Part("probe", "captured passes", captured, methods * prompts)


def _anatomy(folder: Path) -> Iterator[Part]:
    if (folder / CELLS).exists():
        yield _summed("anatomy", folder / CELLS)
    moments = sorted(folder.glob("moments-*.npz"))
    if not moments:
        return
    done, asked = 0, None
    for path in moments:
        try:
            with path.open("rb") as opened, np.load(opened) as file:
                done += int(file["count"].sum())
                asked = json.loads(str(file["attrs"])).get("asked", asked)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ValueError(f"{path} is damaged ({error})") from error
    summary = _ended(max(moments, key=lambda each: each.stat().st_mtime), folder / "summary.json")
    known = done + summary["texts_left"] if "texts_left" in summary else asked
    yield Part("anatomy", "texts", done, known)


def _asked(lines: JournalFile, path: Path, result: Path) -> int | None:
    """Cells in all: as the journal says or, of one that does not, all that it has where the run came to its end."""
    return len(lines.rows) if lines.asked is None and _ended(path, result) else lines.asked


def _ended(path: Path, result: Path) -> dict[str, Any]:
    """What a run wrote at its end, where that is not older than `path`; else nothing."""
    try:
        if result.stat().st_mtime < path.stat().st_mtime:
            return {}
        found = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def seconds_of(lines: JournalFile) -> list[float]:
    """What the passes of each cell took, of those whose scores say; scores of one sample may share a pass."""
    found = []
    for row in lines.rows.values():
        samples: dict[Any, float] = {}
        for score in row.get("scores", ()):
            if isinstance(score, dict) and score.get("seconds") is not None:
                samples[score["sample"]] = max(score["seconds"], samples.get(score["sample"], 0.0))
        found += [sum(samples.values())] if samples else []
    return found


def has_results(out: Path) -> bool:
    """Whether the folder, or one in it, holds anything to go on from: a row, a captured pass, a store, moments."""

    def holds(folder: Path) -> bool:
        store = store_of(folder)
        captured = partial_path(store).exists() and whole_passes(partial_path(store))
        rows = any(map(has_rows, folder.glob("*.jsonl")))
        return bool(captured) or store.exists() or rows or any(folder.glob("moments-*.npz"))

    return any(map(holds, [out, *(path for path in out.glob("*") if path.is_dir())]))
