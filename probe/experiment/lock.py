"""One process writes into a folder: its lock, and interrupts that nothing swallows."""

import json
import os
import platform
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import FileLock, Timeout

from mesa.errors import NotFound, Occupied, Refused
from probe.run_folder import LOCK, RunFolder

_AGAIN = 0.2  # seconds
_ALARM = getattr(signal, "SIGALRM", None)  # Windows has none
_PATIENCE = 0.2  # seconds: another's file may just have been removed


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt inside, again and again where something swallows it.

    Python drops what is raised in a callback, such as that of a lock that every import ends with, and some packages
    take every error of an import for their own: an error that follows an interrupt is one, with its notes. Where SIGINT
    is ignored, as in a shell's background, it stays so. In another thread than the main one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM, *([_ALARM] if _ALARM else [])]
    numbers += [signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else []
    former, tell = {number: signal.signal(number, _interrupt) for number in numbers}, sys.unraisablehook
    sys.unraisablehook = lambda dropped: None if _is_of_signal(dropped) else tell(dropped)
    try:
        yield
    except Exception as error:
        if not _follows_interrupt(error):
            raise
        interrupt = KeyboardInterrupt()
        interrupt.__notes__ = getattr(error, "__notes__", [])
        raise interrupt from error
    finally:
        if _ALARM:
            signal.signal(_ALARM, signal.SIG_IGN)  # one that comes now would set the timer again
            signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = tell
        for number, handler in former.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, and looks again later; what cleans up after one is left alone."""
    if _ALARM:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    if number != _ALARM or not _follows_interrupt(sys.exception()):
        raise KeyboardInterrupt


def _is_of_signal(dropped: Any) -> bool:
    """Whether what Python drops is an interrupt, or of a signal that came just as its handler was replaced."""
    return dropped.exc_type is KeyboardInterrupt or str(dropped.exc_value).endswith("ignored due to race condition")


def _follows_interrupt(error: BaseException | None) -> bool:
    """Whether an error is, or came up while one handled, an interrupt."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or _follows_interrupt(error.__context__))


@contextmanager
def owned(folder: Path, option: str = "--out") -> Iterator[None]:
    """Locks a folder for this thread; creates it where it is missing, and removes it again if it stays empty.

    The lock is the operating system's: a process that died blocks nobody. The same thread may lock a folder several
    times. option: what the command calls the folder. Raises FileExistsError, naming the holder, for a folder that
    another run writes to, or an --out that holds other things than runs do; NotADirectoryError for a file; Refused
    for a folder with a link that leads out of it.
    """
    if option == "--out":
        RunFolder(folder).check_run()
    _check_links(folder, option)
    created = _create(folder, option)
    path = folder.resolve() / LOCK
    lock = FileLock(path, timeout=_PATIENCE, is_singleton=True)
    outermost = not lock.is_locked
    try:
        try:
            lock.acquire()
        except Timeout:
            holder = RunFolder(folder).holder_text
            raise Occupied(
                f"{folder} is being written to by {holder}; wait for it, end it, or choose another {option}"
            ) from None
        try:
            if outermost:
                holder = {
                    "journals": RunFolder(folder).journal_lines(),
                    "pid": os.getpid(),
                    "host": platform.node(),
                    "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                    "since": datetime.now(UTC).isoformat(timespec="seconds"),
                }
                path.write_text(json.dumps(holder) + "\n", encoding="utf-8")
            yield
        finally:
            if outermost:
                path.unlink(missing_ok=True)
            lock.release()
    finally:
        for created_folder in created:
            with suppress(OSError):  # it holds something now
                created_folder.rmdir()


def _check_links(folder: Path, option: str) -> None:
    """Raises Refused for a link in the folder, at any depth, that leads out of it."""
    root = folder.resolve()
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise Refused(f"{option} {folder}: {path} is a link to {path.resolve()}, outside; remove the link")


def _create(folder: Path, option: str) -> list[Path]:
    """Creates the folder; returns the created ones, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise Refused(f"{option} {folder} is a file, or below one; name a folder") from error
    except FileNotFoundError as error:  # below /proc, say
        raise NotFound(f"{option} {folder} cannot be made there; name another folder") from error
    return missing


def warn_finished(out: Path) -> None:
    """Says on stderr that the run in the folder `out` is finished."""
    sys.stderr.write(f"finished already: {out}; --overwrite begins again\n")


def how_to_resume(out: Path, overwrite: bool) -> str:
    """How the unfinished run in the folder `out` goes on."""
    return f"{'without --overwrite, the' if overwrite else 'the'} same command continues from {out}"
