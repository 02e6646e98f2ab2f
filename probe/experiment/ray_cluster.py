"""Ray itself: whether it is installed, a cluster to run on, and its memory shared out among workers."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from mesa.errors import Failed, Refused, install_command
from probe.experiment.task import Task

_OFF = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_LOCAL_CLUSTER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
"""For a cluster on this machine: it is 127.0.0.1 on any system, and workers are as urgent as this process."""


def check_ray(gpus: float | None, options: Mapping[str, Any]) -> None:
    """Raises Refused where Ray is missing, or where workers have no such device."""
    if importlib.util.find_spec("ray") is None:
        raise Refused(f"--runner ray needs Ray, which is not installed; {install_command('ray')}")
    device, device_map = str(options.get("device") or "cpu"), options.get("device_map")
    if gpus and not device_map and device.startswith("cpu"):
        raise Refused(f"--gpus-per-worker {gpus:g} with --device {device}; give --device cuda or --device-map auto")
    if not device_map and re.fullmatch(r"cuda:[1-9][0-9]*", device):
        raise Refused(f"--device {device} with --runner ray: a worker sees its own GPUs alone; give --device cuda")


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
        quiet = stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(redirect_stdout(sys.stderr if verbose else quiet))
        stack.callback(ray.shutdown)
        with _sigterm_handler_restored():
            _connect(ray, address, {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": folder}, verbose)
        yield ray


def _connect(ray: Any, address: str | None, new: Mapping[str, Any], verbose: bool) -> None:
    options = {"log_to_driver": verbose, "logging_level": "INFO" if verbose else "ERROR"}
    if address is None:
        try:
            ray.init(address="local", **new, **options)
        except Exception as error:  # Ray's own are of no kind
            raise Failed(f"--runner ray: Ray does not start here ({' '.join(str(error).split())})") from error
        if any(node["NodeManagerAddress"] != "127.0.0.1" for node in ray.nodes()):
            raise Failed("Ray would not bind to 127.0.0.1 alone; import mesa-lens' runner before ray")
        return
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ConnectionError(
            f"--runner ray:{address}: no Ray cluster there ({reason}); see `ray start --help`"
        ) from error


@contextmanager
def _sigterm_handler_restored() -> Iterator[None]:
    """Ray sets a handler for SIGTERM, which would end a command without a message."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


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


def nodes_of(ray: Any) -> list[Node]:
    """The cluster's machines that are up."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Node(has.get("CPU", 0), has.get("GPU", 0), int(has.get("memory", 0))) for has in alive]


def memory_budgets(nodes: Sequence[Node], share: Share, workers: int, tasks: Sequence[Task]) -> list[int]:
    """Bytes beside the weights for each worker, the largest first; fewer than `workers` where no more can be placed.

    A machine is shared equally among its workers, each of which can hold the largest task. Where no machine can, one
    worker has all of the largest machine. No worker has more than the largest `best_bytes`. Raises MemoryError where
    that does not hold the smallest task.
    """
    smallest, largest = min(task.memory_bytes for task in tasks), max(task.memory_bytes for task in tasks)
    counts = _placed(nodes, share, workers, largest) or _placed(nodes, share, 1, smallest)
    if not counts:
        raise MemoryError(_why_no_worker(nodes, share, smallest))
    most = max(largest, *(task.best_bytes for task in tasks))
    budgets = [
        min(most, nodes[at].memory // count - share.weights) for at, count in counts.items() for _ in range(count)
    ]
    return sorted(budgets, reverse=True)


def _placed(nodes: Sequence[Node], share: Share, workers: int, needed: int) -> Counter[int]:
    """How many workers each machine has, by its index, where each takes `needed` bytes beside the weights."""
    counts: Counter[int] = Counter()
    for _ in range(workers):
        left = [node.memory // (counts[at] + 1) - share.weights for at, node in enumerate(nodes)]
        free = [at for at, node in enumerate(nodes) if counts[at] < share.slots(node) and left[at] >= needed]
        if not free:
            break
        counts[max(free, key=left.__getitem__)] += 1
    return counts


def _why_no_worker(nodes: Sequence[Node], share: Share, smallest: int) -> str:
    if not any(map(share.slots, nodes)):
        have = ", ".join(f"{node.cpus:g} CPUs and {node.gpus:g} GPUs" for node in nodes) or "nothing"
        return f"a worker takes {share.cpus:g} CPUs and {share.gpus:g} GPUs, the machines have {have}"
    largest = max(node.memory for node in nodes)
    return (
        f"a worker takes about {(share.weights + smallest) / 2**30:.1f} GiB for the weights and the smallest cell, the "
        f"largest machine gives {largest / 2**30:.1f} GiB; shorten --lengths or take larger machines"
    )
