"""No worker is promised memory that its machine lacks; the largest task has a place where any machine holds it."""

import pytest

from probe.experiment.ray_cluster import Node, Share, memory_budgets
from probe.experiment.task import Task

SMALL, LARGE = Task("a", (1,), memory_bytes=10, best_bytes=40), Task("a", (2,), memory_bytes=100)
SHARE = Share(cpus=1, gpus=0, weights=50)
SMALL_NODE, LARGE_NODE = Node(4, 0, 150), Node(16, 0, 620)


@pytest.mark.parametrize(
    ("nodes", "workers", "tasks", "expected"),
    [
        ([Node(8, 0, 400)], 4, [SMALL], [40] * 4),  # 100 each, of which 50 are weights; no task runs better with more
        ([Node(8, 0, 250)], 4, [SMALL], [12] * 4),
        ([Node(8, 0, 190)], 4, [SMALL], [13] * 3),  # memory for three
        ([Node(2, 0, 4000)], 4, [SMALL], [40] * 2),  # CPUs for two
        ([Node(8, 0, 300)], 3, [SMALL, LARGE], [100, 100]),
        ([Node(8, 0, 140)], 2, [SMALL, LARGE], [90]),  # the large task fits nowhere
        ([SMALL_NODE, LARGE_NODE], 6, [SMALL, LARGE], [100] * 5),  # 150 - 50, 4 x (620/4 - 50 = 105)
    ],
)
def test_memory_is_shared_among_workers(nodes, workers, tasks, expected):
    assert memory_budgets(nodes, SHARE, workers, tasks) == expected


@pytest.mark.parametrize(("node", "gpus", "expected"), [(Node(8, 3, 4000), 2, 1), (Node(8, 1, 4000), 0.5, 2)])
def test_gpus_limit_the_workers(node, gpus, expected):
    assert len(memory_budgets([node], Share(1, gpus, 50), 4, [SMALL])) == expected


def test_an_error_names_what_no_machine_has():
    gib = 2**30
    with pytest.raises(MemoryError, match=r"about 3\.0 GiB .* gives 2\.0 GiB; shorten --lengths"):
        memory_budgets([Node(8, 0, gib), Node(8, 0, 2 * gib)], Share(1, 0, 2 * gib), 2, [Task("a", (1,), gib)])
    with pytest.raises(MemoryError, match="takes 1 CPUs and 2 GPUs, the machines have 8 CPUs and 1 GPUs"):
        memory_budgets([Node(8, 1, gib)], Share(1, 2, 0), 2, [SMALL])
