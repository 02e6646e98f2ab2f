"""A pool of workers, the one in this process, and results in the order of the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from probe.experiment.progress import Progress
from probe.experiment.task import MeasureTask, Task, TaskOutcome

TaskResult = tuple[Task, TaskOutcome | None]
"""A task and its outcome; None: it was not wanted any more when its turn came."""


class Pool(Protocol):
    """Workers that are ready.

    max_ahead, ahead_bytes: how many tasks, and bytes of results, may be running or waiting for their turn.
    """

    max_ahead: int
    ahead_bytes: int
    verbose: bool

    def run(self, queue: Queue, progress: Progress) -> Iterator[tuple[Task, TaskOutcome]]:
        """Runs what `queue` gives until it gives nothing; outcomes in any order."""
        ...


class LocalPool:
    """This process as the one worker. An error of a task is raised at once."""

    max_ahead, ahead_bytes = 1, 0

    def __init__(self, measure: MeasureTask, verbose: bool = False) -> None:
        self._measure, self.verbose = measure, verbose

    def run(self, queue: Queue, progress: Progress) -> Iterator[tuple[Task, TaskOutcome]]:
        """Outcomes, in the tasks' order."""
        while task := queue.take():
            progress.began(task)
            yield task, TaskOutcome(self._measure(task))


def ordered_results(
    pool: Pool,
    tasks: Sequence[Task],
    progress: Progress,
    *,
    wanted: Callable[[Task], bool] = lambda task: True,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[TaskResult]:
    """Every task with its outcome, in their order, each as soon as its turn has come; raises a task's error then.

    A task that is not `wanted`, as far as the outcomes due so far tell, is not begun; the result of one that was begun
    is dropped. Once `stop`, none is begun after the first.
    """
    queue = Queue(tasks, pool.max_ahead, pool.ahead_bytes, wanted, stop)
    for ended in chain(pool.run(queue, progress), [None]):
        if ended:
            queue.end(*ended)
            progress.ended(ended[0])
        del ended  # it may be large
        for task, outcome in queue.due():
            progress.ended(task)
            if outcome and outcome.error:
                raise outcome.error
            yield task, outcome
            del outcome


class Queue:
    """Which task begins next, and whose outcome is due.

    max_ahead, ahead_bytes: as of `Pool`, beside the task whose turn it is. wanted, stop: as of `ordered_results`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        max_ahead: int = 1,
        ahead_bytes: int = 0,
        wanted: Callable[[Task], bool] = lambda task: True,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._tasks, self._wanted, self._stop = list(tasks), wanted, stop
        self._max_ahead, self._ahead_bytes = max_ahead, ahead_bytes
        self._waiting = dict.fromkeys(self._tasks)
        self._running: set[Task] = set()
        self._ended: dict[Task, TaskOutcome | None] = {}
        self._turn = 0

    def take(self, memory_bytes: int | None = None) -> Task | None:
        """The next task to begin, of those that need at most `memory_bytes`; None: none for now."""
        for task in list(self._waiting):
            if memory_bytes is not None and task.memory_bytes > memory_bytes:
                continue
            if len(self._waiting) < len(self._tasks) and self._stop():
                self._waiting.clear()
                return None
            if self._wanted(task):
                if self._is_full(task):
                    return None
                del self._waiting[task]
                self._running.add(task)
                return task
            del self._waiting[task]
            self._ended[task] = None
        return None

    def end(self, task: Task, outcome: TaskOutcome) -> None:
        """Stores what came of a task until it is due."""
        self._running.remove(task)
        self._ended[task] = outcome

    def put_back(self, task: Task) -> None:
        """Takes back a task that was not run: the next to begin."""
        self._running.remove(task)
        self._waiting = {task: None, **self._waiting}

    def due(self) -> Iterator[TaskResult]:
        """The outcomes of all tasks before the first that waits or runs."""
        while self._turn < len(self._tasks):
            task = self._tasks[self._turn]
            if task in self._waiting or task in self._running:
                return
            self._turn += 1
            if task in self._ended:
                outcome = self._ended.pop(task)
                yield task, outcome if self._wanted(task) else None
                del outcome  # it may be large

    def _is_full(self, task: Task) -> bool:
        """Whether a task has to wait; the one whose turn it is never does."""
        ahead = [*self._running, *(other for other, outcome in self._ended.items() if outcome)]
        size = sum(other.result_bytes for other in ahead) + task.result_bytes
        first = next(task for task in self._tasks[self._turn :] if task not in self._ended)
        return bool(ahead) and (len(ahead) >= self._max_ahead or size > self._ahead_bytes) and task != first
