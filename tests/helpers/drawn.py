"""A run whose cells draw numbers, so that workers load nothing: a row of each in a journal, its array in a file.

python drawn.py FOLDER ADDRESS WORKERS: on the Ray at an address.
"""

import importlib.util
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mesa.progress import Bar
from probe.experiment.journal import Journal
from probe.experiment.lock import owned
from probe.experiment.pool import LOCAL, Progress, Runner, Task
from probe.experiment.ray import RayRunner
from probe.files import write

TASKS = [Task("drawn", ("crossed", number), result_bytes=2**18) for number in range(12)]
JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class NoSource:
    """A model that is none. on_gpu: one that is asked onto GPUs."""

    on_gpu: bool = False
    weights_bytes = 0
    others = ()

    def check(self):
        pass


NOTHING = NoSource()
NEEDS_RAY = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is an extra"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of whatever version
]


def outcomes(pool, tasks, progress=None, *, is_needed=lambda task: True, stop=lambda: False):
    """The results of a pool, by default of all tasks."""
    return pool.results(tasks, progress or Progress(Bar(disable=True)), is_needed, stop)


def results(pool, tasks):
    """What comes of the tasks, in their order: values, or why one was lost."""
    return [outcome.lost or outcome.value for _, outcome in outcomes(pool, tasks)]


@dataclass(frozen=True)
class Drawing:
    """Numbers by the cell's own; it takes a while, in which its worker may die."""

    source: NoSource = NOTHING

    def start(self, memory_bytes=None):
        return self._draw

    def _draw(self, cell):
        rng = np.random.default_rng(cell.key[1])
        time.sleep(rng.uniform(0.05, 0.3))
        return {"crossing": rng.random()}, rng.random((64, 512))


def draw(folder: Path, runner: Runner = LOCAL) -> None:
    """Runs what the folder lacks."""
    with owned(folder):
        journal = Journal(folder / JOURNAL, {"model": "none", "cells": len(TASKS)})
        missing = [cell for cell in TASKS if cell.key not in journal.rows]
        with runner.pool(Drawing(), missing) as pool:
            for cell, outcome in outcomes(pool, missing):
                row, states = outcome.value
                write(folder / f"{cell.key[1]}.bin", states.tobytes())
                journal.add(cell.key, row)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), RayRunner(sys.argv[2], workers=int(sys.argv[3])))
