"""A runner that does what one on other machines does, in this process; and what a run gave but for its times."""

import csv
import json
import pickle
import random
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from probe.experiment.pool import Runner, TaskOutcome


class Scattered:
    """Runs some cells at once, and ends them in a seeded order; those of `lost` cannot be finished."""

    verbose = False

    def __init__(self, function, seed, lost):
        self.function, self.lost, self.draw = function, lost, random.Random(seed)

    def results(self, cells, progress, is_needed, stop):
        for start in range(0, len(cells), 5):
            batch = cells[start : start + 5]
            outcomes = {
                cell: self._outcome(cell)
                for cell in self.draw.sample(batch, len(batch))
                if is_needed(cell) and not (stop() and cell != cells[0])
            }
            for cell in batch:
                progress.ended(cell)
                if not is_needed(cell):
                    yield cell, None
                elif cell in outcomes:
                    if outcomes[cell].error:
                        raise outcomes[cell].error
                    yield cell, outcomes[cell]

    def _outcome(self, cell):
        if cell.key in self.lost:
            return TaskOutcome(lost="its process died")
        try:
            return pickle.loads(pickle.dumps(TaskOutcome(self.function(pickle.loads(pickle.dumps(cell))))))
        except Exception as error:
            return TaskOutcome(error=error)


@dataclass(frozen=True)
class Elsewhere(Runner):
    """The work is carried to it, and what it gives is carried back."""

    is_local = False

    seed: int = 0
    lost: tuple[tuple[str | int, ...], ...] = ()

    def check(self, options):
        pass

    @contextmanager
    def pool(self, work, cells):
        work.source.check()
        yield Scattered(pickle.loads(pickle.dumps(work)).start(2**33), self.seed, self.lost)


def journal(path: Path) -> list:
    """The lines of a journal without check sums, times and peaks."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for name in ("crc32", "peak_mib"):
            row.pop(name, None)
        for score in row.get("scores", []):
            if isinstance(score, dict):
                score.pop("seconds")
    return rows


def table(path: Path) -> list:
    """The rows of samples.csv without times and peaks."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return [{name: row[name] for name in row if name not in ("seconds", "peak_mib")} for row in rows]


def same_evaluation(one: Path, other: Path) -> None:
    """Asserts that two evaluations gave the same, in the same order."""
    assert journal(one / "journal.jsonl") == journal(other / "journal.jsonl")
    assert table(one / "samples.csv") == table(other / "samples.csv")
    assert (one / "summary.json").read_bytes() == (other / "summary.json").read_bytes()
