"""What a run's folder holds of each kind of work, counted from its journals and stores as they lie there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import zarr

from probe.cells.board import posted
from probe.evaluation.journal import Lines, read_lines
from probe.store.place import zarr_place
from probe.store.reader import is_half, partial_path, store_of, stored_array, whole_passes

CELLS, HARNESS, MEASURED = "cells.jsonl", "harness.jsonl", "measured.jsonl"
_EITHER = ("nll", "passkey")  # tasks that a probe run measures failure by


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


def parts_of(folder: Path) -> Iterator[Part]:
    """The parts of a run that lie in the folder itself. Raises ValueError, naming the file, for what cannot be read.

    With what was told last of cells under way, and of those that no worker could finish.
    """
    for part in _kept(folder):
        inner = folder / part.command if part.command in ("locate", "anatomy") else folder
        said, kind = posted(inner), _KINDS.get((part.command, part.what))
        running, lost = (
            sum(rows for (each, _), rows in told.items() if kind in (None, each)) for told in (said.running, said.lost)
        )
        yield replace(part, running=running, failed=part.failed or lost)


def _kept(folder: Path) -> Iterator[Part]:
    """The parts, as journals and stores hold them."""
    if (path := folder / CELLS).exists():
        lines = read_lines(path)
        yield _evaluation(path, lines)
    if (path := folder / HARNESS).exists():
        lines = read_lines(path)
        yield _part("eval", "lm-eval tasks", path, lines, _asked(lines, path, folder / "harness.json"))
    yield from _probe(folder)
    if (path := folder / "locate" / CELLS).exists():
        yield _summed("locate", path)
    yield from _anatomy(folder / "anatomy")


def _part(command: str, what: str, path: Path, lines: Lines, cells: int | None, failed: int = 0) -> Part:
    taken = seconds_of(lines)
    mean = float(np.mean(taken)) if taken else None
    return Part(command, what, len(lines.rows), cells, failed, path, mean, damaged=tuple(lines.damaged))


def _evaluation(path: Path, lines: Lines) -> Part:
    summary = _ended(path, path.with_name("summary.json"))
    failed = len(summary.get("out_of_memory", ())) + len(summary.get("failed", ()))
    known = len(lines.rows) + failed + summary["cells_left"] if "cells_left" in summary else lines.asked
    return _part("eval", "cells", path, lines, known, failed)


def _summed(command: str, path: Path) -> Part:
    """A part whose summary says what was left as it ended."""
    lines, summary = read_lines(path), _ended(path, path.with_name("summary.json"))
    known = len(lines.rows) + summary["cells_left"] if "cells_left" in summary else lines.asked
    return _part(command, "cells", path, lines, known)


def _probe(folder: Path) -> Iterator[Part]:
    place, journal = store_of(folder), folder / MEASURED
    store = next((each for each in (partial_path(place), place) if each.exists()), None)
    if store is None or is_half(store):
        if journal.exists():
            yield _part("probe", "measured cells", journal, read_lines(journal), None)
        return
    try:
        group = zarr.open_group(zarr_place(store, reads=True), mode="r", use_consolidated=False)
        grid = json.loads(str(group.attrs.get("lengths", "[]")))
        methods, prompts = ({*np.asarray(stored_array(group, name)[:]).tolist()} for name in ("method", "prompt"))
        captured = len(whole_passes(store))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{store} is damaged ({str(error).partition(chr(10))[0]})") from error
    if journal.exists() or grid:
        lines = read_lines(journal) if journal.exists() else Lines(None)
        rows = {cell: row for cell, row in lines.rows.items() if cell[1] in methods}  # of other methods: an earlier run
        further = sum(cell[2] not in grid for cell in rows)  # refined: counted as they come
        cells = len(_EITHER) * len(methods) * len(grid) + further
        yield _part("probe", "measured cells", journal, replace(lines, rows=rows), cells)
    yield Part("probe", "captured passes", captured, len(methods) * len(prompts))


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


def _asked(lines: Lines, path: Path, result: Path) -> int | None:
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


def seconds_of(lines: Lines) -> list[float]:
    """What the passes of each cell took, of those whose scores say; scores of one sample may share a pass."""
    found = []
    for row in lines.rows.values():
        samples: dict[Any, float] = {}
        for score in row.get("scores", ()):
            if isinstance(score, dict) and score.get("seconds") is not None:
                samples[score["sample"]] = max(score["seconds"], samples.get(score["sample"], 0.0))
        found += [sum(samples.values())] if samples else []
    return found
