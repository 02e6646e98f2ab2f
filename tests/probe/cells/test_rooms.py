"""No worker is promised memory that its machine lacks, and the largest cell has a place where any machine holds it."""

import pytest

from probe.cells.cell import Cell
from probe.cells.rooms import Node, Share, rooms

SMALL, LARGE = Cell("a", (1,), needs=10, best=40), Cell("a", (2,), needs=100)
ONE = Share(cpus=1, gpus=0, weights=50)


def test_a_machine_is_shared_out_alike_and_nobody_has_more_than_the_best_of_any_cell():
    assert rooms([Node(8, 0, 400)], ONE, 4, [SMALL]) == [40] * 4  # 100 each, of which 50 are weights; 40 is best
    assert rooms([Node(8, 0, 280)], ONE, 4, [SMALL]) == [20] * 4
    assert rooms([Node(8, 0, 250)], ONE, 4, [SMALL]) == [12] * 4


def test_fewer_workers_are_placed_where_memory_cpus_or_gpus_are_few():
    assert len(rooms([Node(8, 0, 190)], ONE, 4, [SMALL])) == 3
    assert len(rooms([Node(2, 0, 4000)], ONE, 4, [SMALL])) == 2
    assert len(rooms([Node(8, 3, 4000)], Share(1, 2, 50), 4, [SMALL])) == 1
    assert len(rooms([Node(8, 1, 4000)], Share(1, 0.5, 50), 4, [SMALL])) == 2


def test_the_largest_cell_has_a_worker_and_the_others_share_what_is_left():
    assert rooms([Node(8, 0, 300)], ONE, 3, [SMALL, LARGE]) == [100, 25, 25]  # alike it were 50 each
    assert rooms([Node(8, 0, 170)], ONE, 2, [SMALL, LARGE]) == [100]
    assert rooms([Node(8, 0, 140)], ONE, 2, [SMALL, LARGE]) == [90]  # it fits nowhere: this one is told so


def test_in_a_mixed_pool_the_large_machine_takes_more_workers_and_the_largest_cell():
    pool = [Node(4, 0, 150), Node(16, 0, 620)]
    assert rooms(pool, ONE, 5, [SMALL, LARGE]) == [100, 100, 100, 100, 100]  # (620/4 - 50 = 105) x 4, 150 - 50
    assert rooms(pool, ONE, 6, [SMALL, LARGE]) == [100, 74, 74, 74, 74, 74]  # the small machine's, and 620/5 - 50


def test_every_plan_fits_its_machines():
    for memory in range(60, 900, 7):
        for workers in range(1, 9):
            found = rooms([Node(8, 0, memory)], ONE, workers, [SMALL, LARGE])
            assert sum(room + ONE.weights for room in found) <= memory
            assert all(room >= SMALL.needs for room in found)
            assert 1 <= len(found) <= workers
            assert max(found) >= min(LARGE.needs, memory - ONE.weights)


def test_where_nobody_can_be_placed_the_numbers_are_said():
    gib = 2**30
    with pytest.raises(MemoryError, match=r"about 3\.0 GiB .* gives 2\.0 GiB; shorten --lengths"):
        rooms([Node(8, 0, gib), Node(8, 0, 2 * gib)], Share(1, 0, 2 * gib), 2, [Cell("a", (1,), needs=gib)])
    with pytest.raises(MemoryError, match="takes 1 CPUs and 2 GPUs, the machines have 8 CPUs and 1 GPUs"):
        rooms([Node(8, 1, gib)], Share(1, 2, 0), 2, [SMALL])
