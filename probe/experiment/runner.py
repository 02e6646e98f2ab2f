"""Who runs tasks: this process, or workers, as on Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mesa.errors import Refused
from probe.experiment.pool import LocalPool, Pool
from probe.experiment.task import Task, Worker
from probe.experiment.threads import check_threads, computing


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
