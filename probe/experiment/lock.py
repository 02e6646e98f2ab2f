"""One process writes into a folder: its lock, and interrupts that nothing swallows."""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

from mesa.errors import NotFound, Occupied, Refused
from probe.files import JsonObject
from probe.identity import recorded
from probe.layout import STORES, journals

_AGAIN = 0.2  # seconds
_ALARM = getattr(signal, "SIGALRM", None)  # Windows has none


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
    sys.unraisablehook = lambda dropped: None if dropped.exc_type is KeyboardInterrupt else tell(dropped)
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
            signal.signal(_ALARM, signal.SIG_IGN)  # one that comes now would set the timer anew
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


def _follows_interrupt(error: BaseException | None) -> bool:
    """Whether an error is, or came up while one handled, an interrupt."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or _follows_interrupt(error.__context__))


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".mesa-lens.lock"
"""The file in a folder that is locked while a run writes there, and that says who does."""
_BEGIN = b'{"settings": '
"""How every journal begins."""
_STORES = (*STORES, "store.zarr.former")
_BEGUN = "store.zarr.begun"
_LISTED = 3  # names of what else it holds
_PATIENCE = 0.2  # seconds: another's file may just have been removed


@contextmanager
def owned(*folders: Path, option: str = "--out") -> Iterator[None]:
    """Locks the folders for this thread; creates missing ones, and removes them again if they stay empty.

    The lock is the operating system's: a process that died blocks nobody. The same thread may lock a folder several
    times. option: what the command calls the folder. Raises FileExistsError, naming the holder, for a folder that
    another run writes to, or an --out that holds other things than runs do; NotADirectoryError for a file; Refused
    for a folder with a link that leads out of it.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_owned(folder, option))
        yield


@contextmanager
def _owned(folder: Path, option: str) -> Iterator[None]:
    if option == "--out":
        check_run_folder(folder)
    _check_links(folder, option)
    created = _create(folder, option)
    path = folder.resolve() / LOCK
    lock = FileLock(path, timeout=_PATIENCE, is_singleton=True)
    outermost = not lock.is_locked
    try:
        try:
            lock.acquire()
        except Timeout:
            holder = holder_text(lock_state(folder)[1])
            raise Occupied(
                f"{folder} is being written to by {holder}; wait for it, end it, or choose another {option}"
            ) from None
        try:
            if outermost:
                path.write_text(json.dumps(_this_process(folder)) + "\n", encoding="utf-8")
            yield
        finally:
            if outermost:
                path.unlink(missing_ok=True)
            lock.release()
    finally:
        for created_folder in created:
            with suppress(OSError):  # it holds something now
                created_folder.rmdir()


def check_run_folder(folder: Path) -> None:
    """Raises FileExistsError for a folder with files, none of them a run's; hidden files do not count.

    A run is known by its store, or by a journal with our header, in the folder or one folder below.
    """
    try:
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        if not names or holds_run(folder):
            return
    except OSError:  # missing, no folder, or unreadable: reported when it is written to
        return
    listed = ", ".join([*names[:_LISTED], *(["..."] if len(names) > _LISTED else [])])
    raise Occupied(f"--out {folder} holds other things than a run ({listed}); name a new or empty folder")


def check_apart(folder: Path, names: Sequence[str]) -> None:
    """Raises FileExistsError for a folder with one of these files of another command, whose results have our names."""
    if there := [name for name in names if (folder / name).exists()]:
        raise Occupied(
            f"--out {folder} holds another command's run ({there[0]}), whose summary and report would be replaced; "
            "name another --out"
        )


def holds_run(folder: Path) -> bool:
    """Whether something in the folder is a run's, by its content; or nothing is there but a journal just begun."""
    journals = (*folder.glob("*.jsonl"), *folder.glob("*/*.jsonl"))
    if (folder / _BEGUN).exists() or any(recorded(folder / name / "zarr.json") for name in _STORES):
        return True
    if any(_begin(path) == _BEGIN and recorded(path) for path in journals):
        return True
    return bool(journals) and all(map(_is_just_begun, folder.rglob("[!.]*")))


def _is_just_begun(path: Path) -> bool:
    """Whether it is a folder, or a journal that was cut short in its first line."""
    begin = _begin(path) if path.name in journals() else None
    return path.is_dir() or (begin is not None and _BEGIN.startswith(begin))


def _begin(path: Path) -> bytes | None:
    """As much of a file as shows whether it is a journal; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGIN))
    except OSError:
        return None


def _check_links(folder: Path, option: str) -> None:
    """Raises Refused for a link in the folder, at any depth, that leads out of it."""
    root = folder.resolve()
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
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


def lock_state(folder: Path) -> tuple[bool, JsonObject]:
    """Whether a run writes to the folder now, and who: `pid`, `host`, `command`, `since`, `journals`.

    The second is also what a process that died left; empty where there is nothing. Writes nothing.
    """
    path = folder / LOCK
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        holder = {}
    return _is_locked(path), holder if isinstance(holder, dict) else {}


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if fcntl is None:  # where the lock's file goes with its process
                return True
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def journal_lines(folder: Path) -> dict[str, int]:
    """The number of lines of each journal in the folder, by name."""
    paths = [*folder.glob("*.jsonl"), *folder.glob("*/*.jsonl")]
    return {path.relative_to(folder).as_posix(): path.read_bytes().count(b"\n") for path in paths if path.is_file()}


def _this_process(folder: Path) -> JsonObject:
    """Who writes, since when, and what the journals held then."""
    return {
        "journals": journal_lines(folder),
        "pid": os.getpid(),
        "host": platform.node(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def holder_text(holder: JsonObject) -> str:
    """Who `lock_state` says writes to a folder, in words."""
    if not holder:
        return "another process"
    return "process {} on {} since {} ({})".format(*map(holder.get, ("pid", "host", "since", "command")))


def warn_finished(out: Path) -> None:
    """Says on stderr that the run in the folder `out` is finished."""
    sys.stderr.write(f"finished already: {out}; --overwrite begins anew\n")


def how_to_resume(out: Path, overwrite: bool) -> str:
    """How the unfinished run in the folder `out` goes on."""
    return f"{'without --overwrite, the' if overwrite else 'the'} same command continues from {out}"
