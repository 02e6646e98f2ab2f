"""Cells come out in their order, whoever finishes them first; what is not wanted, or too late, is not begun."""

import io
import random
import weakref

import pytest
from tqdm import tqdm

from probe.cells.cell import Cell, Outcome
from probe.cells.local import Local
from probe.cells.pool import run
from probe.cells.turns import Turns
from probe.cells.watch import Watch, watching

CELLS = [Cell("count", ("cell", number)) for number in range(6)]


class Backwards:
    """Takes what it may, and ends it in reverse; notes what it began, and how many were out at once."""

    room, verbose = 1000, False

    def __init__(self, most=100, shuffled=None):
        self.most, self.began, self.out, self.shuffled = most, [], [], shuffled

    def run(self, turns, watch):
        while batch := list(iter(turns.take, None)):
            self.began += batch
            self.out.append(len(batch))
            order = random.Random(self.shuffled).sample(batch, len(batch)) if self.shuffled else batch[::-1]
            for cell in order:
                yield cell, Outcome(cell.key[1] ** 2)


def quiet():
    return Watch(tqdm(disable=True), str, lambda cell: 1)


@pytest.mark.parametrize(
    "pool", [Backwards(), Backwards(4), Backwards(shuffled=3), Local(lambda cell: cell.key[1] ** 2)]
)
def test_outcomes_come_in_the_cells_order(pool):
    found = [(cell, outcome.value) for cell, outcome in run(pool, CELLS, quiet())]
    assert found == [(cell, number**2) for number, cell in enumerate(CELLS)]


def test_no_more_is_out_or_held_back_than_may_be():
    pool = Backwards(most=4)
    assert len(list(run(pool, CELLS, quiet()))) == 6
    assert pool.out == [4, 2]
    large = [Cell("count", ("cell", number), gives=400) for number in range(5)]
    pool = Backwards()
    assert len(list(run(pool, large, quiet()))) == 5
    assert pool.out == [2, 2, 1]  # 1000 bytes hold two of 400
    huge = [Cell("count", ("cell", number), gives=4000) for number in range(2)]
    pool = Backwards()
    assert len(list(run(pool, huge, quiet()))) == 2
    assert pool.out == [1, 1]  # one at a time, however large


@pytest.mark.parametrize("pool", [Backwards(), Local(lambda cell: cell.key[1] ** 2)])
def test_what_is_not_wanted_any_more_is_dropped_alike_whether_it_was_begun_or_not(pool):
    stopped, found = [], []
    for cell, outcome in run(pool, CELLS, quiet(), wanted=lambda cell: not stopped or cell.key[1] == 5):
        found.append(outcome and outcome.value)
        if cell.key[1] == 2:
            stopped.append(cell)
    assert found == [0, 1, 4, None, None, 25]


def test_the_local_runner_begins_nothing_that_is_not_wanted_and_nothing_once_time_is_over():
    began = []

    def work(cell):
        began.append(cell.key[1])

    list(run(Local(work), CELLS, quiet(), wanted=lambda cell: cell.key[1] % 2 == 0))
    assert began == [0, 2, 4]
    began.clear()
    found = list(run(Local(work), CELLS, quiet(), stop=lambda: len(began) == 3))
    assert began == [0, 1, 2]
    assert [cell for cell, _ in found] == CELLS[:3]
    began.clear()
    assert [cell for cell, _ in run(Local(work), CELLS, quiet(), stop=lambda: True)] == CELLS[:1]


def test_what_was_begun_in_time_is_kept_also_where_one_before_it_was_not():
    turns, ended = Turns(CELLS, most=10, stop=lambda: len(ended) > 1), []
    small = turns.take(room=0)
    ended.append(small)
    second = turns.take(room=0)
    ended.append(second)
    assert turns.take() is None
    turns.end(second, Outcome(2))
    assert list(turns.due()) == []
    turns.end(small, Outcome(1))
    assert list(turns.due()) == [(small, Outcome(1)), (second, Outcome(2))]


def test_a_worker_is_given_what_fits():
    cells = [Cell("count", (size,), needs=size) for size in (50, 10, 30)]
    turns = Turns(cells, most=10)
    assert [turns.take(room=20), turns.take(room=20), turns.take(room=40)] == [cells[1], None, cells[2]]
    assert turns.take(room=100) == cells[0]


def test_the_cell_that_the_others_are_held_back_for_is_begun_however_many_these_are():
    cells, passed_over = [Cell("count", (number,), needs=number) for number in (9, 1, 2, 8, 3)], []
    turns = Turns(cells, most=2, wanted=lambda cell: cell not in passed_over)
    for cell in cells[1:3]:
        assert turns.take(room=3) == cell
        turns.end(cell, Outcome(0))
    assert turns.take(room=3) is None  # two are held back
    assert turns.take() == cells[0]
    turns.end(cells[0], Outcome(0))
    passed_over.append(cells[3])
    assert [cell for cell, _ in turns.due()] == cells[:3]
    assert turns.take() == cells[4]


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_an_error_of_a_cell_is_raised_in_its_turn_after_what_came_before_it(kind):
    class Failing(Backwards):
        def run(self, turns, watch):
            for cell, outcome in super().run(turns, watch):
                yield cell, Outcome(error=kind("no number")) if cell.key[1] == 3 else outcome

    found = run(Failing(), CELLS, quiet())
    assert [next(found)[0] for _ in range(3)] == CELLS[:3]
    with pytest.raises(kind, match="no number"):
        next(found)


def test_the_bar_counts_every_cell_once_when_it_ends_and_a_line_says_who_did_it(capsys):
    seen = []

    class Noting(Backwards):
        def run(self, turns, watch):
            for cell, outcome in super().run(turns, watch):
                watch.began(cell, 7)
                yield cell, outcome
                seen.append(watch.bar.n)

    with watching(CELLS, "counting", lambda cell: f"no. {cell.key[1]}", lambda cell: 10, verbose=True) as watch:
        list(run(Noting(), CELLS, watch, wanted=lambda cell: cell.key[1] != 4))
        assert (watch.bar.n, watch.bar.total) == (60, 60)
    assert seen == [10, 20, 30, 40, 60]  # the one that is not wanted is passed over in its turn
    told = capsys.readouterr().err
    assert "worker 7: no. 5 in 0.0 s" in told
    assert "no. 4 in" not in told


def test_an_outcome_is_let_go_of_before_the_next_is_made():
    made, alive = [], []

    def large(cell):
        alive.append(sum(each() is not None for each in made))
        value = io.BytesIO()
        made.append(weakref.ref(value))
        return value

    for _, outcome in run(Local(large), CELLS, quiet()):
        del outcome
    assert alive == [0] * len(CELLS)
