"""A run whose cells draw numbers, so that workers load nothing: a row of each in a journal, its array in a file.

python drawn.py FOLDER ADDRESS WORKERS: on the Ray at an address.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from probe.cells.cell import Cell
from probe.cells.pool import run as run_in_turns
from probe.cells.runner import LOCAL, Runner
from probe.cells.watch import Watch
from probe.evaluation.journal import Journal
from probe.files import write
from probe.ownership import owned

CELLS = [Cell("drawn", ("crossed", number), gives=2**18) for number in range(12)]
JOURNAL = "cells.jsonl"


@dataclass(frozen=True)
class NoSource:
    """A model that is none. on_gpu: one that is asked onto GPUs."""

    on_gpu: bool = False
    weights_bytes = 0
    beside = ()

    def check(self):
        pass


NOTHING = NoSource()


@dataclass(frozen=True)
class Drawing:
    """Numbers by the cell's own; it takes a while, in which its worker may die."""

    source: NoSource = NOTHING

    def start(self, room=None):
        return self._draw

    def _draw(self, cell):
        rng = np.random.default_rng(cell.key[1])
        time.sleep(rng.uniform(0.05, 0.3))
        return {"crossing": rng.random()}, rng.random((64, 512))


def draw(folder: Path, runner: Runner = LOCAL) -> None:
    """Runs what the folder lacks."""
    with owned(folder):
        journal = Journal(folder / JOURNAL, {"cells": len(CELLS)})
        missing = [cell for cell in CELLS if cell.key not in journal.rows]
        with runner.pool(Drawing(), missing) as pool:
            for cell, outcome in run_in_turns(pool, missing, Watch(tqdm(disable=True), str, lambda cell: 1)):
                row, states = outcome.value
                write(folder / f"{cell.key[1]}.bin", states.tobytes())
                journal.add(cell.key, row)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Runner("ray", sys.argv[2], workers=int(sys.argv[3])))
