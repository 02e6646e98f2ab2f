"""Cells an hour of an evaluation by two workers of one thread each, beside one process of two threads.

Both run the demo's tasks on the shipped model, in turn, as often as asked. The clock begins when as many cells have
ended as there are workers, counts the cells that end from then on, and ends with the last; what it took before is told.

    python benchmarks/workers.py
    python benchmarks/workers.py --times 1 --lengths 512 --methods origin
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

WAYS = {
    "one process of 2 threads": (1, "2", ()),
    "2 workers of 1 thread": (2, "1", ("--runner", "ray", "--workers", "2")),
}
"""Workers, threads of each, and options."""


class Run(NamedTuple):
    """Cells, seconds before them, seconds that they took, and CPU seconds of all processes."""

    cells: int
    before: float
    seconds: float
    cpu: float

    @property
    def pace(self) -> float:
        """Cells an hour."""
        return 3600 * self.cells / self.seconds


def timed(words: Sequence[str], workers: int, threads: str, runner: Sequence[str]) -> Run:
    """Runs the command once, from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        out, used = Path(folder, "out"), dict[int, float]()
        out.mkdir()
        command = [sys.executable, "-m", "mesa_lens", "eval", *words, "--out", str(out), *runner]
        began, first, last, done, ended = time.monotonic(), 0.0, 0.0, 0, 0
        process = psutil.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": threads},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            _note(process, used)
            rows = _rows(out)
            if not first and rows >= workers:
                first, done = time.monotonic(), rows
            last, ended = (time.monotonic(), rows) if rows > ended else (last, ended)
            time.sleep(0.1)
        if process.returncode or not first:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        return Run(_rows(out) - done, first - began, last - first, sum(used.values()))


def _rows(out: Path) -> int:
    path = out / "journal.jsonl"
    return path.read_bytes().count(b'"cell"') if path.exists() else 0


def _note(process: psutil.Process, used: dict[int, float]) -> None:
    """Keeps the CPU seconds so far of a process and all below it."""
    try:
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            used[each.pid] = times.user + times.system
    except psutil.NoSuchProcess:
        return


def main() -> None:
    """Prints the table."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--times", type=int, default=2)
    for name, value in {"task": "passkey,nll", "methods": "origin,mesa", "lengths": "512,1k", "samples": "4"}.items():
        command.add_argument(f"--{name}", default=value)
    args = command.parse_args()
    words = [word for name in ("task", "methods", "lengths", "samples") for word in (f"--{name}", getattr(args, name))]
    print(f"`mesa-lens eval {' '.join(words)}`\n")
    print("| who | cells | before the first (s) | cells (s) | cells an hour | CPU, all processes (s) | load |")
    print("|---|---|---|---|---|---|---|")
    paces: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(args.times):
        for name, way in WAYS.items():
            load, run = os.getloadavg()[0], timed(words, *way)
            paces[name].append(run.pace)
            loads = f"{load:.1f} to {os.getloadavg()[0]:.1f}"
            shown = f"{run.before:.0f} | {run.seconds:.0f} | {run.pace:.0f} | {run.cpu:.0f}"
            print(f"| {name} | {run.cells} | {shown} | {loads} |", flush=True)
    one, two = (paces[name] for name in WAYS)
    ratios = ", ".join(f"{b / a:.2f}" for a, b in zip(one, two, strict=True))
    print(f"\nWorkers' cells an hour over the process': {ratios}; of both together {sum(two) / sum(one):.2f}")


if __name__ == "__main__":
    main()
