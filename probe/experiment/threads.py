"""How many threads torch computes with: at most one a CPU of this process, unless the user sets them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""The quota of a container: microseconds of CPU in a period, and the period; or `max`."""


def cpus() -> int:
    """CPUs that this process may use, by its affinity and its container's quota; at least 1."""
    return max(1, int(min(len(_affinity()), _quota())))


def worker_threads(workers: int, share_of: int, threads: int | None = None) -> int:
    """Threads of a worker: `threads`, else OMP_NUM_THREADS, else its share of so many CPUs."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    return threads or (int(variable) if variable.isdigit() and int(variable) else max(1, share_of // workers))


def check_threads(threads: int | None) -> None:
    """Raises ValueError for more threads than CPUs."""
    if threads is not None and threads > cpus():
        raise ValueError(f"--threads {threads} is above {cpus()}, the CPUs that this process may use")


@contextmanager
def computing(threads: int | None = None) -> Iterator[int]:
    """Torch has so many threads inside; gives their number.

    None: as many as torch has, which reads OMP_NUM_THREADS and MKL_NUM_THREADS, and at most one a CPU. Raises
    ValueError for more threads than CPUs.
    """
    import torch

    check_threads(threads)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or min(before, cpus()))
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
