"""How the memory of machines is shared out among workers, so that none is sent what cannot fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probe.cells.cell import Cell


@dataclass(frozen=True)
class Node:
    """A machine: its CPUs, GPUs, and memory in bytes."""

    cpus: float
    gpus: float
    memory: int


@dataclass(frozen=True)
class Share:
    """What every worker takes: CPUs (its threads), GPUs, and bytes of weights."""

    cpus: float
    gpus: float
    weights: int

    def slots(self, node: Node) -> int:
        """How many workers a machine has CPUs and GPUs for."""
        return int(min(node.cpus // self.cpus, node.gpus // self.gpus if self.gpus else node.cpus // self.cpus))


def rooms(nodes: Sequence[Node], share: Share, workers: int, cells: Sequence[Cell]) -> list[int]:
    """Bytes beside the weights for each worker, the roomiest first; fewer than `workers` where no more can be placed.

    A machine is shared out alike among its workers, of which there are only as many as leaves each the room of the
    smallest cell. Where the largest cell fits in no such share, one worker on the largest machine has the room for it.
    Nobody has more than the best of any cell. Raises MemoryError where not one worker can be placed.
    """
    least, largest = min(cell.needs for cell in cells), max(cell.needs for cell in cells)
    most = max(largest, *(cell.best for cell in cells))
    count = [0] * len(nodes)
    for _ in range(workers):
        left = [node.memory // (count[at] + 1) - share.weights for at, node in enumerate(nodes)]
        free = [at for at, node in enumerate(nodes) if count[at] < share.slots(node) and left[at] >= least]
        if not free:
            break
        count[max(free, key=left.__getitem__)] += 1
    if not any(count):
        raise MemoryError(_none(nodes, share, least))
    found = [_alike(node, share, many, most) for node, many in zip(nodes, count, strict=True) if many]
    if max(map(max, found)) < largest:
        at = max((at for at, many in enumerate(count) if many), key=lambda at: nodes[at].memory)
        found[sum(map(bool, count[:at]))] = _with_large(nodes[at], share, count[at], least, largest)
    return sorted((room for each in found for room in each), reverse=True)


def _alike(node: Node, share: Share, many: int, most: int) -> list[int]:
    return [min(most, node.memory // many - share.weights)] * many


def _with_large(node: Node, share: Share, many: int, least: int, largest: int) -> list[int]:
    """One worker with the room of the largest cell, or all there is; the others, where they fit, share what is left."""
    first = min(largest, node.memory - share.weights)
    rest = node.memory - share.weights - first
    others = next((n for n in range(many - 1, 0, -1) if rest // n - share.weights >= least), 0)
    return [first, *([rest // others - share.weights] * others if others else [])]


def _none(nodes: Sequence[Node], share: Share, least: int) -> str:
    """Why no worker can be placed."""
    if not any(map(share.slots, nodes)):
        have = ", ".join(f"{node.cpus:g} CPUs and {node.gpus:g} GPUs" for node in nodes) or "nothing"
        return f"a worker takes {share.cpus:g} CPUs and {share.gpus:g} GPUs, the machines have {have}"
    largest = max(node.memory for node in nodes)
    return (
        f"a worker takes about {(share.weights + least) / 2**30:.1f} GiB for the weights and the smallest cell, the "
        f"largest machine gives {largest / 2**30:.1f} GiB; shorten --lengths or take larger machines"
    )
