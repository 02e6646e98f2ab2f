"""Who runs tasks: this process, or workers on Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mesa.errors import Refused
from probe.experiment.pool import LocalPool, Pool
from probe.experiment.task import Task, Worker
from probe.experiment.threads import check_threads, computing


@dataclass(frozen=True)
class Runner:
    """Who runs tasks. kind: 'local' or 'ray'. address: of a Ray cluster; None: one is started on this machine.

    workers: None: as many as there are GPUs, else CPUs. gpus: a worker's; None: 1 where the model is placed on GPUs.
    verbose: a line a finished task. threads: of this process, see `computing`, or of a worker, see `worker_threads`.
    """

    kind: str = "local"
    address: str | None = None
    workers: int | None = None
    gpus: float | None = None
    verbose: bool = False
    threads: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether this process runs the tasks."""
        return self.kind == "local"

    def check(self, options: Mapping[str, Any]) -> None:
        """Raises Refused for what cannot be. options: as for `mesa.load`."""
        if self.address is None:
            check_threads(self.threads)
        if self.is_local:
            for name, value in {"workers": self.workers, "gpus-per-worker": self.gpus}.items():
                if value is not None:
                    raise Refused(f"--{name} {value} is for --runner ray; the local runner is this process")
            return
        from probe.experiment.ray_cluster import check_ray

        check_ray(self.gpus, options)

    @contextmanager
    def pool(self, worker: Worker, tasks: Sequence[Task]) -> Iterator[Pool]:
        """Workers with the model loaded and memory for these tasks; they end with the context."""
        if self.is_local:
            with computing(self.threads):
                yield LocalPool(worker.start(), self.verbose)
            return
        from probe.experiment.ray_pool import ray_pool

        options = self.address, self.workers, self.gpus, self.threads
        with ray_pool(worker, tasks, *options, verbose=self.verbose) as pool:
            yield pool


LOCAL = Runner()
"""This process."""
