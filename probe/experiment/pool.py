"""Who runs the tasks: workers that are ready; this process as the only one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from probe.experiment.progress import Progress
from probe.experiment.task import MeasureTask, Task, TaskOutcome

TaskResult = tuple[Task, TaskOutcome | None]
"""A task and its outcome; None: it was not wanted any more when its turn came."""


class Pool(Protocol):
    """Workers that are ready."""

    verbose: bool

    def results(
        self, tasks: Sequence[Task], progress: Progress, wanted: Callable[[Task], bool], stop: Callable[[], bool]
    ) -> Iterator[TaskResult]:
        """Every task with its outcome, in their order, each as soon as its turn has come; raises a task's error then.

        A task that is not `wanted`, as far as the outcomes before tell, is not begun; the result of one that was begun
        is dropped. Once `stop`, none is begun after the first.
        """
        ...


class LocalPool:
    """This process as the one worker."""

    def __init__(self, measure: MeasureTask, verbose: bool = False) -> None:
        self._measure, self.verbose = measure, verbose

    def results(
        self, tasks: Sequence[Task], progress: Progress, wanted: Callable[[Task], bool], stop: Callable[[], bool]
    ) -> Iterator[TaskResult]:
        """As for `Pool`."""
        for number, task in enumerate(tasks):
            if number and stop():
                return
            outcome = None
            if wanted(task):
                progress.began(task)
                outcome = TaskOutcome(self._measure(task))
            progress.ended(task)
            yield task, outcome
            del outcome  # it may be large
