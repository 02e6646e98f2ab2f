"""`mesa-lens eval`: what it prints and writes, and how a run goes on."""

import json

import pytest
from commands import main

from probe.commands.eval import run as running
from probe.eval_tasks.tasks import RetrievalTask
from probe.files import read_result
from probe.run_folder import RUN


@pytest.fixture
def words(model):
    options = "--task passkey,nll --methods origin,mesa --lengths 96,200 --samples 2"
    return ["eval", "--model", model, *options.split(), "--out"]


def summary(folder):
    """As it is printed: what its file says of the run is the file's own."""
    return {name: value for name, value in read_result(folder / "summary.json").items() if name != RUN}


def test_the_list_of_tasks_needs_no_model(capsys):
    assert main(["eval", "--list-tasks"]) == 0
    printed = capsys.readouterr().out
    for task in ("passkey", "passkey-question", "niah-essay", "lines", "nll-position", "latency"):
        assert f"\n{task} " in f"\n{printed}"


def test_a_run_writes_tables_and_curves_and_prints_the_summary(words, tmp_path, capsys):
    words = [*words, str(tmp_path)]
    assert main(words) == 0
    first = capsys.readouterr()
    assert "passkey, accuracy (share found); mean of 2 [95% interval]" in first.out
    assert "nll (nats/token); mean of 2 [95% interval]" in first.out
    assert "8 tasks, 2,368 tokens" in first.err  # no terminal: a bar only after some seconds
    assert {path.name for path in tmp_path.iterdir()} == {
        "journal.jsonl", "samples.csv", "summary.json", "passkey.png", "passkey.html", "nll.png", "nll.html",
        "report.html",
    }  # fmt: skip
    header, *rows = (tmp_path / "samples.csv").read_text().splitlines()
    assert header == "task,method,length,seed,sample,metric,score,seconds,peak_mib,depth"
    assert len(rows) == 2 * 2 * 2 * 2
    assert main(words) == 0
    again = capsys.readouterr()
    assert f"finished already: {tmp_path}" in again.err
    assert again.out == first.out
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == summary(tmp_path)
    assert printed["trained_length"] == 160
    assert printed["methods"]["mesa"]["window"] == 20
    assert set(printed["versions"]) == {"mesa-lens", "torch", "transformers"}


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_an_interrupt_says_how_to_go_on(words, tmp_path, capsys, monkeypatch, overwrite):
    original = RetrievalTask.measure
    left = iter([False, True, False])  # the first cell of one run, the second of another

    def interrupted(self, *arguments):
        if not next(left):
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(RetrievalTask, "measure", interrupted)
    start = "interrupted; without --overwrite, the same" if overwrite else "interrupted; the same"
    for says in ("interrupted; nothing half-written was left", f"{start} command continues from {tmp_path}"):
        assert main([*words, str(tmp_path), *overwrite]) == 1
        assert says in capsys.readouterr().err


def test_after_its_minutes_a_run_ends_and_the_same_command_goes_on(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("probe.experiment.run.is_over", lambda until: until is not None)  # after the first cell
    monkeypatch.setattr("probe.commands.eval.page.write_curves", lambda *_: [])  # matplotlib takes seconds
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    with monkeypatch.context() as patch:
        patch.setattr(running, "is_over", lambda until: until is not None)
        assert main([*words, str(cut), "--minutes", "5"]) == 0
    printed = capsys.readouterr()
    assert "nothing more fits in 5 minutes, 8 of 8 tasks are left; the same command continues from" in printed.err
    assert printed.out == ""
    assert not cut.exists()
    for left in (7, 6):
        assert main([*words, str(cut), "--minutes", "5"]) == 0
        printed = capsys.readouterr()
        assert (
            f"nothing more fits in 5 minutes, {left} of 8 tasks are left; the same command continues from"
            in printed.err
        )
        assert summary(cut)["tasks_left"] == left
        assert "samples.csv, summary.json" in printed.out
    assert main([*words, str(cut)]) == 0
    assert "minutes, " not in capsys.readouterr().err
    assert main([*words, str(whole)]) == 0
    assert summary(cut) == summary(whole)
