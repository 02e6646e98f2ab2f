"""Runs that the dashboard starts: `mesa-lens probe` as a process, with a log in the run's folder."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mesa.errors import Refused
from mesa_lens.dashboard.runs import DEPTH, changed, folders, holds_run
from probe.experiment.lock import lock_state
from probe.options import options
from probe.request import ProbeRequest

ALLOWED_VARIABLE = "MESA_LENS_ALLOW_RUNS"
"""Environment variable without which no run can be started."""
FORM = ("model", "trained_length", "methods", "set", "length", "lengths", "samples", "texts", "prompt", "text")
"""The options of `mesa-lens probe` that the form sets."""
OPTIONS = {option.key: option for option in options(ProbeRequest) if option.key in FORM}
LOG = "new-run.log"
"""In the run's folder: command lines, each after a `$`, and what they print."""
_COMMAND = ["mesa-lens", "probe"]
_NAME = r"\w[\w.-]*"
_CHECK_SECONDS = 300
_processes: dict[Path, subprocess.Popen] = {}
"""Processes of this server, by the run's folder."""


def run_folder(root: Path, name: str) -> Path:
    """The folder of a run called `name`; Refused for what is no name, and inside another run's folder."""
    if not re.fullmatch(rf"{_NAME}(/{_NAME}){{0,{DEPTH - 1}}}", name):
        raise Refused(f"{name!r} is no name for a run; take letters, digits, '_', '.' and '-', e.g. mine or my/run")
    folder = root / name
    for above in (root, *(root / parent for parent in Path(name).parents)):
        if holds_run(above):
            raise Refused(f"{above} is a run's own folder; open the dashboard on the folder of runs")
    return folder


def arguments(values: Mapping[str, str], folder: Path) -> list[str]:
    """The arguments of `mesa-lens probe` for a run in `folder`; empty values are left out.

    Raises Refused for a value that the option does not take.
    """
    words = []
    for key, value in values.items():
        option = OPTIONS[key]
        if not value:
            continue
        try:
            option.read(value)
        except Refused as error:
            raise Refused(f"{option.flag} {error}") from None
        words += [f"{option.flag}={word}" for word in (value.split() if option.repeated else [value])]
    return [*words, f"--out={folder}"]


def command_line(words: Sequence[str]) -> str:
    """The command line, to be copied."""
    return shlex.join([*_COMMAND, *words])


def estimate(words: Sequence[str]) -> str:
    """What `mesa-lens probe --estimate` prints, and what is left out; Refused with its message where it refuses."""
    command = [sys.executable, "-m", "mesa_lens", "probe", *words, "--estimate"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CHECK_SECONDS)
    lines = done.stderr.splitlines()
    if done.returncode:
        raise Refused(last_error(lines) or f"`mesa-lens probe` ended with {done.returncode}")
    return "\n".join([done.stdout.strip(), *(line for line in lines if line.startswith("left out: "))])


def start(folder: Path, words: Sequence[str]) -> None:
    """Starts a run in a new folder, once the command accepts the words."""
    if folder.exists():
        raise Refused(f"{folder} is already there; resume it, or choose another name")
    estimate(words)
    folder.mkdir(parents=True)
    _launch(folder, words)


def resume(folder: Path) -> None:
    """Starts the command in the folder's log again."""
    line = next(line for line in reversed(_log(folder)) if line.startswith("$ "))
    _launch(folder, shlex.split(line.removeprefix("$ "))[len(_COMMAND) :])


def _launch(folder: Path, words: Sequence[str]) -> None:
    with (folder / LOG).open("a", encoding="utf-8") as log:
        print(f"$ {command_line(words)}", file=log, flush=True)
        _processes[folder] = subprocess.Popen(
            [sys.executable, "-m", "mesa_lens", "probe", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1"},
        )


def is_running(folder: Path) -> bool:
    """Whether a process of this server, or any other, writes to the folder."""
    process = _processes.get(folder)
    return (process is not None and process.poll() is None) or lock_state(folder)[0]


def stop(folder: Path) -> None:
    """Ends the run as Ctrl-C does, also where the dashboard was started in the background, with SIGINT ignored."""
    process, (locked, holder) = _processes.get(folder), lock_state(folder)
    if process is not None and process.poll() is None:
        process.terminate()
    elif locked and "pid" in holder:
        os.kill(holder["pid"], signal.SIGTERM)


def started_runs(root: Path) -> list[Path]:
    """The folders of runs that were started here, newest first."""
    runs = [folder for folder in folders(root) if (folder / LOG).is_file()]
    return sorted(runs, key=lambda folder: -changed(folder / LOG))


def last_log(folder: Path) -> list[str]:
    """The lines of the log since the run was last started."""
    lines = _log(folder)
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    return [line for line in lines[starts[-1] :] if line.strip()]


def last_error(lines: Sequence[str]) -> str:
    """The last line with which a command ended; empty where there is none."""
    errors = [line.removeprefix("mesa-lens: ") for line in lines if line.startswith("mesa-lens: ")]
    return errors[-1] if errors else ""


def _log(folder: Path) -> list[str]:
    return (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
