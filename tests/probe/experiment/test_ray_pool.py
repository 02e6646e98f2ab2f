"""Workers that die, on a stand-in for Ray in this process: the others go on."""

from types import SimpleNamespace

import pytest
import torch
from drawn import results

from probe.experiment.ray_pool import RayPool, RayWorker
from probe.experiment.task import Task

TASKS = [Task("toy", (number,)) for number in range(5)]


class Dead(Exception):
    """What Ray says of a process that is gone."""


class Here:
    """Actors in this process; those of the numbers in `dying`, in the order they are made in, die as they load.

    deaths: what is said of others, each at a cell.
    """

    exceptions = SimpleNamespace(RayTaskError=type("TaskError", (Exception,), {}), RayError=Dead)

    def __init__(self, dying, deaths):
        self.dying, self.count, self.deaths = dying, 0, list(deaths)

    def put(self, work):
        return work

    def remote(self, kind):
        return SimpleNamespace(options=lambda **share: SimpleNamespace(remote=self.actor))

    def actor(self):
        number, worker, self.count = self.count, RayWorker(), self.count + 1

        def load(*args):
            if number in self.dying:
                raise Dead("its process is gone")
            return worker.load(*args)

        def run(cell):
            if self.deaths:
                raise Dead(self.deaths.pop())
            return worker.run(cell)

        return SimpleNamespace(load=Later(load), run=Later(run))

    def wait(self, tasks, **_):
        return tasks[:1], tasks[1:]

    def get(self, task):
        return task()

    def kill(self, actor):
        pass


class Later:
    def __init__(self, function):
        self.function = function

    def remote(self, *args):
        return lambda: self.function(*args)


class Squares:
    source = SimpleNamespace(on_gpu=False, weights_bytes=0, check=lambda: None)

    def start(self, memory_bytes=None):
        return lambda cell: cell.key[0] ** 2


@pytest.fixture(autouse=True)
def threads():
    """As they are, also after workers set them."""
    former = torch.get_num_threads()
    yield
    torch.set_num_threads(former)


def pool(dying=(), deaths=()):
    """Two workers, loaded."""
    takes = {"CPU": 1, "GPU": 0, "memory": 0}
    workers = RayPool(Here(dying, deaths), Squares(), takes, 2, 100, verbose=False)
    workers.wait()
    return workers


def test_a_worker_that_dies_thrice_as_it_loads_is_named_and_the_others_go_on(capsys):
    workers = pool({0, 2, 3})
    assert results(workers, TASKS) == [0, 1, 4, 9, 16]
    assert [member.number for member in workers.members] == [2]
    assert "worker 1 died 3 times as it loaded the model (its process is gone); the other" in capsys.readouterr().err


def test_one_that_loads_at_its_third_try_is_kept():
    workers = pool({0, 2})
    assert results(workers, TASKS) == [0, 1, 4, 9, 16]
    assert [member.number for member in workers.members] == [1, 2]


def test_a_task_whose_worker_dies_is_begun_again_and_ray_says_why(capsys):
    why = "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\nNODE_OUT_OF_MEMORY"
    assert results(pool(deaths=[why]), TASKS) == [0, 1, 4, 9, 16]
    assert "its worker died (NODE_OUT_OF_MEMORY); begun again: " in capsys.readouterr().err
