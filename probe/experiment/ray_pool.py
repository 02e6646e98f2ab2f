"""Workers as Ray actors, each with the model loaded once; only this process writes their results."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import psutil
from tqdm import tqdm

from mesa.errors import Failed
from probe.experiment.pool import Queue
from probe.experiment.progress import Progress
from probe.experiment.ray_cluster import Share, memory_budgets, nodes_of, ray_at
from probe.experiment.task import Measure, Outcome, Task, Worker
from probe.experiment.threads import cpus as local_cpus
from probe.experiment.threads import worker_threads

TRIES = 3
"""How often a task is begun whose workers die, and how often a worker is started that dies while loading."""
_AHEAD = 16  # tasks a worker that may run or wait for their turn
_AHEAD_SHARE = 4  # their results take up to the free memory divided by this
_PATIENCE = 30.0  # seconds


@contextmanager
def ray_pool(
    worker: Worker,
    tasks: Sequence[Task],
    address: str | None,
    workers: int | None,
    gpus: float | None,
    threads: int | None,
    *,
    verbose: bool,
) -> Iterator[RayPool]:
    """Workers of which at least one is ready; they end with the context, as does a cluster started for them.

    address, workers, gpus, threads: as in `Runner`. Raises MemoryError where not one worker can be placed, and what
    keeps workers from loading the model.
    """
    cpus = workers * worker_threads(workers, local_cpus(), threads) if workers else local_cpus()
    with ray_at(address, cpus, verbose=verbose) as ray:
        nodes, gpus = nodes_of(ray), (1.0 if worker.source.on_gpu else 0.0) if gpus is None else gpus
        cpus = int(sum(node.cpus for node in nodes))
        slots = sum(node.gpus // gpus for node in nodes) if gpus else cpus // worker_threads(cpus, cpus, threads)
        count = workers or max(1, int(slots))
        share = Share(worker_threads(count, cpus, threads), gpus, worker.source.weights_bytes)
        if gpus:  # tasks take memory of the GPUs, which workers report
            tasks = [replace(task, memory_bytes=0, best_bytes=0) for task in tasks]
        pool = RayPool(ray, worker, share, memory_budgets(nodes, share, count, tasks), verbose=verbose)
        try:
            pool.wait()
            yield pool
        finally:
            pool.close()


class RayPool:
    """Workers on Ray. budgets: bytes beside the weights that each may take."""

    def __init__(self, ray: Any, worker: Worker, share: Share, budgets: Sequence[int], *, verbose: bool) -> None:
        self.ray, self.worker, self.share, self.verbose = ray, ray.put(worker), share, verbose
        self.max_ahead, self.ahead_bytes = _AHEAD * len(budgets), psutil.virtual_memory().available // _AHEAD_SHARE
        self.members = [Member(self, number, budget) for number, budget in enumerate(budgets, 1)]

    def wait(self) -> None:
        """Returns once a worker has loaded the model; raises what keeps it from that."""
        while not any(member.info for member in self.members):
            for member in self._finished(_write):
                member.finish()

    def run(self, queue: Queue, progress: Progress) -> Iterator[tuple[Task, Outcome]]:
        """Outcomes, as they come. A task whose worker dies is begun again, `TRIES` times in all."""
        tries: Counter[Task] = Counter()
        again: deque[Task] = deque()
        while True:
            self._assign(queue, again, progress)
            if not any(member.task for member in self.members):
                task = again.popleft() if again else queue.take()
                if task is None:
                    return
                if not any(member.call and member.budget >= task.memory_bytes for member in self.members):
                    yield task, Outcome(lost=self._too_large(task))
                    continue
                again.appendleft(task)  # for a worker that is loading
            for member in self._finished(progress.write):
                task, outcome = member.finish()
                if task is None:
                    continue
                tries[task] += 1
                if outcome.lost and tries[task] < TRIES:
                    progress.write(f"worker {member.number}: {outcome.lost}; begun again: {task.key}")
                    again.append(task)
                else:
                    yield task, outcome
                del outcome

    def drop(self, member: Member, reason: str) -> None:
        """Goes on without a worker. Raises RuntimeError where it was the last."""
        self.members.remove(member)
        message = f"worker {member.number} died {TRIES} times as it loaded the model ({reason})"
        if not self.members:
            raise Failed(f"{message}; no worker is left")
        _write(f"{message}; the other {len(self.members)} go on")

    def close(self) -> None:
        """Ends the workers."""
        for member in self.members:
            self.ray.kill(member.actor)

    def _assign(self, queue: Queue, again: deque[Task], progress: Progress) -> None:
        """Gives every idle worker a task that fits."""
        for member in self.members:
            if member.call is not None:
                continue
            task = next((task for task in again if task.memory_bytes <= member.budget), None)
            if task is not None:
                again.remove(task)
            else:
                task = queue.take(member.budget)
            if task is not None:
                member.begin(task)
                progress.began(task, member.number)

    def _finished(self, write: Callable[[str], None]) -> list[Member]:
        """Members whose call has ended; none, and a message, where none could be placed for a while."""
        calls = {member.call: member for member in self.members if member.call is not None}
        done, _ = self.ray.wait(list(calls), num_returns=1, timeout=_PATIENCE)
        if not done and not any(member.info for member in self.members):
            takes = f"{self.share.cpus:g} CPUs, {self.share.gpus:g} GPUs"
            write(f"no worker is ready yet: each takes {takes} and loads the model; the cluster may be busy")
        return [calls[call] for call in done]

    def _too_large(self, task: Task) -> str:
        most = max(member.budget for member in self.members)
        return f"it needs about {task.memory_bytes / 2**30:.1f} GiB, the roomiest worker has {most / 2**30:.1f}"


class Member:
    """A worker of a pool: its actor, and the call that it is at; no call: idle. info: None while it loads."""

    def __init__(self, pool: RayPool, number: int, budget: int) -> None:
        self.number, self.budget = number, budget
        self._pool, self._promised, self._deaths = pool, budget, 0
        self.task: Task | None = None
        self.start()

    def start(self) -> None:
        """A fresh actor, which begins to load."""
        pool, share = self._pool, self._pool.share
        actor = pool.ray.remote(RayWorker).options(
            num_cpus=share.cpus, num_gpus=share.gpus, memory=self._promised + share.weights
        )
        self.info: WorkerInfo | None = None
        self.actor: Any = actor.remote()
        self.call: Any = self.actor.load.remote(pool.worker, self._promised, int(share.cpus), os.getcwd())

    def begin(self, task: Task) -> None:
        """Begins a task."""
        self.task, self.call = task, self.actor.run.remote(task)

    def finish(self) -> tuple[Task | None, Outcome]:
        """The task that has ended, None for loading, and what came of it. A dead actor is replaced.

        Raises the error that loading ended with, RuntimeError where all workers die at it or cannot return a result.
        """
        task, call, self.task, self.call = self.task, self.call, None, None
        errors = self._pool.ray.exceptions
        try:
            outcome = self._pool.ray.get(call)
        except errors.RayTaskError as error:
            raise Failed(f"worker {self.number}: {_last_line(error)}") from error
        except errors.RayError as error:
            return task, self._replace(error, was_loading=task is None)
        if task is None:
            self._loaded(outcome)
        return task, outcome

    def _loaded(self, outcome: Outcome) -> None:
        if outcome.error:
            raise outcome.error
        info: WorkerInfo = outcome.value
        self.info, self.budget, self._deaths = info, info.memory_bytes, 0
        if self._pool.verbose:
            _write(
                f"worker {self.number}: process {info.pid} on {info.host}, {self._pool.share.cpus:g} thread(s), "
                f"{info.memory_bytes / 2**30:.1f} GiB beside the weights"
            )

    def _replace(self, error: Exception, *, was_loading: bool) -> Outcome:
        self._deaths += was_loading
        self._pool.ray.kill(self.actor)
        if self._deaths < TRIES:
            self.start()
        else:
            self._pool.drop(self, _last_line(error))
        return Outcome(lost=f"its worker died ({_last_line(error)})")


class WorkerInfo(NamedTuple):
    """Where a worker runs, and how many bytes it may take beside the weights."""

    pid: int
    host: str
    memory_bytes: int


class RayWorker:
    """The actor. It returns errors, so that Ray's own errors mean that its process died."""

    _measure: Measure

    def load(self, worker: Worker, memory_bytes: int, threads: int, folder: str) -> Outcome:
        """Checks the model's fingerprints and loads it; gives a `WorkerInfo`. folder: to work in, where it exists."""
        try:
            if "torch" in sys.modules:  # a worker that needs torch has imported it
                sys.modules["torch"].set_num_threads(threads)
            if os.path.isdir(folder):
                os.chdir(folder)
            worker.source.check()
            if not worker.source.on_gpu:
                self._measure = worker.start(memory_bytes)
            else:
                self._measure = worker.start()
                import torch

                memory_bytes = sum(torch.cuda.mem_get_info(device)[0] for device in range(torch.cuda.device_count()))
            return Outcome(WorkerInfo(os.getpid(), platform.node(), memory_bytes))
        except Exception as error:
            return Outcome(error=_portable(error))

    def run(self, task: Task) -> Outcome:
        """What comes of a task."""
        try:
            return Outcome(self._measure(task))
        except Exception as error:
            return Outcome(error=_portable(error))


def _portable(error: Exception) -> Exception:
    """The error without its traceback; of a package's type, as the built-in type below it, in the same words."""
    if type(error).__module__ == "builtins":
        return error.with_traceback(None)
    base: Any = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
    portable = base(str(error))
    portable.__notes__ = getattr(error, "__notes__", [])
    return portable


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()


def _write(text: str) -> None:
    tqdm.write(text, file=sys.stderr)
