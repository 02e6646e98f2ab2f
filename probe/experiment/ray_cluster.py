"""Ray itself: whether it is installed, a cluster to run on, and its memory shared out among workers."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
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
        new = {} if address else {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": folder}
        former = signal.getsignal(signal.SIGTERM)
        try:
            level = "INFO" if verbose else "ERROR"
            ray.init(address=address or "local", **new, log_to_driver=verbose, logging_level=level)
        except Exception as error:  # Ray's own are of no kind
            reason = " ".join(str(error).split())
            if address is None:
                raise Failed(f"--runner ray: Ray does not start here ({reason})") from error
            said = f"--runner ray:{address}: no Ray cluster there ({reason}); see `ray start --help`"
            raise ConnectionError(said) from error
        finally:
            if threading.current_thread() is threading.main_thread():  # Ray's ends a command without a message
                signal.signal(signal.SIGTERM, former)
        if address is None and any(node["NodeManagerAddress"] != "127.0.0.1" for node in ray.nodes()):
            raise Failed("Ray would not bind to 127.0.0.1 alone; import mesa-lens' runner before ray")
        yield ray


Resources = Mapping[str, float]
"""What a machine has, or a worker takes, in Ray's words: CPU, GPU, and bytes of memory."""


def slots(nodes: Sequence[Resources], takes: Resources, beside: float) -> int:
    """How many workers that take this, and `beside` bytes more, the machines hold."""
    needs = {**takes, "memory": takes["memory"] + beside}
    return sum(int(min(node.get(name, 0) // need for name, need in needs.items() if need)) for node in nodes)


def worker_memory(nodes: Sequence[Resources], takes: Resources, workers: int, tasks: Sequence[Task]) -> tuple[int, int]:
    """How many workers have a place, at most `workers`, and the bytes that each has beside the weights.

    Enough for the largest task and, up to the largest `best_bytes`, what costs no worker. Where no machine holds the
    largest task, one worker has the largest machine. Raises MemoryError where that does not hold the smallest task.
    """
    needs, weights = [task.memory_bytes for task in tasks], int(takes["memory"])
    least, most = max(needs), max(*needs, *(task.best_bytes for task in tasks))
    if count := min(workers, slots(nodes, takes, least)):
        parts = [int(node.get("memory", 0)) // part - weights for node in nodes for part in range(1, count + 1)]
        return count, max(size for size in (least, most, *parts) if size <= most and slots(nodes, takes, size) >= count)
    largest = max((node.get("memory", 0) for node in nodes), default=0)
    if slots(nodes, takes, min(needs)):
        return 1, int(largest) - weights
    if not slots(nodes, {**takes, "memory": 0}, 0):
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes) or "nothing"
        raise MemoryError(f"a worker takes {takes['CPU']:g} CPUs and {takes['GPU']:g} GPUs, the machines have {have}")
    raise MemoryError(
        f"a worker takes about {(weights + min(needs)) / 2**30:.1f} GiB for the weights and the smallest cell, the "
        f"largest machine gives {largest / 2**30:.1f} GiB; shorten --lengths or take larger machines"
    )
