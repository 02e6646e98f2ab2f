"""Results come in the tasks' order, whichever ends first and whoever dies; what is not wanted, or late, is not begun.

Ray's workers here are on a stand-in for Ray in this process.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from drawn import outcomes, results

from probe.commands.probe.stages import Stages
from probe.experiment.pool import LocalPool, Task
from probe.experiment.ray import RayPool, RayRunner, RayWorker, Resources
from research.sequential.run import Simulated

TASKS = [Task("toy", (number,)) for number in range(6)]


class Dead(Exception):
    """What Ray says of a process that is gone."""


class TaskError(Exception):
    """What Ray makes of a worker's own error."""

    def __init__(self, cause):
        self.cause = cause


class Here:
    """Actors in this process; those of the numbers in `dying`, in the order they are made in, die as they load.

    deaths: what is said of others, each at a cell. budgets: bytes of each besides the weights. last: whether the call
    made last ends first.
    """

    exceptions = SimpleNamespace(RayTaskError=TaskError, UnserializableException=TaskError, RayError=Dead)

    def __init__(self, dying=(), deaths=(), budgets=(100,) * 9, *, last=False):
        self.dying, self.count, self.deaths, self.budgets, self.last = dying, 0, list(deaths), budgets, last

    def put(self, work):
        return work

    def remote(self, kind):
        return SimpleNamespace(options=lambda **share: SimpleNamespace(remote=self.actor))

    def actor(self):
        number, worker, self.count = self.count, RayWorker(), self.count + 1

        def load(work, memory_bytes, *more):
            if number in self.dying:
                raise Dead("its process is gone")
            return worker.load(work, self.budgets[number], *more)

        def run(cell):
            if self.deaths:
                raise Dead(self.deaths.pop())
            try:
                return worker.run(cell)
            except ValueError as error:
                raise TaskError(error) from error

        return SimpleNamespace(load=Later(load), run=Later(run))

    def wait(self, tasks, **_):
        return tasks[-1:] if self.last else tasks[:1], tasks

    def get(self, task):
        return task()

    def kill(self, actor):
        pass


class Later:
    def __init__(self, function):
        self.function = function

    def remote(self, *args):
        return lambda: self.function(*args)


def square(task):
    return task.key[0] ** 2


class Squares:
    source = SimpleNamespace(on_gpu=False, weights_bytes=0, check=lambda: None)

    def start(self, memory_bytes=None):
        return square


class Failing(Squares):
    def start(self, memory_bytes=None):
        def measure(task):
            if task == TASKS[3]:
                raise ValueError("no number")
            return square(task)

        return measure


def on_ray(workers=2, work=Squares, **ray):
    """Workers, of which one at least has loaded."""
    takes = Resources(1, 0, 0)
    pool = RayPool(Here(**ray), work(), takes, workers, 100, verbose=False)
    pool.wait()
    return pool


@pytest.fixture(autouse=True)
def threads():
    """As they are, also after workers set them."""
    former = torch.get_num_threads()
    yield
    torch.set_num_threads(former)


POOLS = [
    lambda: LocalPool(square),
    on_ray,
    lambda: on_ray(last=True),
    lambda: on_ray(9, last=True),
]


@pytest.mark.parametrize("pool", POOLS)
def test_results_come_in_the_tasks_order(pool):
    assert [(task, outcome.value) for task, outcome in outcomes(pool(), TASKS)] == [(t, square(t)) for t in TASKS]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("size", "max_ahead", "expected"),
    [(0, 3, 3), (400, 100, 2), (4000, 100, 1)],  # 1000 bytes may wait, or one task; five workers
)
def test_tasks_and_bytes_that_run_ahead_are_limited(last, size, max_ahead, expected):
    tasks, ahead, counts = [Task("toy", (number,), result_bytes=size) for number in range(20)], set(), []
    pool = on_ray(5)
    pool.max_ahead, pool.ahead_bytes = max_ahead, 1000

    def began(task, number):
        ahead.add(task)
        counts.append(len(ahead))

    for task, _ in outcomes(pool, tasks, SimpleNamespace(began=began, ended=print, write=print)):
        ahead.remove(task)
    assert max(counts) == expected


@pytest.mark.parametrize("pool", POOLS)
def test_unwanted_results_are_dropped_whether_the_task_was_begun_or_not(pool):
    unwanted, values = set(), []
    for task, outcome in outcomes(pool(), TASKS, is_needed=lambda task: task not in unwanted):
        values.append(outcome and outcome.value)
        unwanted.update(TASKS[3:5] if task == TASKS[2] else ())
    assert values == [0, 1, 4, None, None, 25]


@pytest.mark.parametrize("pool", POOLS)
def test_no_unwanted_task_is_begun_and_after_the_first_none_once_stopped(pool):
    began = []
    progress = SimpleNamespace(began=lambda task, *_: began.append(task), ended=print, write=print)
    list(outcomes(pool(), TASKS, progress, is_needed=lambda task: task.key[0] % 2 == 0))
    assert began == TASKS[::2]
    assert [task for task, _ in outcomes(pool(), TASKS, progress, stop=lambda: True)] == TASKS[:1]
    began.clear()
    stopped = outcomes(pool(), TASKS, progress, stop=lambda: len(began) == 3)
    assert [task for task, _ in stopped] == began == TASKS[:3]


@pytest.fixture
def four_seconds():
    """A clock, stages that begin what ends within ten seconds on it, and workers whose tasks take four each."""
    simulated, clock = Simulated(), SimpleNamespace(now=0)
    stages = Stages(simulated.evaluation, "origin", simulated.lengths, 20)
    stages.fits = lambda task: clock.now + 4 <= 10

    def pool(workers, work=Squares):
        class Slow(work):
            def start(self, memory_bytes=None):
                measure = super().start(memory_bytes)

                def slowly(task):
                    clock.now += 4
                    return measure(task)

                return slowly

        return on_ray(workers, Slow)

    return stages, pool


@pytest.mark.parametrize(("workers", "expected"), [(9, [0, 1, 4, 9, 16, 25]), (2, [0, 1, 4, None, None, None])])
def test_what_a_run_in_stages_began_in_time_is_kept_and_nothing_is_begun_later(four_seconds, workers, expected):
    stages, pool = four_seconds
    values = [outcome and outcome.value for _, outcome in outcomes(pool(workers), TASKS, is_needed=stages.is_needed)]
    assert values == expected


def test_an_error_of_a_task_that_ends_late_is_raised(four_seconds):
    stages, pool = four_seconds
    with pytest.raises(ValueError, match="no number"):
        list(outcomes(pool(9, Failing), TASKS, is_needed=stages.is_needed))


def test_an_error_of_a_task_is_raised_after_the_results_before_it():
    failing = outcomes(on_ray(9, Failing, last=True), TASKS)
    assert [next(failing)[0] for _ in range(3)] == TASKS[:3]
    with pytest.raises(ValueError, match="no number"):
        next(failing)


def test_a_worker_gets_a_task_that_fits_its_memory():
    tasks, began = [Task("toy", (number,), memory_bytes=size) for number, size in enumerate((50, 10, 1000, 30))], []
    progress = SimpleNamespace(began=lambda *begun: began.append(begun), ended=print, write=print)
    values = [outcome.lost or outcome.value for _, outcome in outcomes(on_ray(budgets=(20, 100)), tasks, progress)]
    assert (values[:2], values[3]) == ([0, 1], 9)
    assert values[2].startswith("it needs about")
    assert began == [(tasks[1], 1), (tasks[0], 2), (tasks[3], 2)]


def test_a_worker_that_dies_thrice_as_it_loads_is_named_and_the_others_go_on(capsys):
    pool = on_ray(dying={0, 2, 3})
    assert results(pool, TASKS) == [0, 1, 4, 9, 16, 25]
    assert list(pool.actors) == [2]
    assert "worker 1 died 3 times as it loaded the model (its process is gone); the other" in capsys.readouterr().err


def test_one_that_loads_at_its_third_try_is_kept():
    pool = on_ray(dying={0, 2})
    assert results(pool, TASKS) == [0, 1, 4, 9, 16, 25]
    assert {*pool.actors} == {1, 2}


def test_a_task_whose_worker_dies_is_begun_again_and_ray_says_why(capsys):
    why = "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\nNODE_OUT_OF_MEMORY"
    assert results(on_ray(deaths=[why]), TASKS) == [0, 1, 4, 9, 16, 25]
    assert "its worker died (NODE_OUT_OF_MEMORY); begun again: " in capsys.readouterr().err


def test_there_are_as_many_workers_as_the_gpus_have_shares(monkeypatch):
    ray = Here()
    ray.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 8, "GPU": 1, "memory": 100}}]
    monkeypatch.setattr("probe.experiment.ray.ray_at", lambda *_, **__: nullcontext(ray))
    with RayRunner(gpus=0.2, threads=1).pool(Squares(), TASKS) as pool:
        assert len(pool.actors) == 5
