"""Threads: as many as torch has, never more than a container gives; or those stated."""

import pytest
import tiny
import torch

from mesa_lens.cli import main
from probe.experiment import pool

EVAL = "eval --task nll --methods origin --lengths 96 --samples 1"


@pytest.fixture(autouse=True)
def stated(monkeypatch):
    """Nothing is stated, and torch has 4 threads to begin with; as it was at the end."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    former = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(former)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Pretends a machine: how many CPUs this process may use, the container's quota, and how many CPUs are busy."""

    def pretend(count, quota=None, busy=0):
        monkeypatch.setattr(pool.psutil, "cpu_percent", lambda seconds, percpu: [100.0] * busy + [4.0] * 8)
        if quota:
            (tmp_path / "cpu.max").write_text(quota)
        monkeypatch.setattr(pool, "_CPU_MAX", tmp_path / "cpu.max")
        monkeypatch.setattr(pool, "_affinity", lambda: {*range(count)})

    return pretend


@pytest.mark.parametrize(
    ("count", "quota", "busy", "expected"),
    [
        (8, None, 0, 4),
        (2, None, 0, 2),
        (8, "250000 100000\n", 0, 2),
        (8, "max 100000\n", 0, 4),
        (8, "50000 100000\n", 0, 1),
        (8, None, 6, 2),
        (4, None, 4, 1),
    ],
)
def test_one_an_idle_cpu_at_most_as_many_as_torch_has(count, quota, busy, expected, machine):
    machine(count, quota, busy)
    with pool.computing() as chosen:
        assert chosen == torch.get_num_threads() == expected
    assert torch.get_num_threads() == 4


def test_the_option_reaches_torch_and_is_no_part_of_a_run(machine, tmp_path, capsys, monkeypatch):
    machine(4)
    seen = []
    monkeypatch.setattr(
        torch, "set_num_threads", lambda count, real=torch.set_num_threads: (seen.append(count), real(count))
    )
    model, out = str(tiny.folder(tmp_path / "model")), tmp_path / "out"
    command = [*EVAL.split(), "--model", model, "--out", str(out)]
    assert main([*command, "--threads", "2"]) == 0
    (row,) = (out / "journal.jsonl").read_text().splitlines()[1:]
    assert main([*(word.replace("nll", "nll,passkey") for word in command), "--threads", "3"]) == 0
    assert seen == [2, 4, 3, 4]
    assert (out / "journal.jsonl").read_text().count(row) == 1


@pytest.mark.parametrize(
    ("workers", "stated", "environment", "threads_each"),
    [(2, 3, "", 3), (2, None, "", 4), (2, 3, "1", 3), (2, None, "1", 1), (8, None, "", 1)],
)
def test_workers_share_the_cpus_unless_threads_are_stated(workers, stated, environment, threads_each, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", environment)
    assert pool.worker_threads(workers, 8, stated) == threads_each
