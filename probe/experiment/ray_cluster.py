"""Ray itself: a cluster to run on, and its memory shared out among workers."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from typing import Any, NamedTuple

from mesa.errors import Failed
from probe.experiment.task import Task

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


def slots(nodes: Sequence[Resources], takes: Resources, beside: float) -> int:
    """How many workers that take this, and `beside` bytes more, the machines hold."""
    needs = takes._replace(memory=takes.memory + beside)
    return sum(int(min(has // need for has, need in zip(node, needs, strict=True) if need)) for node in nodes)


def worker_memory(nodes: Sequence[Resources], takes: Resources, workers: int, tasks: Sequence[Task]) -> tuple[int, int]:
    """How many workers have a place, at most `workers`, and the bytes that each has beside the weights.

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
