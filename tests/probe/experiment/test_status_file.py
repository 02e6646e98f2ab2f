"""The status file lists running tasks while they run, and lost ones until they are tried again."""

import pytest

from probe.experiment.pool import LocalPool, ordered_results
from probe.experiment.progress import showing_progress
from probe.experiment.status_file import STATUS_FILE, StatusFile, TaskStatus, read_status
from probe.experiment.task import Task

INFINITE = b'{"running": [["a", [], 1e999]], "lost": []}'
TASKS = [Task("count", ("cell", number)) for number in range(3)]


def test_a_task_is_listed_while_it_runs_and_the_file_is_gone_at_the_end(tmp_path):
    seen = []
    with showing_progress("counting", folder=tmp_path) as progress:
        pool = LocalPool(lambda task: seen.append(read_status(tmp_path).running))
        list(ordered_results(pool, TASKS, progress))
    assert seen == [{(task.kind, task.key): 1} for task in TASKS]
    assert not (tmp_path / STATUS_FILE).exists()


def test_a_lost_task_is_listed_until_its_kind_runs_again(tmp_path, capsys):
    large = Task("large", ("cell", 1), inputs=(7, 8, 9))
    listed = {("large", ("cell", 1)): 3}
    with showing_progress("counting", folder=tmp_path) as progress:
        progress.began(large, 2)
        progress.ended(large)
        progress.lost(large, "its process died")
        progress.began(TASKS[2])
    assert "failed: cell, 1: its process died" in capsys.readouterr().err
    assert read_status(tmp_path) == TaskStatus({}, listed)
    file = StatusFile(tmp_path)
    file.expect(TASKS)
    file.began(TASKS[0])
    assert read_status(tmp_path) == TaskStatus({("count", ("cell", 0)): 1}, listed)
    file.close()
    assert read_status(tmp_path) == TaskStatus({}, listed)
    file.expect([large])
    file.began(large)
    assert read_status(tmp_path) == TaskStatus(listed, {})
    file.ended(large)
    assert not (tmp_path / STATUS_FILE).exists()


def test_it_creates_no_folder(tmp_path):
    with showing_progress("counting", folder=tmp_path / "none") as progress:
        progress.began(TASKS[0])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"running": [[1]], "lost": []}', b"\xff", INFINITE])
def test_an_unreadable_file_lists_nothing(content, tmp_path):
    (tmp_path / STATUS_FILE).write_bytes(content)
    assert read_status(tmp_path) == TaskStatus()
    StatusFile(tmp_path).close()
    assert not (tmp_path / STATUS_FILE).exists()
