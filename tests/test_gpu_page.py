"""The page of `make test-gpu`, as far as a CPU can tell: its steps run, refuse and report failures."""

import json
import sys
from pathlib import Path

import pytest
import torch

from mesa.engine.gpu import kernels

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import gpu


def test_every_step_runs_on_the_cpu_and_is_on_the_page(tmp_path):
    assert gpu.main(["--dry-run", "--out", str(tmp_path)]) == 0
    stored = json.loads((tmp_path / "gpu.json").read_text())
    text = (tmp_path / "gpu.md").read_text()
    assert list(stored) == list(gpu.STEPS)
    for title, step in stored.items():
        assert step["rows"]
        assert not step["error"]
        assert f"## {title}" + (": passed" if "passed" in step["rows"][0] else "\n") in text
    assert "**A dry run on the CPU: it says nothing about a GPU.**" in text


def test_without_a_gpu_it_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "page")]) == 2
    assert "sees no CUDA device; --dry-run tries the steps on the CPU" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize("mistake", ["wrong", "broken"])
def test_what_fails_is_on_the_page_and_the_other_steps_go_on(mistake, tmp_path, monkeypatch):
    operations = kernels.by_operations

    def mistaken(query, *given):
        if mistake == "broken":
            raise RuntimeError("no kernel for this device")
        output, log_sum = operations(query, *given)
        return output + 0.1 * (query.dtype == torch.float32), log_sum  # what it is compared with is right

    mistaken.__name__ = "by_operations"
    monkeypatch.setattr(kernels, "by_operations", mistaken)
    monkeypatch.setattr(gpu, "STEPS", {title: gpu.STEPS[title] for title in ("Kernels", "Methods")})
    assert gpu.main(["--dry-run", "--out", str(tmp_path)]) == 1
    text = (tmp_path / "gpu.md").read_text()
    assert "## Methods: passed" in text
    assert (f"## Kernels: {len(kernels.TRIALS)} failed" if mistake == "wrong" else "no kernel for this device") in text
