"""How many threads torch computes with: one an idle physical core, unless the user sets them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_INTERVAL = 0.2  # seconds over which idle cores are counted
_ROOT = Path("/")


def cpus() -> int:
    """CPUs that this process may use, by its affinity and its container's quota; at least 1."""
    return max(1, int(min(len(_affinity()), _quota())))


def cores() -> int:
    """Physical cores among these."""
    return max(1, min(len({_siblings(cpu) for cpu in _affinity()}), psutil.cpu_count(logical=False) or 1, cpus()))


def idle_cores() -> int:
    """Physical cores that this process may use and no other process uses now; at least 1."""
    used = psutil.cpu_percent(_INTERVAL, percpu=True)
    allowed = [used[cpu] for cpu in _affinity() if cpu < len(used)]
    free = len({_siblings(cpu) for cpu in _affinity()}) - round(sum(allowed) / 100)
    return max(1, min(free, cores()))


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

    None: one an idle core and at most as many as torch has, with a line on stderr where other cores are busy; but
    OMP_NUM_THREADS and MKL_NUM_THREADS stay. Raises ValueError for more threads than CPUs.
    """
    import torch

    check_threads(threads)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or _default(before))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _default(before: int) -> int:
    if before == 1 or any(os.environ.get(name) for name in _VARIABLES):
        return before
    chosen, most = min(before, idle_cores()), cores()
    if chosen < min(before, most):
        sys.stderr.write(
            f"mesa-lens: other processes keep cores busy; computing with {chosen} of {most} threads "
            f"(--threads {most}: all)\n"
        )
    return chosen


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def _siblings(cpu: int) -> str:
    """A name that all CPUs of one physical core share."""
    return _read(_ROOT / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)


def _quota() -> float:
    """CPUs by the control groups of this process (version 2 or 1); inf: no limit."""
    groups = _ROOT / "sys/fs/cgroup"
    inside = next((line[3:] for line in _read(_ROOT / "proc/self/cgroup").splitlines() if line[:3] == "0::"), "/")
    places = [groups / inside.strip("/"), *(groups / inside.strip("/")).parents]
    limits = [_read(place / "cpu.max").split() for place in places if place.is_relative_to(groups)]
    limits.append([_read(groups / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")])
    return min(
        (int(limit[0]) / int(limit[1]) for limit in limits if limit and limit[0].isdigit()), default=float("inf")
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
