"""The page of `make test-gpu`, as far as a CPU can tell: its steps run, refuse and report failures."""

import json
import sys
from pathlib import Path

import pytest
import torch

from mesa.engine.attention import fused
from mesa.engine.gpu import kernels
from mesa.methods import make

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import gpu


@pytest.mark.slow
def test_every_step_runs_on_the_cpu_and_is_on_the_page(tmp_path):
    """Each in its own process, as on a GPU."""
    assert gpu.main(["--dry-run", "--out", str(tmp_path)]) == 0
    stored, text = gpu.results(tmp_path), (tmp_path / "gpu.md").read_text()
    assert sorted(stored) == sorted(gpu.STEPS)
    for title, (rows, error) in stored.items():
        assert rows
        assert not error
        assert f"## {title}" + (": passed" if "passed" in rows[0] else "\n") in text
    assert "**A dry run on the CPU: it says nothing about a GPU.**" in text


def test_without_a_gpu_it_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "page")]) == 2
    assert "sees no CUDA device; --dry-run tries the steps on the CPU" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize("mistake", ["wrong", "broken"])
def test_what_fails_is_on_the_page(mistake, tmp_path, monkeypatch):
    operations = kernels.by_operations

    def mistaken(query, *given):
        if mistake == "broken":
            raise RuntimeError("no kernel for this device")
        output, log_sum = operations(query, *given)
        return output + 0.1 * (query.dtype == torch.float32), log_sum  # what it is compared with is right

    mistaken.__name__ = "by_operations"
    monkeypatch.setattr(kernels, "by_operations", mistaken)
    for title in ("Kernels", "Methods"):
        gpu.measure(title, gpu.DRY, tmp_path)
    text = gpu.page(gpu.DRY, gpu.results(tmp_path))
    assert "## Methods: passed" in text
    assert (f"## Kernels: {len(kernels.TRIALS)} failed" if mistake == "wrong" else "no kernel for this device") in text


def test_rows_are_kept_of_a_step_that_is_cut_off(tmp_path):
    gpu.measure("Methods", gpu.DRY, tmp_path)
    lines = (tmp_path / "gpu.jsonl").read_text().splitlines()
    assert json.loads(lines[-1]) == {"step": "Methods", "finished": True}
    (tmp_path / "gpu.jsonl").write_text("\n".join(lines[:1]) + "\n" + lines[1][:20])
    ((rows, error),) = gpu.results(tmp_path).values()
    assert [row["method"] for row in rows] == ["rerope"]
    assert error == "not finished\n"
    assert "## Methods: 1 failed" in gpu.page(gpu.DRY, gpu.results(tmp_path))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sampled_queries_tell_a_window_that_is_off_by_one(dtype):
    states = [part.to(dtype) for part in gpu.states_of(gpu.DRY, (4, 2, 16), 150)]
    errors = []
    for window in (8, 9):
        output = fused(gpu.bound_to(make("rerope", 32, window=window), 150, 16, "cpu"), *states, 0.25)[0]
        errors.append(gpu.sampled(gpu.bound_to(make("rerope", 32, window=8), 150, 16, "cpu"), output, states, 0.25))
    assert errors[0] < 1 < errors[1]
