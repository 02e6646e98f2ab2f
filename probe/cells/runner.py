"""Who runs cells: this process, or workers on Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from probe.cells.cell import Cell, Work
from probe.cells.local import Local
from probe.cells.pool import Pool
from probe.cells.threads import check_threads, computing


@dataclass(frozen=True)
class Runner:
    """What is asked for. kind: 'local' or 'ray'. address: of a Ray cluster; None: one of its own, on this machine.

    workers: how many; None: as many as there are GPUs, else CPUs. gpus: a worker's; None: 1 where the model is asked
    onto GPUs. verbose: a line a finished cell. threads: of this process, or of a worker; None: of this process as in
    `computing`, of a worker as in `threads_each`.
    """

    kind: str = "local"
    address: str | None = None
    workers: int | None = None
    gpus: float | None = None
    verbose: bool = False
    threads: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether this process runs the cells."""
        return self.kind == "local"

    def check(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError for what cannot be. options: as for `mesa.load`."""
        if self.address is None:
            check_threads(self.threads)
        if self.is_local:
            for name, value in {"workers": self.workers, "gpus-per-worker": self.gpus}.items():
                if value is not None:
                    raise ValueError(f"--{name} {value} is for --runner ray; the local runner is this process")
            return
        from probe.cells.cluster import check_ray

        check_ray(self.gpus, options)

    @contextmanager
    def pool(self, work: Work, cells: Sequence[Cell]) -> Iterator[Pool]:
        """Workers with the model loaded, for these cells; gone at the end."""
        if self.is_local:
            with computing(self.threads):
                yield Local(work.start(), self.verbose)
            return
        from probe.cells.on_ray import ray_pool

        how = self.address, self.workers, self.gpus, self.threads
        with ray_pool(work, cells, *how, verbose=self.verbose) as pool:
            yield pool


LOCAL = Runner()
"""This process."""
