"""Machines of a cluster, each a Ray of its own on this one: one is lost, one runs out of memory, one has GPUs."""

import importlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import drawn
import pytest
from drawn import NOTHING, NoSource
from tqdm import tqdm

from probe.experiment.pool import ordered_results
from probe.experiment.progress import Progress
from probe.experiment.runner import Runner
from probe.experiment.task import Task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is an extra"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of whatever version
]


@pytest.fixture(autouse=True)
def ray(monkeypatch):
    """Workers have a thread each, and are carried what is defined here, which they cannot import."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # read where Ray is imported
    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray_module = importlib.import_module("ray")
    for module in (sys.modules[__name__], drawn):
        ray_module.cloudpickle.register_pickle_by_value(module)
    return ray_module


@pytest.fixture
def machines(ray, monkeypatch):
    """A cluster whose first machine has two CPUs; `add` gives it another."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="mesa-")  # sockets have short names
    monkeypatch.setenv("RAY_TMPDIR", folder)
    own = {"node_ip_address": "127.0.0.1", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **own})
    cluster.add = lambda **has: cluster.add_node(node_ip_address="127.0.0.1", **has)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Toy:
    """Cells (what, number), whose work says where it began."""

    folder: str
    doomed: str = ""
    source: NoSource = NOTHING

    def start(self, memory_bytes=None):
        return getattr(self, f"_{self.kind}")

    def _note(self, number):
        with (Path(self.folder) / str(number)).open("a") as file:
            file.write(".")
            return file.tell()


class Squares(Toy):
    """Squares; the doomed machine begins one and never ends it, the others wait for that."""

    kind = "square"

    def _square(self, cell):
        import ray

        self._note(cell.key[0])
        begun = Path(self.folder) / "begun"
        if ray.get_runtime_context().get_node_id() == self.doomed:
            begun.touch()
            time.sleep(600)
        while not begun.exists():
            time.sleep(0.05)
        return cell.key[0] ** 2


class Devices(Toy):
    """The GPUs that a worker sees."""

    kind = "device"

    def _device(self, cell):
        time.sleep(0.5)
        return os.environ["CUDA_VISIBLE_DEVICES"]


def outcomes(runner, work, count=6):
    cells = [Task("toy", (number,)) for number in range(count)]
    with runner.pool(work, cells) as pool:
        watch = Progress(tqdm(disable=True))
        return [outcome.value for _, outcome in ordered_results(pool, cells, watch)], len(pool.members)


def begun(folder):
    return [(folder / str(number)).stat().st_size for number in range(6)]


def test_what_a_lost_machine_was_at_is_begun_again_on_the_others(machines, tmp_path, capsys):
    lost = machines.add(num_cpus=2)

    def lose():
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        machines.remove_node(lost, allow_graceful=False)

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    work = Squares(str(tmp_path), doomed=lost._node_id)
    results, _ = outcomes(Runner("ray", machines.address, workers=4), work)
    thread.join()
    assert results == [number**2 for number in range(6)]
    assert 1 <= sum(begun(tmp_path)) - 6 <= 2  # what its two workers were at
    error = capsys.readouterr().err
    assert re.search(r"worker \d: its worker died \(.*\); begun again: ", error)


def test_in_a_mixed_pool_workers_of_two_gpus_go_where_gpus_are_and_see_their_own_alone(machines, tmp_path):
    machines.add(num_cpus=4, num_gpus=4)  # as Ray counts them
    runner = Runner("ray", machines.address, workers=3, gpus=2)
    results, workers = outcomes(runner, Devices(str(tmp_path), source=NoSource(on_gpu=True)))
    assert workers == 2
    assert {*results} == {"0,1", "2,3"}
