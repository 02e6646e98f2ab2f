"""Tasks, and who runs them: workers, the threads that torch computes with, and what a run displays."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from mesa.errors import Failed, Refused
from mesa.progress import Bar

if TYPE_CHECKING:
    from probe.experiment.run import ModelSpec


# Tasks

Key = tuple[str | int, ...]
"""Names and numbers that tell a task from the others, such as task, method and length."""


@dataclass(frozen=True)
class Task:
    """A unit of work: its result depends on these values and on the model alone.

    memory_bytes: needed besides the weights; best_bytes: where it runs at full speed; result_bytes: size of its result.
    inputs: extra inputs, hashable; each yields one journal row. weight: its tokens, in passes of
    `length`.
    """

    kind: str
    key: Key
    memory_bytes: int = 0
    best_bytes: int = 0
    result_bytes: int = 0
    inputs: tuple[Any, ...] = ()
    weight: int = 1
    length: int = 0

    def __str__(self) -> str:
        """The key, in words."""
        return ", ".join(map(str, self.key))


@dataclass(frozen=True)
class TaskOutcome:
    """What came of a task: its value; an error, which ends the run; or why no worker could finish it (`lost`)."""

    value: Any = None
    error: Exception | None = None
    lost: str = ""


class TasksLost(Failed):
    """Tasks that no worker could finish; all others are done."""

    def __init__(self, message: str, keys: Sequence[Key]) -> None:
        super().__init__(message)
        self.keys = list(keys)


MeasureTask = Callable[[Task], Any]
"""What a worker does with a task."""


class Worker(Protocol):
    """What measures tasks: plain data, from which each process loads the model once."""

    @property
    def source(self) -> ModelSpec:
        """The model."""
        ...

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; returns the function that measures a task. memory_bytes: its limit; None: what is free."""
        ...


# What a run displays: a bar over all tasks and, with --verbose, a line a finished task; and its time limit


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
    with Bar(desc=title, unit=unit, unit_scale=unit == "token", smoothing=0.05) as bar, bar.ticking():
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


# Workers and their threads

_SECONDS = 0.2  # over which it is seen which CPUs are idle
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""The quota of a container: microseconds of CPU in a period, and the period; or `max`."""


def cpus() -> int:
    """CPUs that this process may use, by its affinity and its container's quota; at least 1."""
    return max(1, int(min(len(_affinity()), _quota())))


def idle_cpus() -> int:
    """Those of them that no process uses now; at least 1."""
    used = psutil.cpu_percent(_SECONDS, percpu=True)
    return max(1, cpus() - round(sum(used[cpu] for cpu in _affinity() if cpu < len(used)) / 100))


def worker_threads(workers: int, share_of: int, threads: int | None = None) -> int:
    """Threads of a worker: `threads`, else OMP_NUM_THREADS, else its share of so many CPUs."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    return threads or (int(variable) if variable.isdigit() and int(variable) else max(1, share_of // workers))


def check_threads(threads: int | None) -> None:
    """Raises Refused for more threads than CPUs."""
    if threads is not None and threads > cpus():
        raise Refused(f"--threads {threads} is above {cpus()}, the CPUs that this process may use")


@contextmanager
def computing(threads: int | None = None) -> Iterator[int]:
    """Torch has so many threads inside; gives their number.

    None: as many as torch has, which reads OMP_NUM_THREADS and MKL_NUM_THREADS, and at most one a CPU; without these
    variables one an idle CPU. Raises Refused for more threads than CPUs.
    """
    import torch

    check_threads(threads)
    before = torch.get_num_threads()
    most = min(before, cpus())
    if threads is None and most > 1 and not any(map(os.environ.get, ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))):
        threads = min(most, idle_cpus())
    torch.set_num_threads(threads or most)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def _quota() -> float:
    """CPUs that the container gives; inf: no limit."""
    try:
        quota, period = _CPU_MAX.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return float("inf")


TaskResult = tuple[Task, TaskOutcome | None]
"""A task and its outcome; None: it was not requested any more when its turn came."""


class Pool(Protocol):
    """Workers that are ready."""

    verbose: bool

    def results(
        self, tasks: Sequence[Task], progress: Progress, is_needed: Callable[[Task], bool], stop: Callable[[], bool]
    ) -> Iterator[TaskResult]:
        """Every task with its outcome, in their order, each as soon as its turn has come; raises a task's error then.

        A task that is not `is_needed`, as far as the outcomes before tell, is not begun; a result of one that was begun
        is dropped. Once `stop`, none is started after the first.
        """
        ...


class LocalPool:
    """This process as the one worker."""

    def __init__(self, measure: MeasureTask, verbose: bool = False) -> None:
        self._measure, self.verbose = measure, verbose

    def results(
        self, tasks: Sequence[Task], progress: Progress, is_needed: Callable[[Task], bool], stop: Callable[[], bool]
    ) -> Iterator[TaskResult]:
        """As for `Pool`."""
        for number, task in enumerate(tasks):
            if number and stop():
                return
            outcome = None
            if is_needed(task):
                progress.began(task)
                outcome = TaskOutcome(self._measure(task))
            progress.ended(task)
            yield task, outcome
            del outcome  # it may be large


@dataclass(frozen=True)
class Runner:
    """Who runs tasks; this one: this process. verbose: a line a finished task.

    address: of a Ray cluster; None: one is started on this machine. workers: None: as many as there are GPUs, else
    CPUs. gpus: a worker's; None: 1 where the model is placed on GPUs. threads: of this process, see `computing`, or of
    a worker, see `worker_threads`.
    """

    address: str | None = None
    workers: int | None = None
    gpus: float | None = None
    verbose: bool = False
    threads: int | None = None

    is_local = True

    def check(self, options: Mapping[str, object]) -> None:
        """Raises Refused for what cannot be. options: as for `mesa.load`."""
        check_threads(self.threads)
        for name, value in {"workers": self.workers, "gpus-per-worker": self.gpus}.items():
            if value is not None:
                raise Refused(f"--{name} {value} is for --runner ray; the local runner is this process")

    @contextmanager
    def pool(self, worker: Worker, tasks: Sequence[Task]) -> Iterator[Pool]:
        """Workers with the model loaded and memory for these tasks; they end with the context."""
        with computing(self.threads):
            yield LocalPool(worker.start(), self.verbose)


LOCAL = Runner()
"""This process."""
