"""Workers on a real Ray: the same bytes, whoever dies on the way. One cluster of two workers for all of this file."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tiny
from elsewhere import same_evaluation
from tqdm import tqdm

from probe.cells.cell import Cell
from probe.cells.pool import run as run_in_turns
from probe.cells.runner import Runner
from probe.cells.watch import Watch
from probe.evaluation.plan import EvalRequest, plan
from probe.evaluation.run import run

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is an extra"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of whatever version
]

RAY = Runner("ray", workers=2)
LOAD = {"revision": None, "dtype": None, "device": "cpu", "device_map": None, "trust_remote_code": False}
"""As the command has them."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    text = folder / "text.txt"
    text.write_text(" ".join(f"Sentence {number} says {number**2}." for number in range(200)))
    model = tiny.folder(folder / "model")
    return EvalRequest(model=str(model), methods="origin,mesa", lengths=(96, 150), samples=2, text=str(text), load=LOAD)


@pytest.fixture(scope="module")
def local(cluster, asked, tmp_path_factory):
    out = tmp_path_factory.mktemp("local")
    run(plan(asked), out)
    return out


class NoSource:
    """A model that is none."""

    on_gpu, weights_bytes = False, 0

    def check(self):
        pass


@dataclass(frozen=True)
class Toy:
    """Cells (what, number): squares; those that end their worker, always or so often; errors; and large arrays."""

    folder: str
    source: object = NoSource()

    def start(self, room=None):
        if (Path(self.folder) / "broken").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return self.give

    def give(self, cell):
        what, number = cell.key
        mark = Path(self.folder) / f"{what}-{number}"
        tries = mark.stat().st_size if mark.exists() else 0
        with mark.open("a") as file:
            file.write(".")
        if (what == "dies") or (what == "dies-once" and not tries):
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "wrong":
            raise ValueError(f"{number} is wrong")
        return number**2


def outcomes(keys, folder, **options):
    """What comes of toy cells, on two workers; and how often each was begun."""
    cells = [Cell("toy", key, **options) for key in keys]
    with RAY.pool(Toy(str(folder)), cells) as pool:
        found = [
            outcome.value if not outcome.lost else outcome.lost for _, outcome in run_in_turns(pool, cells, quiet())
        ]
    return found, {path.name: path.stat().st_size for path in Path(folder).iterdir()}


def quiet():
    return Watch(tqdm(disable=True), str, lambda cell: 1)


def test_a_cell_whose_workers_die_is_begun_three_times_then_told_and_the_rest_goes_on(cluster, tmp_path):
    keys = [("good", 1), ("dies", 2), ("dies-once", 3), ("good", 4)]
    found, begun = outcomes(keys, tmp_path)
    assert found == [1, "its process died", 9, 16]
    assert begun == {"good-1": 1, "dies-2": 3, "dies-once-3": 2, "good-4": 1}


def test_an_error_of_a_cell_is_raised_as_it_is_and_is_not_tried_again(cluster, tmp_path):
    with pytest.raises(ValueError, match=r"^2 is wrong$"):
        outcomes([("good", 1), ("wrong", 2)], tmp_path)
    assert (tmp_path / "wrong-2").stat().st_size == 1


def test_no_worker_is_sent_what_cannot_fit(cluster, tmp_path):
    assert outcomes([("good", 1)], tmp_path, needs=2**30)[0] == [1]
    cells = [Cell("toy", ("good", 5), needs=2**60), Cell("toy", ("good", 6), needs=2**20)]
    with RAY.pool(Toy(str(tmp_path)), cells) as pool:
        (_, large), (_, small) = run_in_turns(pool, cells, quiet())
    assert "it needs about 1073741824.0 GiB, the roomiest worker has" in large.lost
    assert small.value == 36


def test_workers_that_die_as_they_load_end_the_run(cluster, tmp_path):
    (tmp_path / "broken").touch()
    with pytest.raises(RuntimeError, match=r"worker \d died 3 times as it loaded the model .*; no worker is left"):
        outcomes([("good", 1)], tmp_path)


def test_an_evaluation_on_two_workers_is_the_local_one_and_its_ray_is_shut_from_outside(
    cluster, asked, local, tmp_path
):
    run(plan(asked), tmp_path, runner=RAY)
    same_evaluation(local, tmp_path)
    assert {node["NodeManagerAddress"] for node in cluster.nodes()} == {"127.0.0.1"}


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
        return title.startswith(b"ray::Worker.run") and parent(parent(pid)) == os.getpid()
    except OSError:
        return False


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_workers(asked, local, out, seed, workers):
    """At most twice, so that no cell can have been begun three times."""
    with killing(random.Random(seed), most=2) as killed:
        summary = run(plan(asked), out, runner=replace(RAY, workers=workers))
    assert killed
    assert summary["failed"] == []
    same_evaluation(local, out)


def kill_driver(asked, local, out, seed, address):
    """When it has journaled a drawn number of cells; the rest is run by the same command."""
    words = (
        f"--model {asked.model} --methods {asked.methods} --lengths 96,150 --samples 2 --text {asked.text} --out {out}"
    )
    command = [sys.executable, "-m", "mesa_lens", "eval", *words.split()]
    asked_for = ["--runner", f"ray:{address}", "--workers", "2"]
    driver = subprocess.Popen([*command, *asked_for], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    enough = random.Random(seed).randint(1, 5)
    while driver.poll() is None and lines(out / "cells.jsonl") <= enough:
        time.sleep(0.02)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    assert lines(out / "cells.jsonl") > enough
    run(plan(asked), out, runner=RAY)
    same_evaluation(local, out)


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(("seed", "workers"), [(1, 2), (2, 4)])
def test_killed_workers_change_nothing(cluster, asked, local, tmp_path, seed, workers):
    kill_workers(asked, local, tmp_path, seed, workers)


def test_a_killed_driver_changes_nothing(cluster, asked, local, tmp_path):
    kill_driver(asked, local, tmp_path / "out", 1, cluster.get_runtime_context().gcs_address)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 23))
def test_killed_workers_and_drivers_change_nothing_twenty_times(cluster, asked, local, tmp_path, seed):
    kill_workers(asked, local, tmp_path / "workers", seed, 2 + 2 * (seed % 2))
    kill_driver(asked, local, tmp_path / "driver", seed, cluster.get_runtime_context().gcs_address)
