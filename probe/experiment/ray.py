"""Workers on Ray: the cluster, its memory shared out among workers, and the pool."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import platform
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from typing import Any, NamedTuple

from mesa.errors import Failed, Refused, install_command
from mesa.progress import Bar
from probe.experiment import pool as threads
from probe.experiment.pool import Progress, Runner, Task, TaskOutcome, TaskResult, Worker

_OFF = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_LOCAL_CLUSTER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
"""For a cluster on this machine: it is 127.0.0.1 on any system, and workers are as urgent as this process."""


@contextmanager
def ray_at(address: str | None, cpus: int, *, verbose: bool) -> Iterator[Any]:
    """The module ray, connected to the cluster at `address`; None: to a new one with `cpus` CPUs, which ends with this.

    An existing connection is used as it is. What Ray prints goes to stderr with `verbose`, else nowhere.
    """
    os.environ.update({**_OFF, **({} if address else _LOCAL_CLUSTER)})
    ray = importlib.import_module("ray")
    if ray.is_initialized():
        yield ray
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mesa-lens-ray-", ignore_cleanup_errors=True))
        stack.enter_context(redirect_stdout(sys.stderr if verbose else stack.enter_context(open(os.devnull, "w"))))
        stack.callback(ray.shutdown)
        new = {} if address else {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": folder}
        former, level = signal.getsignal(signal.SIGTERM), "INFO" if verbose else "ERROR"
        try:
            ray.init(address=address or "local", **new, log_to_driver=verbose, logging_level=level)
        except Exception as error:  # Ray's own are of no kind
            reason = " ".join(str(error).split())
            here = f"--runner ray: Ray does not start here ({reason})"
            there = f"--runner ray:{address}: no Ray cluster there ({reason}); see `ray start --help`"
            raise (ConnectionError(there) if address else Failed(here)) from error
        finally:
            with suppress(ValueError):  # in another thread than the main one; Ray's ends a command without a message
                signal.signal(signal.SIGTERM, former)
        if address is None and any(node["NodeManagerAddress"] != "127.0.0.1" for node in ray.nodes()):
            raise Failed("Ray would not bind to 127.0.0.1 alone; import mesa-lens' runner before ray")
        yield ray


class Resources(NamedTuple):
    """What a machine has, or a worker takes; memory in bytes."""

    cpus: float
    gpus: float
    memory: float


def slots(nodes: Sequence[Resources], takes: Resources, extra: float) -> int:
    """How many workers that take this, and `extra` bytes more, the machines hold."""
    needs = takes._replace(memory=takes.memory + extra)
    return sum(min(_shares(has, need) for has, need in zip(node, needs, strict=True) if need) for node in nodes)


def _shares(has: float, need: float) -> int:
    """How many workers' shares there are: five of 0.2 in 1, where 1 // 0.2 is 4."""
    return math.floor(has / need + 1e-9)


def worker_memory(nodes: Sequence[Resources], takes: Resources, workers: int, tasks: Sequence[Task]) -> tuple[int, int]:
    """How many workers have a place, at most `workers`, and the bytes that each has in addition to the weights.

    Enough for the largest task and, up to the largest `best_bytes`, what costs no worker. Where no machine holds the
    largest task, one worker has the largest machine. Raises MemoryError where that does not hold the smallest task.
    """
    needs, weights = [task.memory_bytes for task in tasks] or [0], int(takes.memory)
    least, most = max(needs), max(needs + [task.best_bytes for task in tasks])
    if count := min(workers, slots(nodes, takes, least)):
        parts = [int(node.memory) // part - weights for node in nodes for part in range(1, count + 1)]
        return count, max(size for size in (least, most, *parts) if size <= most and slots(nodes, takes, size) >= count)
    if slots(nodes, takes, min(needs)):
        return 1, int(max(node.memory for node in nodes)) - weights
    have = "; ".join(f"{node.cpus:g} CPUs, {node.gpus:g} GPUs, {node.memory / 2**30:.1f} GiB" for node in nodes)
    raise MemoryError(
        f"a worker takes {takes.cpus:g} CPUs, {takes.gpus:g} GPUs, about {(weights + min(needs)) / 2**30:.1f} GiB"
        f" for weights and the smallest cell, the machines have {have}; shorten --lengths or take larger machines"
    )


TRIES = 3
"""How often a task is started whose workers die, and how often a worker is started that dies while loading."""
_AHEAD, _AHEAD_SHARE = 16, 4  # tasks a worker that run or wait for their turn; free memory over that of their results
_PATIENCE = 30.0  # seconds


class RayRunner(Runner):
    """Workers on Ray."""

    is_local = False

    def check(self, options: Mapping[str, object]) -> None:
        """Raises Refused where Ray is missing, or where workers have no such device."""
        if self.address is None:
            threads.check_threads(self.threads)
        if importlib.util.find_spec("ray") is None:
            raise Refused(f"--runner ray needs Ray, which is not installed; {install_command('ray')}")
        gpus, device, device_map = self.gpus, str(options.get("device") or "cpu"), options.get("device_map")
        if gpus and not device_map and device.startswith("cpu"):
            raise Refused(f"--gpus-per-worker {gpus:g} with --device {device}; give --device cuda or --device-map auto")
        if not device_map and re.fullmatch(r"cuda:[1-9][0-9]*", device):
            raise Refused(f"--device {device} with --runner ray: a worker sees its own GPUs alone; give --device cuda")

    @contextmanager
    def pool(self, worker: Worker, tasks: Sequence[Task]) -> Iterator[RayPool]:
        """One worker at least is ready. Raises MemoryError where none can be placed, and what stops all loading."""
        workers, share = self.workers, partial(threads.worker_threads, threads=self.threads)
        cpus = workers * share(workers, threads.cpus()) if workers else threads.cpus()
        with ray_at(self.address, cpus, verbose=self.verbose) as ray:
            alive = [node["Resources"].get for node in ray.nodes() if node["Alive"]]
            nodes = [Resources(get("CPU", 0), get("GPU", 0), get("memory", 0)) for get in alive]
            cpus, gpus = int(sum(node.cpus for node in nodes)), sum(node.gpus for node in nodes)
            a_gpu = float(worker.source.on_gpu) if self.gpus is None else self.gpus
            requested = workers or max(1, _shares(gpus, a_gpu) if a_gpu else cpus // share(cpus, cpus))
            takes = Resources(share(requested, cpus), a_gpu, worker.source.weights_bytes)
            in_memory = [] if a_gpu else tasks  # others take memory of the GPUs, which workers report
            pool = RayPool(ray, worker, takes, *worker_memory(nodes, takes, requested, in_memory), verbose=self.verbose)
            try:
                pool.wait()
                yield pool
            finally:
                for actor in pool.actors.values():
                    ray.kill(actor)


class RayPool:
    """So many workers on Ray, each with `extra` bytes in addition to the weights; those that die are replaced.

    A task whose worker dies is started again by any worker. Ray's own restarts hide why a process died, and its retries
    wait for the same worker, whose machine may be gone.
    """

    def __init__(self, ray: Any, worker: Worker, takes: Resources, count: int, extra: int, *, verbose: bool) -> None:
        from mesa.device import free_bytes  # with torch, which clusters and plans do without

        self.ray, self.takes, self.verbose = ray, takes._replace(memory=takes.memory + extra), verbose
        self.max_ahead, self.ahead_bytes = _AHEAD * count, free_bytes() // _AHEAD_SHARE
        self._arguments = ray.put(worker), extra, int(takes.cpus), os.getcwd()
        self.actors: dict[int, Any] = {}
        self._calls: dict[Any, tuple[int, Task | None]] = {}  # of which worker, at what; None: it loads the model
        self._budgets: dict[int, int] = {}  # bytes in addition to the weights, of those that were ready
        self._waiting, self._begun = list[Task](), dict[Task, TaskOutcome | None]()  # started: None while it runs
        self._deaths = Counter[Task | int]()
        for number in range(1, count + 1):
            self._start(number)

    def wait(self) -> None:
        """Returns once a worker has loaded the model; raises what keeps it from that."""
        while len(self._calls) == len(self.actors):
            self._ended(Progress(Bar(disable=True)))

    def results(
        self, tasks: Sequence[Task], progress: Progress, is_needed: Callable[[Task], bool], stop: Callable[[], bool]
    ) -> Iterator[TaskResult]:
        """As for `Pool`. At most `max_ahead` tasks and `ahead_bytes` of results run or wait for their turn."""
        self._waiting, self._begun = waiting, begun = list(tasks), {}
        for due in tasks:
            while True:
                for task in list(waiting):
                    if task != tasks[0] and stop():
                        waiting.clear()
                        break
                    size = sum(other.result_bytes for other in [*begun, task])
                    is_full = begun and (len(begun) >= self.max_ahead or size > self.ahead_bytes)
                    if len(self._calls) == len(self.actors) or (is_full and task != due):
                        break  # before it is asked, for what is needed now may not fit later
                    if is_needed(task) and not self._begin(task, progress):
                        continue
                    waiting.remove(task)
                if due not in waiting and begun.get(due, True):
                    break
                self._ended(progress)
            needed, outcome = is_needed(due), begun.pop(due, None)
            if outcome or not needed:
                progress.ended(due)
                if outcome and outcome.error and needed:
                    raise outcome.error
                yield due, outcome if needed else None
                del outcome  # it may be large

    def _begin(self, task: Task, progress: Progress) -> bool:
        """Whether an idle worker has started it; one that no worker has room for is lost at once."""
        for number in self.actors.keys() - {number for number, _ in self._calls.values()}:
            if task.memory_bytes <= self._budgets[number]:
                self._calls[self.actors[number].run.remote(task)] = number, task
                self._begun[task] = None
                progress.began(task, number)
                return True
        if not self._calls:
            needs, most = task.memory_bytes / 2**30, max(self._budgets[number] for number in self.actors) / 2**30
            self._begun[task] = TaskOutcome(lost=f"it needs about {needs:.1f} GiB, the roomiest worker has {most:.1f}")
        return not self._calls

    def _ended(self, progress: Progress) -> None:
        """Waits for a worker, for a while. Raises the error that loading ended with, Failed where all die at it."""
        done, _ = self.ray.wait(list(self._calls), num_returns=1, timeout=_PATIENCE)
        if not done:
            if not self._budgets:
                takes = f"{self.takes.cpus:g} CPUs, {self.takes.gpus:g} GPUs"
                progress.write(
                    f"no worker is ready yet: each takes {takes} and loads the model; the cluster may be busy"
                )
            return
        (number, task), errors = self._calls.pop(done[0]), self.ray.exceptions
        try:
            value = self.ray.get(done[0])
        except (errors.RayTaskError, errors.UnserializableException) as error:
            own = getattr(error, "cause", error)
            if not task:
                raise own from None
            self._begun[task] = TaskOutcome(error=own)
        except errors.RayError as error:
            self._died(number, task, str(error).strip().splitlines()[-1].strip(), progress)
        else:
            if task:
                self._begun[task] = TaskOutcome(value)
                progress.ended(task)
                return
            where, self._budgets[number] = value
            self._deaths[number] = 0
            if self.verbose:
                room = f"{self.takes.cpus:g} thread(s), {self._budgets[number] / 2**30:.1f} GiB besides the weights"
                progress.write(f"worker {number}: {where}, {room}")

    def _start(self, number: int) -> None:
        """A fresh worker of this number begins to load."""
        cpus, gpus, memory = self.takes
        self.actors[number] = self.ray.remote(RayWorker).options(num_cpus=cpus, num_gpus=gpus, memory=memory).remote()
        self._calls[self.actors[number].load.remote(*self._arguments)] = number, None

    def _died(self, number: int, task: Task | None, reason: str, progress: Progress) -> None:
        """Goes on with a fresh worker, or without it where it died as it loaded."""
        self.ray.kill(self.actors.pop(number))
        self._deaths[task or number] += 1
        again = self._deaths[task or number] < TRIES
        if task or again:
            self._start(number)
        if task and again:
            del self._begun[task]
            self._waiting.insert(0, task)
            progress.write(f"worker {number}: its worker died ({reason}); begun again: {task.key}")
        elif task:
            self._begun[task] = TaskOutcome(lost=f"its worker died ({reason})")
        elif not again:
            message = f"worker {number} died {TRIES} times as it loaded the model ({reason})"
            if not self.actors:
                raise Failed(f"{message}; no worker is left")
            progress.write(f"{message}; the other {len(self.actors)} go on")


class RayWorker:
    """The actor."""

    def load(self, worker: Worker, memory_bytes: int, threads: int, folder: str) -> tuple[str, int]:
        """Checks the model's fingerprints and loads it; gives where it runs, and its bytes besides the weights."""
        if "torch" in sys.modules:  # a worker that needs torch has imported it
            sys.modules["torch"].set_num_threads(threads)
        if os.path.isdir(folder):
            os.chdir(folder)
        worker.source.check()
        self._measure = worker.start(None if worker.source.on_gpu else memory_bytes)
        if worker.source.on_gpu:
            from torch import accelerator

            memory_bytes = sum(accelerator.get_memory_info(n)[0] for n in range(accelerator.device_count()))
        return f"process {os.getpid()} on {platform.node()}", memory_bytes

    def run(self, task: Task) -> Any:
        """What is measured of a task."""
        return self._measure(task)
