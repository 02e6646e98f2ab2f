"""How many threads torch computes with: one an idle CPU of this process, unless the user sets them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from mesa.errors import Refused

_SECONDS = 0.2  # over which it is seen which CPUs are idle
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""The quota of a container: microseconds of CPU in a period, and the period; or `max`."""


def cpus() -> int:
    """CPUs that this process may use, by its affinity and its container's quota; at least 1."""
    return max(1, int(min(len(_affinity()), _quota())))


def idle_cpus() -> int:
    """Those of them that no process uses now; at least 1."""
    used = psutil.cpu_percent(_SECONDS, percpu=True)
    return max(1, cpus() - round(sum(used[cpu] for cpu in _affinity() if cpu < len(used)) / 100))


def worker_threads(workers: int, share_of: int, threads: int | None = None) -> int:
    """Threads of a worker: `threads`, else OMP_NUM_THREADS, else its share of so many CPUs."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    return threads or (int(variable) if variable.isdigit() and int(variable) else max(1, share_of // workers))


def check_threads(threads: int | None) -> None:
    """Raises Refused for more threads than CPUs."""
    if threads is not None and threads > cpus():
        raise Refused(f"--threads {threads} is above {cpus()}, the CPUs that this process may use")


@contextmanager
def computing(threads: int | None = None) -> Iterator[int]:
    """Torch has so many threads inside; gives their number.

    None: as many as torch has, which reads OMP_NUM_THREADS and MKL_NUM_THREADS, and at most one a CPU; without these
    variables one an idle CPU. Raises Refused for more threads than CPUs.
    """
    import torch

    check_threads(threads)
    before = torch.get_num_threads()
    most = min(before, cpus())
    if threads is None and most > 1 and not any(map(os.environ.get, ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))):
        threads = min(most, idle_cpus())
    torch.set_num_threads(threads or most)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def _quota() -> float:
    """CPUs that the container gives; inf: no limit."""
    try:
        quota, period = _CPU_MAX.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return float("inf")
