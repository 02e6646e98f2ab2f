"""Runs and results under the root folder, and what a page gets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesa.errors import Refused
from probe.commands import commands
from probe.status import Status, status_of
from probe.store.reader import partial_path
from probe.store.result_file import ResultFile

if TYPE_CHECKING:
    from probe.commands.eval.result import Evaluated, HarnessScores

ROOT_VARIABLE = "MESA_LENS_RUNS"
"""Environment variable that names the root folder."""

DEPTH = 3
"""Folders below the root that runs are looked for in."""
STORE = "store.zarr"
HARNESS, EVALUATION = "lm-eval", "eval"


@cache
def _kinds() -> dict[str, tuple[ResultFile[Any], tuple[str, ...]]]:
    """The file that is read, and others that must be there; none without `mesa-lens eval`."""
    if EVALUATION not in commands():
        return {}
    from probe.commands.eval.result import EVALUATED, HARNESS_SCORES

    return {HARNESS: (HARNESS_SCORES, ()), EVALUATION: (EVALUATED, ("samples.csv",))}


@dataclass(frozen=True)
class Entry:
    """A run. name: the path of its folder below the root."""

    name: str
    path: Path

    @property
    def stamp(self) -> tuple[float, float]:
        """When the whole and the unfinished store were written; 0 where there is none."""
        store = self.path / STORE
        return changed(store / "zarr.json"), changed(partial_path(store))

    @property
    def finished(self) -> bool:
        """Whether there is a whole store."""
        return self.stamp[0] > 0


@dataclass(frozen=True)
class EvalFolder:
    """A finished `eval` run. kind: `HARNESS` or `EVALUATION`. name: the path below the root."""

    kind: str
    name: str
    path: Path

    @property
    def file(self) -> Path:
        """The file that is read."""
        return self.path / _kinds()[self.kind][0].path

    def read(self) -> Evaluated | HarnessScores:
        """Its file; Refused, naming the command that writes it, for one that is damaged or of another model."""
        check_inside(self.path)
        return _kinds()[self.kind][0].read(self.path)

    @property
    def label(self) -> str:
        """Name and kind, for a select box."""
        return f"{self.name} ({self.kind})"


@dataclass(frozen=True)
class Context:
    """What a page gets. entry: the chosen run, None if there is none. pages: Streamlit's pages by their URL paths."""

    root: str
    entries: tuple[Entry, ...]
    entry: Entry | None
    pages: Mapping[str, Any]

    @property
    def run(self) -> Entry:
        """The chosen run; Refused if there is none."""
        if self.entry is None:
            raise Refused(f"there is no run under {self.root}")
        return self.entry


def pages_of_packages() -> list[str]:
    """Commands of other packages that tell of their results, each on a page of its own."""
    ours = {"probe", "locate", "anatomy", "predict", "eval"}
    return [name for name, row in commands().items() if "inside" in row.tells and name not in ours]


def check_inside(place: Path) -> None:
    """Raises Refused unless the place, and all that it holds, lies in the root folder: no link of it leads out."""
    root, waiting, met = os.path.realpath(root_folder()), [str(place)], set[str]()
    while waiting:
        path = waiting.pop()
        real = os.path.realpath(path)
        if not _is_below(real, root):
            raise Refused(f"{path} is a link that leads out of {root}, so it is not read; copy what it names into that")
        if real not in met and os.path.isdir(real):
            met.add(real)
            with os.scandir(real) as held:
                for item in held:
                    if item.is_symlink() or item.is_dir():
                        waiting.append(item.path)
                    elif not item.is_file():
                        raise Refused(f"{item.path} is neither a file nor a folder; remove it")


def _is_below(real: str, root: str) -> bool:
    return real == root or real.startswith(os.path.join(root, ""))


def root_folder() -> Path:
    """The folder in `MESA_LENS_RUNS`; default: runs/."""
    return Path(os.environ.get(ROOT_VARIABLE, "runs"))


def entries(root: Path) -> list[Entry]:
    """The runs at most three folders below `root`, finished or not, newest first; none through links that lead out."""
    runs = [Entry(name_of(folder, root), folder) for folder in folders(root) if holds_run(folder)]
    return sorted(runs, key=lambda entry: (-max(entry.stamp), entry.name))


def results(root: Path) -> list[EvalFolder]:
    """The results at most three folders below `root`, newest first."""
    finished = [
        EvalFolder(kind, name_of(folder, root), folder)
        for folder in folders(root)
        for kind, (file, more) in _kinds().items()
        if not holds_run(folder) and all((folder / name).is_file() for name in (file.path, *more))
    ]
    return sorted(finished, key=lambda result: (-changed(result.file), result.label))


def unfinished(root: Path) -> list[Status]:
    """Status of the runs under `root` that are not finished."""
    known = (find_status(folder) for folder in folders(root))
    return [status for status in known if status is not None and status.state != "finished"]


def find_status(folder: Path) -> Status | None:
    """The status of the run in a folder; None where there is none, or it is damaged."""
    try:
        check_inside(folder)
        return status_of(folder)
    except (Refused, OSError):
        return None


def folders(root: Path) -> list[Path]:
    """`root` and its folders down to depth 3, except those inside a run's folder, and links that lead out of it."""
    return list(_folders(root, DEPTH, os.path.realpath(root)))


def holds_run(folder: Path) -> bool:
    """Whether there is a store in the folder, finished or not."""
    store = folder / STORE
    return store.exists() or partial_path(store).exists()


def name_of(path: Path, root: Path) -> str:
    """The path below the root, which names a run or result; of the root its last part."""
    return root.resolve().name if path == root else path.relative_to(root).as_posix()


def changed(path: Path) -> float:
    """When a file was last written; 0 where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _folders(folder: Path, depth: int, root: str) -> Iterator[Path]:
    if not _is_below(os.path.realpath(folder), root):
        return
    yield folder
    if depth and not holds_run(folder):
        try:
            inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        except OSError:  # missing or not readable
            return
        for path in inner:
            yield from _folders(path, depth - 1, root)
