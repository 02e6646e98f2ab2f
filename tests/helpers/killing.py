"""SIGKILL for workers of this process' Ray, at drawn moments at which they are at a cell."""

import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def killing(draw, most):
    """Kills up to `most` workers while this lasts, at drawn moments of a cell."""
    over, killed = threading.Event(), []

    def kill():
        while len(killed) < most and not over.wait(draw.uniform(0, 0.5)):
            while not over.wait(0.01):
                if pids := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_at_work(pid)]:
                    killed.append(draw.choice(pids))
                    os.kill(killed[-1], signal.SIGKILL)
                    break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def is_at_work(pid):
    """Whether a process is a worker of this file's cluster, and is at a cell."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
        return title.startswith(b"ray::RayWorker.run") and parent(parent(pid)) == os.getpid()
    except OSError:
        return False


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0
