"""Runs that the dashboard started: processes of their own, which leave a record and a log in the run's folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from mesa_lens.dashboard.asked import arguments, run_folder
from mesa_lens.dashboard.runs import changed, folders, is_inside
from probe.files import write

RECORD, LOG, TEXT = FILES = ("new-run.json", "new-run.log", "new-run.txt")
"""In the run's folder: what was asked for, what the process says, and a text of the user's own."""
_TAIL = 2**16  # bytes of a log that are read
_BAR = re.compile(r"(?P<what>[^:|]+): *(?P<percent>\d+)%\|[^|]*\|(?P<rest>.*)")
_DONE = re.compile(r"wrote .*report\.html")
_CHECK_SECONDS = 300


@dataclass(frozen=True)
class Progress:
    """bar: of what is done now a text and its share; said: the command's last message, where it complained."""

    running: bool
    done: bool
    lines: tuple[str, ...]
    bar: tuple[str, float] | None
    said: str


def started_runs(root: Path) -> list[Path]:
    """The folders of runs that were started from here, newest first."""
    found = [each for each in folders(root) if (each / RECORD).is_file() and _is_own(each, root)]
    return sorted(found, key=lambda folder: -changed(folder / RECORD))


def shown(options: Sequence[str]) -> str:
    """The command line, to be copied."""
    return shlex.join(["mesa-lens", "probe", *options])


def estimate(root: Path, name: str, asked: Mapping[str, str], own: str, inputs: Sequence[Path]) -> str:
    """What `mesa-lens probe --estimate` prints, and what is left out. `own`: a text.

    ValueError with its message for what it refuses.
    """
    with tempfile.TemporaryDirectory() as place:
        options = arguments(asked, run_folder(root, name), inputs)
        if own:
            text = Path(place, TEXT)
            text.write_text(own, encoding="utf-8")
            options.append(f"--text={text}")
        done = subprocess.run(
            _command([*options, "--estimate"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_CHECK_SECONDS,
        )
    if done.returncode:
        raise ValueError(_complaint(done.stderr.splitlines()) or f"`mesa-lens probe` ended with {done.returncode}")
    left_out = [line for line in done.stderr.splitlines() if line.startswith("left out: ")]
    return "\n".join([done.stdout.strip(), *left_out])


def start(root: Path, name: str, asked: Mapping[str, str], own: str, inputs: Sequence[Path]) -> Path:
    """Starts a run in a new folder, once the command takes what is asked; returns the folder."""
    folder = run_folder(root, name)
    if folder.exists():
        raise ValueError(f"{name} is already there; resume it, or choose another name")
    estimate(root, name, asked, own, inputs)
    folder.mkdir(parents=True)
    if own:
        (folder / TEXT).write_text(own, encoding="utf-8")
        asked = {**asked, "text": str(folder / TEXT)}
    _launch(root, folder, asked, inputs)
    return folder


def resume(root: Path, folder: Path, inputs: Sequence[Path]) -> None:
    """Starts the same command in its folder again; ValueError while it runs, or for a damaged record."""
    if progress(folder).running:
        raise ValueError(f"{folder} is being written to already")
    record = _record(folder)
    _launch(root, folder, record["options"], inputs)


def stop(folder: Path) -> None:
    """Interrupts the run as Ctrl-C does."""
    if process := _process(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)


def progress(folder: Path) -> Progress:
    """Where the run is, read from its log since it was last started."""
    running = _process(folder) is not None
    lines = _last_start(folder / LOG)
    bars = [bar for line in lines if (bar := _BAR.match(line))]
    bar = (f"{bars[-1]['what']}:{bars[-1]['rest']}", int(bars[-1]["percent"]) / 100) if bars else None
    done = not running and any(_DONE.match(line) for line in lines[-3:])
    return Progress(running, done, tuple(lines), bar, "" if running or done else _complaint(lines))


def _launch(root: Path, folder: Path, asked: Mapping[str, str], inputs: Sequence[Path]) -> None:
    options = arguments(asked, folder, [root, *inputs])
    if not _is_own(folder, root):
        raise ValueError(f"{folder} holds links out of {root}; take another name")
    with (folder / LOG).open("ab") as log:
        log.write(f"$ {shown(options)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            _command(options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TQDM_MININTERVAL": "1"},
        )
    threading.Thread(target=process.wait, daemon=True).start()  # else it stays as a zombie
    record = {"options": dict(asked), "pid": process.pid}
    write(folder / RECORD, (json.dumps(record, indent=1) + "\n").encode())


def _command(options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "mesa_lens", "probe", *options]


def _is_own(folder: Path, root: Path) -> bool:
    return all(is_inside(folder / name, root) for name in FILES)


def _record(folder: Path) -> dict:
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if all(isinstance(value, str) for value in record["options"].values()) and isinstance(record["pid"], int):
            return record
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise ValueError(f"{path} is damaged; start the run anew under another name")


def _process(folder: Path) -> psutil.Process | None:
    """The run's process where it is alive, and really this run's."""
    try:
        process = psutil.Process(_record(folder)["pid"])
        words = process.cmdline()
    except (psutil.Error, ValueError, OverflowError):
        return None
    return process if words[1:4] == _command([])[1:] and f"--out={folder}" in words else None


def _last_start(log: Path) -> list[str]:
    """The log's lines since the last start, each as it looks once its bar has moved on."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [line.rstrip("\r").rpartition("\r")[2].strip() for line in text.split("\n")]
    begins = [at for at, line in enumerate(lines) if line.startswith("$ mesa-lens probe")]
    return [line for line in lines[begins[-1] if begins else 0 :] if line]


def _complaint(lines: Sequence[str]) -> str:
    said = [line.removeprefix("mesa-lens: ") for line in lines if line.startswith("mesa-lens: ")]
    return said[-1] if said else ""
