"""Workers on a real Ray: the same bytes, whoever dies on the way. One cluster of two workers for all of this file."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import drawn
import psutil
import pytest
from drawn import NEEDS_RAY, NOTHING, NoSource, results
from killing import killing, lines

from mesa.errors import Refused
from probe.experiment.pool import Task
from probe.experiment.ray import RayRunner

pytestmark = NEEDS_RAY

RAY = RayRunner(workers=2)


@dataclass(frozen=True)
class Toy:
    """Cells (what, number): squares; those that end their worker, always or so often; errors; and large arrays."""

    folder: str
    source: NoSource = NOTHING

    def start(self, memory_bytes=None):
        for mark in Path(self.folder).glob("broken-*"):  # one a process that dies of it
            mark.unlink(missing_ok=True)
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
    cells = [Task("toy", key, **options) for key in keys]
    with RAY.pool(Toy(str(folder)), cells) as pool:
        return results(pool, cells), {path.name: path.stat().st_size for path in Path(folder).iterdir()}


def test_its_ray_is_shut_from_outside(cluster):
    assert {node["NodeManagerAddress"] for node in cluster.nodes()} == {"127.0.0.1"}
    mine = psutil.Process().children(recursive=True)
    addresses = {place.laddr.ip.removeprefix("::ffff:") for each in mine for place in listening(each)}
    assert addresses == {"127.0.0.1"}
    boards = [each for each in mine if "dashboard.py" in " ".join(each.cmdline())]  # one that serves nobody
    assert not [each for board in boards for each in listening(board)]


def listening(process):
    return [place for place in process.net_connections("inet") if place.status == psutil.CONN_LISTEN]


def test_a_cell_whose_workers_die_is_begun_three_times_then_named_and_the_rest_goes_on(cluster, tmp_path):
    keys = [("good", 1), ("dies", 2), ("dies-once", 3), ("good", 4)]
    values, begun = outcomes(keys, tmp_path)
    assert [value for value in values if isinstance(value, int)] == [1, 9, 16]
    assert values[1].startswith("its worker died (")
    assert begun == {"good-1": 1, "dies-2": 3, "dies-once-3": 2, "good-4": 1}


def test_an_error_of_a_cell_is_raised_as_it_is_and_is_not_tried_again(cluster, tmp_path):
    with pytest.raises(ValueError, match=r"^2 is wrong$"):
        outcomes([("good", 1), ("wrong", 2)], tmp_path)
    assert (tmp_path / "wrong-2").stat().st_size == 1


def test_no_worker_is_sent_what_cannot_fit(cluster, tmp_path):
    assert outcomes([("good", 1)], tmp_path, memory_bytes=2**30)[0] == [1]
    cells = [Task("toy", ("good", 5), memory_bytes=2**60), Task("toy", ("good", 6), memory_bytes=2**20)]
    with RAY.pool(Toy(str(tmp_path)), cells) as pool:
        large, small = results(pool, cells)
    assert "it needs about 1073741824.0 GiB, the roomiest worker has" in large
    assert small == 36


def test_a_worker_that_dies_twice_as_it_loads_is_kept(cluster, tmp_path):
    for number in range(2):
        (tmp_path / f"broken-{number}").touch()
    with replace(RAY, workers=1).pool(Toy(str(tmp_path)), cells := [Task("toy", ("good", 2))]) as pool:
        assert results(pool, cells) == [4]
    assert not list(tmp_path.glob("broken-*"))


def test_workers_that_die_as_they_load_end_the_run(cluster, tmp_path):
    for number in range(10):
        (tmp_path / f"broken-{number}").touch()
    with pytest.raises(RuntimeError, match=r"worker \d died 3 times as it loaded the model .*; no worker is left"):
        outcomes([("good", 1)], tmp_path)
    assert 10 - len(list(tmp_path.glob("broken-*"))) == 6


def test_a_refusal_of_a_worker_stays_one(cluster, tmp_path):
    class Refusing(NoSource):
        def check(self):
            raise Refused("another model here")

    with (
        pytest.raises(Refused, match="another model here"),
        RAY.pool(Toy(str(tmp_path), Refusing()), [Task("toy", ("good", 1))]),
    ):
        pass


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    out = tmp_path_factory.mktemp("local")
    drawn.draw(out)
    return files(out)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def kill_workers(local, out, seed, workers):
    """At most twice, so that no cell can have been begun three times."""
    with killing(random.Random(seed), most=2) as killed:
        drawn.draw(out, replace(RAY, workers=workers))
    assert killed
    assert files(out) == local


def kill_driver(cluster, local, out, seed, workers):
    """At a drawn moment after it has journaled a drawn number of cells; the rest is run by another."""
    address, draw = cluster.get_runtime_context().gcs_address, random.Random(seed)
    driver = subprocess.Popen(
        [sys.executable, drawn.__file__, str(out), address, str(workers)],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    enough = draw.randint(2, 8)
    while driver.poll() is None and lines(out / drawn.JOURNAL) < enough:
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.1))
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    done = lines(out / drawn.JOURNAL) - 1
    assert enough - 1 <= done < len(drawn.TASKS)
    drawn.draw(out, RAY)
    assert files(out) == local


def test_killed_workers_change_nothing(cluster, local, tmp_path):
    kill_workers(local, tmp_path, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 22))
def test_killed_workers_and_drivers_change_nothing_twenty_times(cluster, local, tmp_path, seed):
    kill_workers(local, tmp_path / "workers", seed, 2 + 2 * (seed % 2))
    kill_driver(cluster, local, tmp_path / "driver", seed, 2 + 2 * (seed % 2))
