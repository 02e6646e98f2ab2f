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
from drawn import NEEDS_RAY, NOTHING, NoSource, results

from probe.experiment.runner import Runner
from probe.experiment.task import Task

pytestmark = [pytest.mark.slow, *NEEDS_RAY]


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
class Squares:
    """Squares; the doomed machine begins one and never ends it, the others wait for that. Notes which were begun."""

    folder: str
    doomed: str
    source: NoSource = NOTHING

    def start(self, memory_bytes=None):
        return self._square

    def _square(self, cell):
        import ray

        with (Path(self.folder) / str(cell.key[0])).open("a") as file:
            file.write(".")
        begun = Path(self.folder) / "begun"
        if ray.get_runtime_context().get_node_id() == self.doomed:
            begun.touch()
            time.sleep(600)
        while not begun.exists():
            time.sleep(0.05)
        return cell.key[0] ** 2


class Devices:
    """The GPUs that a worker sees."""

    source = NoSource(on_gpu=True)

    def start(self, memory_bytes=None):
        return self._device

    def _device(self, cell):
        time.sleep(0.5)
        return os.environ["CUDA_VISIBLE_DEVICES"]


def outcomes(runner, work, count=6):
    cells = [Task("toy", (number,)) for number in range(count)]
    with runner.pool(work, cells) as pool:
        return results(pool, cells), len(pool.members)


def test_what_a_lost_machine_was_at_is_begun_again_on_the_others(machines, tmp_path, capsys):
    lost = machines.add(num_cpus=2)

    def lose():
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        machines.remove_node(lost, allow_graceful=False)

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    values, _ = outcomes(Runner("ray", machines.address, workers=4), Squares(str(tmp_path), lost._node_id))
    thread.join()
    assert values == [number**2 for number in range(6)]
    assert 1 <= sum((tmp_path / str(number)).stat().st_size for number in range(6)) - 6 <= 2  # its two workers'
    assert re.search(r"worker \d: its worker died \(.*\); begun again: ", capsys.readouterr().err)


def test_in_a_mixed_pool_workers_of_two_gpus_go_where_gpus_are_and_see_their_own_alone(machines):
    machines.add(num_cpus=4, num_gpus=4)  # as Ray counts them
    values, workers = outcomes(Runner("ray", machines.address, workers=3, gpus=2), Devices())
    assert workers == 2
    assert {*values} == {"0,1", "2,3"}
