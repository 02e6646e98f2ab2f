"""The runner on Ray: how many workers of what size, on a cluster of its own or one that is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from probe.cells.cell import Cell, Work
from probe.cells.cluster import cores, nodes_of, ray_at, threads_each
from probe.cells.crew import Crew
from probe.cells.rooms import Share, rooms

if TYPE_CHECKING:
    from probe.cells.runner import Runner


@contextmanager
def ray_pool(runner: Runner, work: Work, cells: Sequence[Cell]) -> Iterator[Crew]:
    """Workers of whom one is ready at least; gone at the end, with the cluster where it was started for them.

    Raises MemoryError where not one worker can be placed, and what keeps workers from loading the model.
    """
    wanted = runner.workers or cores()
    with ray_at(runner.address, wanted * threads_each(wanted, cores()), verbose=runner.verbose) as ray:
        nodes, gpus = nodes_of(ray), (1.0 if work.source.on_gpu else 0.0) if runner.gpus is None else runner.gpus
        cpus = int(sum(node.cpus for node in nodes))
        asked = runner.workers or max(1, int(sum(node.gpus // gpus for node in nodes)) if gpus else cpus)
        share = Share(threads_each(asked, cpus), gpus, work.source.weights_bytes)
        if gpus:  # what cells need is the GPUs', and workers tell what these have free
            cells = [replace(cell, needs=0, best=0) for cell in cells]
        crew = Crew(ray, work, share, rooms(nodes, share, asked, cells), verbose=runner.verbose)
        try:
            crew.wait()
            yield crew
        finally:
            crew.close()
