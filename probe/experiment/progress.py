"""What a run displays: a bar over all tasks and, with --verbose, a line a finished task; and its time limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mesa.errors import Refused
from mesa.progress import Bar
from probe.experiment.task import Task


class Progress:
    """Moves a bar by a task's weight when it ends; lines go to stderr."""

    def __init__(self, bar: Bar, *, verbose: bool = False) -> None:
        self.bar, self.verbose = bar, verbose
        self._begun: dict[Task, tuple[int, float]] = {}
        self._ended: set[Task] = set()

    def expect(self, tasks: Sequence[Task]) -> None:
        """These tasks come next."""
        self.bar.total = self.bar.n + sum(task.weight for task in tasks)

    def began(self, task: Task, worker: int = 1) -> None:
        """A worker has started a task."""
        self._begun[task] = worker, time.monotonic()
        self.bar.set_postfix_str(str(task))

    def ended(self, task: Task) -> None:
        """A task has ended, or is left out; a second call changes nothing."""
        if task in self._ended:
            return
        self._ended.add(task)
        self.bar.update(task.weight)
        if self.verbose and task in self._begun:
            worker, since = self._begun[task]
            self.write(f"worker {worker}: {task} in {time.monotonic() - since:.1f} s")

    def write(self, text: str) -> None:
        """Writes a line above the bar."""
        self.bar.write(text, file=sys.stderr)


@contextmanager
def showing_progress(title: str, unit: str = "cell", *, verbose: bool = False) -> Iterator[Progress]:
    """The progress of a run. title: the bar's; unit: of a task's weight."""
    with Bar(desc=title, unit=unit, unit_scale=unit == "token", smoothing=0.05) as bar:
        yield Progress(bar, verbose=verbose)


def format_seconds(seconds: float) -> str:
    """A time in words, such as '4 min'; above 48 hours in days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds <= 48 * 3600 else f"{seconds / 86400:,.1f} days"


def deadline(minutes: float | None) -> float | None:
    """The time of `time.monotonic` after `minutes`; None: no limit. Raises Refused for 0 and less."""
    if minutes is None:
        return None
    if not minutes > 0:
        raise Refused(f"--minutes {minutes:g} is not above 0")
    return time.monotonic() + 60 * minutes


def is_over(until: float | None) -> bool:
    """Whether a `deadline` has passed."""
    return until is not None and time.monotonic() >= until
