"""Results come in the tasks' order, whichever ends first; what is not wanted, or too late, is not begun."""

import random

import pytest
from tqdm import tqdm

from probe.experiment.pool import LocalPool, Queue, ordered_results
from probe.experiment.progress import Progress
from probe.experiment.task import Task, TaskOutcome

TASKS = [Task("count", ("cell", number), weight=10) for number in range(6)]


class Backwards:
    """Takes all tasks that it may, and ends them in reverse or shuffled order. batches: how many it had at once."""

    ahead_bytes, verbose = 1000, False

    def __init__(self, max_ahead=100, seed=None):
        self.max_ahead, self.seed, self.batches = max_ahead, seed, []

    def run(self, queue, progress):
        while batch := list(iter(queue.take, None)):
            self.batches.append(len(batch))
            order = random.Random(self.seed).sample(batch, len(batch)) if self.seed else batch[::-1]
            for task in order:
                yield task, TaskOutcome(task.key[1] ** 2)


def square(task):
    return task.key[1] ** 2


def results(pool, tasks=TASKS, **options):
    return ordered_results(pool, tasks, Progress(tqdm(disable=True)), **options)


@pytest.mark.parametrize("pool", [Backwards(), Backwards(4), Backwards(seed=3), LocalPool(square)])
def test_results_come_in_the_tasks_order(pool):
    assert [(task, outcome.value) for task, outcome in results(pool)] == [(task, square(task)) for task in TASKS]


@pytest.mark.parametrize(
    ("count", "size", "max_ahead", "batches"),
    [(6, 0, 4, [4, 2]), (5, 400, 100, [2, 2, 1]), (2, 4000, 100, [1, 1])],  # 1000 bytes may wait, or one task
)
def test_tasks_and_bytes_that_run_ahead_are_limited(count, size, max_ahead, batches):
    tasks = [Task("count", ("cell", number), result_bytes=size) for number in range(count)]
    pool = Backwards(max_ahead)
    assert len(list(results(pool, tasks))) == count
    assert pool.batches == batches


@pytest.mark.parametrize("pool", [Backwards(), LocalPool(square)])
def test_unwanted_results_are_dropped_whether_the_task_was_begun_or_not(pool):
    unwanted, values = set(), []
    for task, outcome in results(pool, wanted=lambda task: task not in unwanted):
        values.append(outcome and outcome.value)
        unwanted.update(TASKS[3:5] if task == TASKS[2] else ())
    assert values == [0, 1, 4, None, None, 25]


def test_the_local_pool_begins_no_unwanted_task_and_after_the_first_none_once_stopped():
    began = []
    pool = LocalPool(lambda task: began.append(task.key[1]))
    list(results(pool, wanted=lambda task: task.key[1] % 2 == 0))
    assert began == [0, 2, 4]
    began.clear()
    assert [task for task, _ in results(pool, stop=lambda: len(began) == 3)] == TASKS[:3]
    assert began == [0, 1, 2]
    assert [task for task, _ in results(pool, stop=lambda: True)] == TASKS[:1]


def test_a_worker_gets_a_task_that_fits_its_memory():
    tasks = [Task("count", (size,), memory_bytes=size) for size in (50, 10, 30)]
    queue = Queue(tasks, max_ahead=10)
    assert [queue.take(20), queue.take(20), queue.take(40), queue.take(100)] == [tasks[1], None, tasks[2], tasks[0]]


def test_a_tasks_error_is_raised_after_the_results_before_it():
    class Failing(Backwards):
        def run(self, queue, progress):
            for task, outcome in super().run(queue, progress):
                yield task, TaskOutcome(error=ValueError("no number")) if task == TASKS[3] else outcome

    failing = results(Failing())
    assert [next(failing)[0] for _ in range(3)] == TASKS[:3]
    with pytest.raises(ValueError, match="no number"):
        next(failing)
