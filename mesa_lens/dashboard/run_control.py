"""Runs that the dashboard starts: `mesa-lens probe` as a process, with a record and a log in the run's folder."""

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

from mesa.checkpoints.fetched import CHECKPOINTS
from mesa.checkpoints.place import SHIPPED
from mesa_lens.dashboard.runs import DEPTH, changed, folders, holds_run, is_inside
from probe.files import write
from probe.options import options
from probe.request import ProbeRequest
from probe.status import Status, status_of

ALLOWED_VARIABLE = "MESA_LENS_ALLOW_RUNS"
"""Environment variable with the folders that models and texts may be read from, as JSON; runs are off without it."""
FORM = ("model", "trained_length", "methods", "set", "length", "lengths", "samples", "texts", "prompt", "text")
"""The options of `mesa-lens probe` that the form sets."""
OPTIONS = {option.key: option for option in options(ProbeRequest) if option.key in FORM}
MODELS = (*SHIPPED, *CHECKPOINTS)
"""Models that are no path."""
RECORD, LOG, TEXT = FILES = ("new-run.json", "new-run.log", "new-run.txt")
"""In the run's folder: the options, what the process prints, and a text typed into the form."""
_HUB = r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?"
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_TAIL = 2**16  # bytes of a log that are read
_CHECK_SECONDS = 300


@dataclass(frozen=True)
class Progress:
    """status: as of `mesa-lens status`; None before anything is written. error: the last one, where the run failed."""

    running: bool
    status: Status | None
    lines: tuple[str, ...]
    error: str

    @property
    def finished(self) -> bool:
        """Whether everything is written."""
        return not self.running and self.status is not None and self.status.state == "finished"

    @property
    def share(self) -> float:
        """Finished tasks, of those that are known."""
        parts = [part for part in (self.status.parts if self.status else ()) if part.cells]
        return sum(part.done for part in parts) / max(1, sum(part.cells or 0 for part in parts))

    @property
    def text(self) -> str:
        """Finished tasks by kind."""
        parts = self.status.parts if self.status else ()
        counts = [f"{part.what}: {part.done}{f' of {part.cells}' if part.cells else ''}" for part in parts]
        return ", ".join(counts) or "starting"


def input_folders() -> tuple[Path, ...] | None:
    """The folders that models and texts may be read from; None where no run may be started."""
    allowed = os.environ.get(ALLOWED_VARIABLE)
    return None if allowed is None else tuple(map(Path, json.loads(allowed)))


def run_folder(root: Path, name: str) -> Path:
    """The folder of a run called `name`; ValueError for one that does not lie in `root`, or lies in another run's."""
    parts = name.split("/")
    if len(parts) > DEPTH or not all(re.fullmatch(_PART, part) for part in parts):
        raise ValueError(f"{name!r} is no name for a run; take letters, digits, '_', '.' and '-', e.g. mine or my/run")
    folder = root.joinpath(*parts)
    if not is_inside(folder, root):
        raise ValueError(f"{name} is a link out of {root}; take another name")
    for above in (root, *(parent for parent in folder.parents if parent.is_relative_to(root))):
        if holds_run(above):
            raise ValueError(f"{above} is a run's own folder; open the dashboard on the folder of runs")
    return folder


def arguments(values: Mapping[str, str], folder: Path, inputs: Sequence[Path]) -> list[str]:
    """The arguments of `mesa-lens probe` for a run in `folder`; empty values are left out.

    Raises ValueError for a value that the option does not take, an option that is not in `FORM`, and a model or text
    that is not in `inputs`.
    """
    words = []
    for key, value in values.items():
        if key not in OPTIONS:
            raise ValueError(f"--{key} cannot be set here; known: {', '.join(OPTIONS)}")
        if not value:
            continue
        option = OPTIONS[key]
        try:
            option.read(value)
        except ValueError as error:
            raise ValueError(f"{option.flag} {error}") from None
        if key == "model":
            value = _model(value, inputs)
        elif key == "text":
            value = str(inside(value, inputs))
        words += [f"{option.flag}={word}" for word in (value.split() if option.repeated else [value])]
    return [*words, f"--out={folder}"]


def inside(text: str, inputs: Sequence[Path]) -> Path:
    """The file or folder that `text` names, its links followed; ValueError for one that is not there or not inside.

    A path that is not absolute begins in the first of `inputs` that holds it. Of a folder, the files count too.
    """
    relative = Path(text)
    if ".." not in relative.parts:
        for folder in inputs:
            path = folder / relative  # `relative` itself where it is absolute
            inner = path.iterdir() if path.is_dir() else ()
            if path.exists() and all(_is_in(file, inputs) for file in (path, *inner)):
                return path.resolve()
    raise ValueError(f"{text} is not in {' or '.join(map(str, inputs))}; nothing else is read, see --inputs")


def _model(value: str, inputs: Sequence[Path]) -> str:
    """A model's name, or the path of one inside; what could be a path is taken for one."""
    exists = Path(value).exists() or any((folder / value).exists() for folder in inputs)
    is_name = re.fullmatch(_HUB, value) and not value.lower().endswith(".gguf")
    return value if value in MODELS or (is_name and not exists) else str(inside(value, inputs))


def _is_in(path: Path, inputs: Sequence[Path]) -> bool:
    return any(is_inside(path, folder) for folder in inputs)


def started_runs(root: Path) -> list[Path]:
    """The folders of runs that were started from here, newest first."""
    runs = [folder for folder in folders(root) if (folder / RECORD).is_file() and _files_inside(folder, root)]
    return sorted(runs, key=lambda folder: -changed(folder / RECORD))


def command_line(words: Sequence[str]) -> str:
    """The command line, to be copied."""
    return shlex.join(["mesa-lens", "probe", *words])


def estimate(root: Path, name: str, values: Mapping[str, str], typed: str, inputs: Sequence[Path]) -> str:
    """What `mesa-lens probe --estimate` prints, and what is left out. typed: a text from the form.

    ValueError with its message for what it refuses.
    """
    with tempfile.TemporaryDirectory() as scratch:
        words = arguments(values, run_folder(root, name), inputs)
        if typed:
            text = Path(scratch, TEXT)
            text.write_text(typed, encoding="utf-8")
            words.append(f"--text={text}")
        ended = subprocess.run(
            _command([*words, "--estimate"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_CHECK_SECONDS,
        )
    if ended.returncode:
        raise ValueError(_last_error(ended.stderr.splitlines()) or f"`mesa-lens probe` ended with {ended.returncode}")
    left_out = [line for line in ended.stderr.splitlines() if line.startswith("left out: ")]
    return "\n".join([ended.stdout.strip(), *left_out])


def start(root: Path, name: str, values: Mapping[str, str], typed: str, inputs: Sequence[Path]) -> Path:
    """Starts a run in a new folder, once the command accepts the values; returns the folder."""
    folder = run_folder(root, name)
    if folder.exists():
        raise ValueError(f"{name} is already there; resume it, or choose another name")
    estimate(root, name, values, typed, inputs)
    folder.mkdir(parents=True)
    if typed:
        (folder / TEXT).write_text(typed, encoding="utf-8")
        values = {**values, "text": str(folder / TEXT)}
    _launch(root, folder, values, inputs)
    return folder


def resume(root: Path, folder: Path, inputs: Sequence[Path]) -> None:
    """Starts the same command in its folder again; ValueError while it runs, or for a damaged record."""
    if progress(folder).running:
        raise ValueError(f"{folder} is being written to already")
    _launch(root, folder, _record(folder)["options"], inputs)


def stop(folder: Path) -> None:
    """Interrupts the run as Ctrl-C does."""
    if process := _process(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)


def progress(folder: Path) -> Progress:
    """Where the run is, by its status; and its log since it was last started."""
    running, lines = _process(folder) is not None, _last_log(folder / LOG)
    try:
        status = status_of(folder)
    except (ValueError, OSError):
        status = None
    return Progress(running, status, tuple(lines), "" if running else _last_error(lines))


def _launch(root: Path, folder: Path, values: Mapping[str, str], inputs: Sequence[Path]) -> None:
    words = arguments(values, folder, [root, *inputs])
    if not _files_inside(folder, root):
        raise ValueError(f"{folder} holds links out of {root}; take another name")
    with (folder / LOG).open("ab") as log:
        log.write(f"$ {command_line(words)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            _command(words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1"},
        )
    threading.Thread(target=process.wait, daemon=True).start()  # else it stays as a zombie
    record = {"options": dict(values), "pid": process.pid}
    write(folder / RECORD, (json.dumps(record, indent=1) + "\n").encode())


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "mesa_lens", "probe", *words]


def _files_inside(folder: Path, root: Path) -> bool:
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


def _last_log(log: Path) -> list[str]:
    """The log's lines since the last start."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    starts = [number for number, line in enumerate(lines) if line.startswith("$ mesa-lens probe")]
    return [line for line in lines[starts[-1] if starts else 0 :] if line.strip()]


def _last_error(lines: Sequence[str]) -> str:
    errors = [line.removeprefix("mesa-lens: ") for line in lines if line.startswith("mesa-lens: ")]
    return errors[-1] if errors else ""
