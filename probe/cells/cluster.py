"""Ray itself: whether it is there, and a cluster of its own on this machine, or one that is named."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any

from probe.cells.rooms import Node

_OFF = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_OWN = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
"""For a cluster of its own: this machine is 127.0.0.1 on any system, and workers are as urgent as this process."""


def check_ray(gpus: float | None, options: Mapping[str, Any]) -> None:
    """Raises ValueError where Ray is missing, or where the model is asked onto other devices than workers have."""
    if importlib.util.find_spec("ray") is None:
        raise ValueError("--runner ray needs Ray, which is not installed; pip install 'mesa-lens[ray]'")
    device, placed = str(options.get("device") or "cpu"), options.get("device_map")
    if gpus and not placed and device.startswith("cpu"):
        raise ValueError(f"--gpus-per-worker {gpus:g} with --device {device}; give --device cuda or --device-map auto")
    if not placed and re.fullmatch(r"cuda:[1-9][0-9]*", device):
        raise ValueError(f"--device {device} with --runner ray: a worker sees its own GPUs alone; give --device cuda")


@contextmanager
def ray_at(address: str | None, cpus: int, *, verbose: bool) -> Iterator[Any]:
    """The module ray, connected: to a cluster, or to one of its own with so many CPUs, which ends with this.

    One that is connected already is taken as it is. What Ray prints goes to stderr with `verbose`, else nowhere.
    """
    os.environ.update({**_OFF, **({} if address else _OWN)})
    ray = importlib.import_module("ray")
    if ray.is_initialized():
        yield ray
        return
    with ExitStack() as stack:
        own = stack.enter_context(tempfile.TemporaryDirectory(prefix="mesa-lens-ray-", ignore_cleanup_errors=True))
        quiet = stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(redirect_stdout(sys.stderr if verbose else quiet))
        stack.callback(ray.shutdown)
        with _handlers_kept():
            _connect(ray, address, {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": own}, verbose)
        yield ray


def _connect(ray: Any, address: str | None, own: Mapping[str, Any], verbose: bool) -> None:
    options = {"log_to_driver": verbose, "logging_level": "INFO" if verbose else "ERROR"}
    if address is None:
        try:
            ray.init(address="local", **own, **options)
        except Exception as error:  # Ray's own are of no kind
            raise RuntimeError(f"--runner ray: Ray does not start here ({' '.join(str(error).split())})") from error
        if any(node["NodeManagerAddress"] != "127.0.0.1" for node in ray.nodes()):
            raise RuntimeError("Ray would not bind to 127.0.0.1 alone; import mesa-lens' runner before ray")
        return
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise ConnectionError(
            f"--runner ray:{address}: no Ray cluster there ({said}); see `ray start --help`"
        ) from error


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray sets a handler of its own for SIGTERM, which would end a command without a word."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def nodes_of(ray: Any) -> list[Node]:
    """The cluster's machines that are up."""
    have = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Node(each.get("CPU", 0), each.get("GPU", 0), int(each.get("memory", 0))) for each in have]
