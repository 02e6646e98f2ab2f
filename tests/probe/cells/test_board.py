"""What is under way and what was lost is told while cells are run, and after that what is still lost."""

import pytest
from tqdm import tqdm

from probe.cells.board import BOARD, Board, Posted, posted
from probe.cells.cell import Cell, Outcome
from probe.cells.local import Local
from probe.cells.pool import run
from probe.cells.watch import watching

INFINITE = b'{"running": [["a", [], 1e999]], "lost": []}'
CELLS = [Cell("count", ("cell", number)) for number in range(3)]


def test_a_cell_is_told_as_long_as_it_runs_and_nothing_is_left_in_the_end(tmp_path):
    seen = []
    with watching(CELLS, "counting", str, folder=tmp_path) as watch:
        list(run(Local(lambda cell: seen.append(posted(tmp_path).running)), CELLS, watch))
    assert seen == [{(cell.kind, cell.key): 1} for cell in CELLS]
    assert not (tmp_path / BOARD).exists()


def test_what_was_lost_stays_told_until_cells_of_its_kind_are_run_again(tmp_path):
    large = Cell("large", ("cell", 1), given=(7, 8, 9))
    told = {("large", ("cell", 1)): 3}
    with watching(CELLS, "counting", str, folder=tmp_path) as watch:
        watch.began(large, 2)
        watch.ended(large)
        watch.lost(large, "its process died")
        watch.began(CELLS[2])
    assert posted(tmp_path) == Posted({}, told)
    board = Board(tmp_path, {"count"})
    board.began(CELLS[0])
    assert posted(tmp_path) == Posted({(CELLS[0].kind, CELLS[0].key): 1}, told)
    board.close()
    assert posted(tmp_path) == Posted({}, told)
    board = Board(tmp_path, {"large"})
    board.began(large)
    assert posted(tmp_path) == Posted(told, {})
    board.ended(large)
    assert not (tmp_path / BOARD).exists()


def test_no_folder_is_made_for_it(tmp_path):
    with watching(CELLS, "counting", str, folder=tmp_path / "none") as watch:
        watch.began(CELLS[0])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"running": [[1]], "lost": []}', b"\xff", INFINITE])
def test_a_board_that_cannot_be_read_says_nothing(content, tmp_path):
    (tmp_path / BOARD).write_bytes(content)
    assert posted(tmp_path) == Posted()
    Board(tmp_path, ()).close()
    assert not (tmp_path / BOARD).exists()


def test_an_outcome_that_is_lost_is_told_in_a_line(tmp_path, capsys):
    with watching(CELLS, "counting", lambda cell: f"no. {cell.key[1]}", folder=tmp_path) as watch:
        assert isinstance(watch.bar, tqdm)
        watch.lost(CELLS[1], Outcome(lost="its process died").lost)
    assert "failed: no. 1: its process died" in capsys.readouterr().err
