"""`mesa-lens eval`: what it prints, writes and refuses."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import tiny
from commands import main

from probe.evaluation import run as running
from probe.experiment import model_spec as source
from probe.tasks.finding import Finding

ASKED = "--task passkey,nll --methods origin,mesa --lengths 96,200 --samples 2".split()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return ["--model", str(tiny.folder(tmp_path_factory.mktemp("model")))]


def test_the_list_of_tasks_needs_no_model(capsys):
    assert main(["eval", "--list-tasks", "--model", "nowhere/at/all"]) == 0
    printed = capsys.readouterr().out
    for task in ("passkey", "passkey-question", "niah-essay", "lines", "nll-sliding", "summary", "latency"):
        assert f"\n{task} " in f"\n{printed}"


def test_the_estimate_loads_no_weights_and_writes_nothing(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(source, "load", None)
    assert main(["eval", *ASKED, *model, "--out", str(tmp_path / "x"), "--estimate"]) == 0
    assert "8 cells (2 tasks x 2 methods), 2 samples each" in capsys.readouterr().out
    assert not (tmp_path / "x").exists()


def test_a_run_writes_tables_and_curves_and_prints_the_summary(model, tmp_path, capsys):
    assert main(["eval", *ASKED, *model, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "passkey, accuracy (share found); mean of 2 [95% interval]" in printed.out
    assert "nll (nats/token); mean of 2 [95% interval]" in printed.out
    assert "evaluating" in printed.err  # progress
    assert {path.name for path in tmp_path.iterdir()} == {
        "cells.jsonl", "samples.csv", "summary.json", "passkey.png", "passkey.html", "nll.png", "nll.html",
    }  # fmt: skip
    header, *rows = (tmp_path / "samples.csv").read_text().splitlines()
    assert header == "task,method,length,seed,sample,metric,score,seconds,peak_mib"
    assert len(rows) == 2 * 2 * 2 * 2
    assert main(["eval", *ASKED, *model, "--out", str(tmp_path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert summary["trained_length"] == 160
    assert summary["methods"]["mesa"]["window"] == 20
    assert set(summary["versions"]) == {"mesa-lens", "torch", "transformers"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "nonsense"], "unknown task 'nonsense'; known: passkey"),
        (["--task", ","], "--task ',' has an empty name"),
        (["--lengths", "1k:2k"], "is no FIRST:LAST:STEP"),
        (["--lengths", "50"], "length=50 is below the task's fixed text of 66 tokens"),
        (["--samples", "0"], "--samples 0 is below 1"),
        (["--minutes", "0"], "--minutes 0 is not above 0"),
        (["--harness", "task", "--minutes", "5"], "--minutes is for --task; lm-eval's tasks are run whole"),
        (["--task", "summary", "--data", "nowhere.jsonl"], "nowhere.jsonl is not a file or folder"),
        (["--set", "rerope.window=3"], "--set names 'rerope'"),
    ],
)
def test_misuse_ends_with_2_and_one_line(model, tmp_path, capsys, options, message):
    assert main(["eval", *ASKED, *model, "--out", str(tmp_path / "x"), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_an_interrupt_says_how_to_go_on(model, tmp_path, capsys, monkeypatch, overwrite):
    def interrupted(self, *arguments):
        nonlocal cells
        if not cells:
            raise KeyboardInterrupt
        cells -= 1
        return original(self, *arguments)

    original, cells = Finding.measure, 0
    monkeypatch.setattr(Finding, "measure", interrupted)
    assert main(["eval", *ASKED, *model, "--out", str(tmp_path), *overwrite]) == 1
    assert capsys.readouterr().err.endswith("mesa-lens: interrupted; nothing half-written was left\n")
    cells = 1
    assert main(["eval", *ASKED, *model, "--out", str(tmp_path), *overwrite]) == 1
    start = "interrupted; without --overwrite, the same" if overwrite else "interrupted; the same"
    assert f"{start} command goes on from {tmp_path}" in capsys.readouterr().err


def test_after_its_minutes_a_run_ends_and_the_same_command_goes_on(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("probe.experiment.run.is_over", lambda until: until is not None)  # after the first cell
    asked = ["eval", *ASKED, *model, "--out", str(tmp_path / "cut")]
    with monkeypatch.context() as patch:
        patch.setattr(running, "is_over", lambda until: until is not None)
        assert main([*asked, "--minutes", "5"]) == 0
    shown = capsys.readouterr()
    assert "5 minutes are over, 8 of 8 cells are left; the same command goes on from" in shown.err
    assert shown.out == ""
    assert not (tmp_path / "cut").exists()
    for left in (7, 6):
        assert main([*asked, "--minutes", "5"]) == 0
        shown = capsys.readouterr()
        assert f"5 minutes are over, {left} of 8 cells are left; the same command goes on from" in shown.err
        assert json.loads((tmp_path / "cut" / "summary.json").read_text())["cells_left"] == left
        assert "samples.csv, summary.json" in shown.out
    assert main(asked) == 0
    assert "minutes are over" not in capsys.readouterr().err
    assert main(["eval", *ASKED, *model, "--out", str(tmp_path / "whole")]) == 0
    cut, whole = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("cut", "whole"))
    assert cut == whole


def test_a_failure_ends_with_1(model, tmp_path, capsys, monkeypatch):
    def failing(*_):
        raise RuntimeError("no luck")

    monkeypatch.setattr(Finding, "measure", failing)
    assert main(["eval", *ASKED, *model, "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("mesa-lens: no luck\n")


@pytest.mark.slow
def test_ctrl_c_in_the_middle_leaves_a_run_that_goes_on(tmp_path, capsys):
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    asked = ["eval", "--task", "passkey", "--methods", "origin,mesa", "--lengths", "256,1k", "--samples", "8", "--out"]
    command = [sys.executable, "-m", "mesa_lens", *asked, str(cut)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        journal = cut / "cells.jsonl"
        while not journal.exists() or len(journal.read_text().splitlines()) < 2:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate()
    assert process.returncode == 1
    assert "interrupted; the same command goes on" in error
    assert 2 <= len(journal.read_text().splitlines()) < 5
    assert (cut / "samples.csv").exists()
    assert not (cut / "summary.json").exists()
    assert main([*asked, str(cut)]) == main([*asked, str(whole)]) == 0
    cells = [json.loads((folder / "summary.json").read_text())["cells"] for folder in (cut, whole)]
    assert cells[0] == cells[1]
