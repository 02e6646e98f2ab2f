"""One writer a folder: a second run into it is refused, and told who holds it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".mesa-lens.lock"
"""The file in a folder that is locked while a run writes there, and that says who does."""
_PATIENCE = 0.2  # seconds: another's file may just have been removed


@contextmanager
def owned(*folders: Path, option: str = "--out") -> Iterator[None]:
    """The folders are this thread's alone inside; made where they are not there, removed again where nothing is kept.

    The lock is the operating system's, so that of a process that died holds nobody up. The same thread may own a folder
    several times over. option: what a command calls the folder. Raises FileExistsError, naming the holder, for a
    folder that another run writes to, NotADirectoryError for a file.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_owned(folder, option))
        yield


@contextmanager
def _owned(folder: Path, option: str) -> Iterator[None]:
    made = _make(folder, option)
    path = folder.resolve() / LOCK
    lock = FileLock(path, timeout=_PATIENCE, is_singleton=True)
    outermost = not lock.is_locked
    try:
        try:
            lock.acquire()
        except Timeout:
            raise FileExistsError(
                f"{folder} is being written to by {_holder(path)}; wait for it, end it, or choose another {option}"
            ) from None
        try:
            if outermost:
                path.write_text(json.dumps(_self()) + "\n", encoding="utf-8")
            yield
        finally:
            if outermost:
                path.unlink(missing_ok=True)
            lock.release()
    finally:
        for each in made:
            with suppress(OSError):  # it holds something now
                each.rmdir()


def _make(folder: Path, option: str) -> list[Path]:
    """Makes the folder; returns what was made, the innermost first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(f"{option} {folder} is a file, or below one; name a folder") from error
    return missing


def _self() -> dict[str, str | int]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _holder(path: Path) -> str:
    """Who wrote the lock's file, in words."""
    try:
        by = json.loads(path.read_text(encoding="utf-8"))
        return f"process {by['pid']} on {by['host']} since {by['since']} ({by['command']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
