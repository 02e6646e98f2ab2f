"""Which runs lie under the root folder. Nothing outside it is ever opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from probe.store.cache import DERIVED
from probe.store.location import POINTER, Remote, as_path, store_in
from probe.store.reader import partial_path
from probe.store.results import ANATOMY, LOCATED, VECTORS

ROOT_VARIABLE = "MESA_LENS_RUNS"
"""Environment variable that names the root folder."""

DEPTH = 3
"""Folders below the root that runs are looked for in."""
STORE = "store.zarr"
_READ = ("", STORE, POINTER, partial_path(Path(STORE)), DERIVED, "summary.json", LOCATED, ANATOMY, VECTORS)


@dataclass(frozen=True)
class Entry:
    """A run's folder, by its name: the path from the root on."""

    name: str
    path: Path

    @property
    def stamp(self) -> tuple[float, float]:
        """Changes when the store is written anew; its parts are 0 where there is none, or none unfinished.

        A store at a URL that a folder names is whole once the folder has a summary, which it is finished with.
        """
        if not isinstance(self.path, Remote) and (begun := changed(self.path / POINTER)):
            return changed(self.path / "summary.json"), begun
        store = self.path / STORE
        if isinstance(store, Remote):
            return (changed(store / "zarr.json") if store_in(self.path, STORE).exists() else 0.0), 0.0
        return changed(store / "zarr.json"), changed(partial_path(store))

    @property
    def finished(self) -> bool:
        """Whether there is a whole store to read."""
        return self.stamp[0] > 0


def root_folder() -> Path:
    """The folder of runs: `MESA_LENS_RUNS`, which may be a URL, or runs/."""
    return as_path(os.environ.get(ROOT_VARIABLE, "runs"))


def entries(root: Path) -> list[Entry]:
    """The runs at most three folders below `root`, finished or not, newest first.

    A run of which the folder, the store or the summary is a link out of `root` is left out.
    """
    if isinstance(root, Remote):
        return [Entry(place.name, place) for place in (as_path(root), *root.folders()) if (place / STORE).exists()]
    runs = [
        Entry(name_of(path, root), path)
        for path in folders(root)
        if holds_run(path) and all(is_inside(path / part, root) for part in _READ)
    ]
    return sorted(runs, key=lambda entry: (-max(entry.stamp), entry.name))


def folders(root: Path) -> list[Path]:
    """The folders that runs and results may be in: `root`, and those at most three below it; none in a run's own."""
    if isinstance(root, Remote):
        return []
    return list(_folders(root, DEPTH))


def holds_run(folder: Path) -> bool:
    """Whether there is a store in the folder, finished or not."""
    store = folder / STORE
    return store.exists() or partial_path(store).exists() or (folder / POINTER).is_file()


def name_of(path: Path, root: Path) -> str:
    """What a run or result in the folder `path` is called: the path from the root on."""
    return root.resolve().name if path == root else path.relative_to(root).as_posix()


def changed(path: Path) -> float:
    """When a file was last written; 0 where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def is_inside(path: Path, root: Path) -> bool:
    """Whether `path`, its links followed, lies in `root` or is it."""
    return path.resolve().is_relative_to(root.resolve())


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if depth and not holds_run(folder):
        try:
            inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        except OSError:  # not there, or not ours to read
            return
        for path in inner:
            yield from _folders(path, depth - 1)
