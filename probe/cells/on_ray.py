"""The runner on Ray: how many workers of what size, on a cluster of its own or one that is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from probe.cells.cell import Cell, Work
from probe.cells.cluster import nodes_of, ray_at
from probe.cells.crew import Crew
from probe.cells.rooms import Share, rooms
from probe.cells.threads import cpus as cpus_here
from probe.cells.threads import threads_each


@contextmanager
def ray_pool(
    work: Work,
    cells: Sequence[Cell],
    address: str | None,
    workers: int | None,
    gpus: float | None,
    threads: int | None,
    *,
    verbose: bool,
) -> Iterator[Crew]:
    """Workers of whom one is ready at least; gone at the end, with the cluster where it was started for them.

    address, workers, gpus, threads: as in `Runner`. Raises MemoryError where not one worker can be placed, and what
    keeps workers from loading the model.
    """
    own = workers * threads_each(workers, cpus_here(), threads) if workers else cpus_here()
    with ray_at(address, own, verbose=verbose) as ray:
        nodes, each = nodes_of(ray), (1.0 if work.source.on_gpu else 0.0) if gpus is None else gpus
        cpus = int(sum(node.cpus for node in nodes))
        places = sum(node.gpus // each for node in nodes) if each else cpus // threads_each(cpus, cpus, threads)
        asked = workers or max(1, int(places))
        share = Share(threads_each(asked, cpus, threads), each, work.source.weights_bytes)
        if each:  # what cells need is the GPUs', and workers tell what these have free
            cells = [replace(cell, needs=0, best=0) for cell in cells]
        crew = Crew(ray, work, share, rooms(nodes, share, asked, cells), verbose=verbose)
        try:
            crew.wait()
            yield crew
        finally:
            crew.close()
