"""Workers as Ray actors, each with the model loaded once; only this process writes their results."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psutil
from tqdm import tqdm

from mesa.errors import Failed
from probe.experiment.pool import Queue
from probe.experiment.progress import Progress
from probe.experiment.ray_cluster import Resources, ray_at, worker_memory
from probe.experiment.task import MeasureTask, Task, TaskOutcome, Worker
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
    gpus_each: float | None,
    threads: int | None,
    *,
    verbose: bool,
) -> Iterator[RayPool]:
    """Workers of which at least one is ready; they end with the context, as does a cluster started for them.

    address, workers, gpus_each, threads: as in `Runner`. Raises MemoryError where not one worker can be placed, and
    what keeps workers from loading the model.
    """
    cpus = workers * worker_threads(workers, local_cpus(), threads) if workers else local_cpus()
    with ray_at(address, cpus, verbose=verbose) as ray:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cpus, gpus = (int(sum(node.get(name, 0) for node in nodes)) for name in ("CPU", "GPU"))
        a_gpu = float(worker.source.on_gpu) if gpus_each is None else gpus_each
        wanted = workers or max(1, int(gpus // a_gpu if a_gpu else cpus // worker_threads(cpus, cpus, threads)))
        takes = {"CPU": worker_threads(wanted, cpus, threads), "GPU": a_gpu, "memory": worker.source.weights_bytes}
        if a_gpu:  # tasks take memory of the GPUs, which workers report
            tasks = [replace(task, memory_bytes=0, best_bytes=0) for task in tasks]
        pool = RayPool(ray, worker, takes, *worker_memory(nodes, takes, wanted, tasks), verbose=verbose)
        try:
            pool.wait()
            yield pool
        finally:
            pool.close()


@dataclass(eq=False)
class Member:
    """A worker of a pool. call: what it is at, None: idle; task: None while it loads.

    budget: bytes beside the weights; below 0 before it was ready. deaths: as it loaded.
    """

    number: int
    actor: Any = None
    call: Any = None
    task: Task | None = None
    budget: int = -1
    deaths: int = 0


class RayPool:
    """So many workers on Ray, each with `beside` bytes beside the weights. those that die are replaced."""

    def __init__(self, ray: Any, worker: Worker, takes: Resources, count: int, beside: int, *, verbose: bool) -> None:
        self.ray, self.takes, self.verbose = ray, {**takes, "memory": takes["memory"] + beside}, verbose
        self._arguments = ray.put(worker), beside, int(takes["CPU"]), os.getcwd()
        self.max_ahead, self.ahead_bytes = _AHEAD * count, psutil.virtual_memory().available // _AHEAD_SHARE
        self.members = [self._loading(Member(number)) for number in range(1, count + 1)]

    def actor(self, number: int) -> Any:
        """A fresh actor for the worker of this number. Ray's own retries tell users of loads that a run's end stops."""
        cpus, gpus, memory = self.takes.values()
        return self.ray.remote(RayWorker).options(num_cpus=cpus, num_gpus=gpus, memory=memory).remote()

    def wait(self) -> None:
        """Returns once a worker has loaded the model; raises what keeps it from that."""
        while all(member.call for member in self.members):
            list(self._ended(_write))

    def run(self, queue: Queue, progress: Progress) -> Iterator[tuple[Task, TaskOutcome]]:
        """Outcomes, as they come. A task whose worker dies is begun again by any worker, `TRIES` times in all."""
        tries: Counter[Task] = Counter()
        while True:
            for member in self.members:
                if not member.call and (task := queue.take(member.budget)):
                    member.task, member.call = task, member.actor.run.remote(task)
                    progress.began(task, member.number)
            if not any(member.task for member in self.members):
                task = queue.take()
                if task is None:
                    return
                if not any(member.call for member in self.members):
                    needs, most = (size / 2**30 for size in (task.memory_bytes, max(m.budget for m in self.members)))
                    yield task, TaskOutcome(lost=f"it needs about {needs:.1f} GiB, the roomiest worker has {most:.1f}")
                    continue
                queue.put_back(task)  # for a worker that is loading
            for member, task, outcome in self._ended(progress.write):
                tries[task] += 1
                if outcome.lost and tries[task] < TRIES:
                    progress.write(f"worker {member.number}: {outcome.lost}; begun again: {task.key}")
                    queue.put_back(task)
                else:
                    yield task, outcome
                del outcome  # it may be large

    def close(self) -> None:
        """Ends the workers."""
        for member in self.members:
            self.ray.kill(member.actor)

    def _loading(self, member: Member) -> Member:
        """The member with a fresh actor, which begins to load."""
        member.actor = self.actor(member.number)
        member.call = member.actor.load.remote(*self._arguments)
        return member

    def _ended(self, write: Callable[[str], None]) -> Iterator[tuple[Member, Task, TaskOutcome]]:
        """The tasks that have ended and what came of them. A worker that died at one is replaced.

        Writes a message where none could be placed for a while. Raises the error that loading ended with, RuntimeError
        where all workers die at it or cannot return a result.
        """
        calls, errors = {member.call: member for member in self.members if member.call}, self.ray.exceptions
        done, _ = self.ray.wait(list(calls), num_returns=1, timeout=_PATIENCE)
        if not done and all(member.budget < 0 for member in self.members):
            takes = f"{self.takes['CPU']:g} CPUs, {self.takes['GPU']:g} GPUs"
            write(f"no worker is ready yet: each takes {takes} and loads the model; the cluster may be busy")
        for call in done:
            member = calls[call]
            task, member.task, member.call = member.task, None, None
            try:
                outcome: TaskOutcome = self.ray.get(call)
            except errors.RayTaskError as error:
                raise Failed(f"worker {member.number}: {_last_line(error)}") from error
            except errors.RayError as error:
                outcome = TaskOutcome(lost=f"its worker died ({_last_line(error)})")
                member.deaths += task is None
                self.ray.kill(member.actor)
                if member.deaths < TRIES:
                    self._loading(member)
                else:
                    self._drop(member, _last_line(error))
            if task is not None:
                yield member, task, outcome
            elif outcome.error:
                raise outcome.error
            elif not outcome.lost:
                (where, member.budget), member.deaths = outcome.value, 0
                if self.verbose:
                    room = f"{self.takes['CPU']:g} thread(s), {member.budget / 2**30:.1f} GiB beside the weights"
                    _write(f"worker {member.number}: {where}, {room}")

    def _drop(self, member: Member, reason: str) -> None:
        """Goes on without a worker. Raises RuntimeError where it was the last."""
        self.members.remove(member)
        message = f"worker {member.number} died {TRIES} times as it loaded the model ({reason})"
        if not self.members:
            raise Failed(f"{message}; no worker is left")
        _write(f"{message}; the other {len(self.members)} go on")


class RayWorker:
    """The actor. It returns errors, so that Ray's own errors mean that its process died."""

    _measure: MeasureTask

    def load(self, worker: Worker, memory_bytes: int, threads: int, folder: str) -> TaskOutcome:
        """Checks the model's fingerprints and loads it; gives where it runs, and its bytes beside the weights.

        folder: to work in, where it exists.
        """
        return _outcome(partial(self._load, worker, memory_bytes, threads, folder))

    def run(self, task: Task) -> TaskOutcome:
        """What comes of a task."""
        return _outcome(partial(self._measure, task))

    def _load(self, worker: Worker, memory_bytes: int, threads: int, folder: str) -> tuple[str, int]:
        if "torch" in sys.modules:  # a worker that needs torch has imported it
            sys.modules["torch"].set_num_threads(threads)
        if os.path.isdir(folder):
            os.chdir(folder)
        worker.source.check()
        self._measure = worker.start(None if worker.source.on_gpu else memory_bytes)
        if worker.source.on_gpu:
            import torch

            count = torch.accelerator.device_count()
            memory_bytes = sum(torch.accelerator.get_memory_info(device)[0] for device in range(count))
        return f"process {os.getpid()} on {platform.node()}", memory_bytes


def _outcome(compute: Callable[[], Any]) -> TaskOutcome:
    """What a call gives; an error without its traceback: of a package's type, as the built-in type below it."""
    try:
        return TaskOutcome(compute())
    except Exception as error:
        if type(error).__module__ == "builtins":
            return TaskOutcome(error=error.with_traceback(None))
        base: Any = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
        portable = base(str(error))
        portable.__notes__ = getattr(error, "__notes__", [])
        return TaskOutcome(error=portable)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()


def _write(text: str) -> None:
    tqdm.write(text, file=sys.stderr)
