"""How far a run is, told from what lies in its folder: nothing is written, and no model is needed."""

import json

import numpy as np
import pytest
import synthetic
from holding import held

from mesa_lens.cli import main
from probe.experiment.journal import Journal
from probe.experiment.lock import LOCK
from probe.files import write_result
from probe.status import status_of
from probe.store import store


def evaluated(path, done, expected=None, **settings):
    """A journal of `done` cells."""
    journal = Journal(path, {"model": "tiny", **settings})
    if expected:
        journal.expect(expected)
    for number in range(len(journal.rows), done):
        journal.add(("nll", "origin", number), {"config": {"name": "origin"}, "scores": [1.0]})
    return path


def counts(folder):
    return [(part.command, part.what, part.done, part.cells) for part in status_of(folder).parts]


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_journal_holds_the_number_of_cells(tmp_path, capsys):
    path = evaluated(tmp_path / "new" / "journal.jsonl", 2, 5)
    assert counts(path.parent) == [("eval", "cells", 2, 5)]
    assert "eval: 2 of 5 cells done, 3 left" in status_of(path.parent).text()
    evaluated(path, 3, 7)  # with further tasks
    assert counts(path.parent) == [("eval", "cells", 3, 7)]
    whole = path.read_text()
    evaluated(path, 4, 7)
    assert path.read_text().startswith(whole)
    assert path.read_text().count('"cells"') == 2  # a known number is not repeated
    assert main(["status", str(path.parent), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert [status[key] for key in ("state", "done", "left", "failed", "of")] == ["unfinished", 4, 3, 0, 7]
    other = evaluated(tmp_path / "other" / "journal.jsonl", 2)
    assert "eval: 2 of unknown cells done" in status_of(other.parent).text()


def test_a_probe_run_is_counted_by_passes_and_measured_cells(tmp_path):
    hidden = synthetic.hidden_states(layers=2, dims=4)
    labels = {f"{name}s": hidden[name].values.tolist() for name in ("method", "prompt", "layer", "position", "dim")}
    attrs = {"trained_length": 64, "model": "tiny", "lengths": "[64, 128]"}
    store.create(tmp_path / "store.zarr", hooks=["resid_post"], attrs=attrs, **labels)
    for layer in range(2):
        values = hidden.isel(method=0, prompt=0, layer=layer).values
        store.write(tmp_path / "store.zarr", "resid_post", "origin", "repeated", layer, values)
    journal = Journal(tmp_path / "measured.jsonl", {"model": "tiny"})
    journal.add(("nll", "origin", 64), {"config": {"name": "origin"}, "scores": [1.0]})
    journal.add(("nll", "origin", 96), {"config": {"name": "origin"}, "scores": [1.0]})  # a refined length
    journal.add(("nll", "yarn", 64), {"config": {"name": "yarn"}, "scores": [1.0]})  # a method of an earlier run
    assert counts(tmp_path) == [("probe", "measured cells", 2, 17), ("probe", "captured passes", 1, 8)]
    assert "the store is not finished" in status_of(tmp_path).text()


def test_a_line_cut_short_is_not_counted_and_a_damaged_one_is_named(tmp_path, capsys):
    path = evaluated(tmp_path / "journal.jsonl", 4, 6)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    assert counts(tmp_path) == [("eval", "cells", 3, 6)]
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(b"nll", b"nil"), *lines[3:]]))
    assert main(["status", str(tmp_path)]) == 1
    assert "eval: 3 of 6 cells done, 3 left; damaged: line 3" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["nothing", "file", "foreign", "missing"])
def test_what_is_no_run_is_refused_by_name(tmp_path, kind, capsys):
    folder = tmp_path / "here"
    if kind == "file":
        folder.write_text("")
    elif kind != "missing":
        folder.mkdir()
        (folder / "notes.txt" if kind == "foreign" else folder / ".hidden").write_text("")
    assert main(["status", str(folder)]) == 2
    error = capsys.readouterr().err
    assert str(folder) in error
    assert "--out" in error
    (tmp_path / "journal.jsonl").write_text("no journal\n")
    assert main(["status", str(tmp_path)]) == 2
    assert "journal.jsonl is not a journal of a run" in capsys.readouterr().err


def test_the_pace_of_a_running_process_is_that_of_its_new_rows(tmp_path):
    path = evaluated(tmp_path / "journal.jsonl", 3, 12)
    path.write_bytes(path.read_bytes()[:-5])  # it drops what an interrupt cut
    with held(tmp_path) as holder:
        evaluated(path, 4, 12)
        before, status = files(tmp_path), status_of(tmp_path)
        assert status.state == "running"
        assert f"running, process {holder.pid} on" in status.text()
        lock = tmp_path / LOCK
        lock.write_text(json.dumps(json.loads(lock.read_text()) | {"since": "2020-01-01T00:00:00+00:00"}))
        since = (np.datetime64("now") - np.datetime64("2020-01-01T00:00:00")).astype(int)
        assert status_of(tmp_path).parts[0].seconds == pytest.approx(8 * since / 2, 1e-3)  # two of four rows are new
        lock.write_bytes(before[lock])
        assert files(tmp_path) == before
    status = status_of(tmp_path)
    assert status.state == "unfinished"
    assert f"process {holder.pid} on" in status.text()
    assert f"ended and left its {LOCK}" in status.text()


def test_a_command_that_measured_all_and_has_no_result_says_why(tmp_path):
    evaluated(tmp_path / "predict" / "journal.jsonl", 2, 2)
    write_result(tmp_path / "predict" / "prediction.json", {"refusal": "there is no failure to predict"})
    status = status_of(tmp_path)
    assert status.state == "finished"
    assert "predict ended without a result: there is no failure to predict" in status.text()


@pytest.mark.parametrize(("folder", "written"), [("", "summary.json"), ("locate", "report.html")])
def test_a_run_whose_summary_or_report_is_missing_is_not_finished(folder, written, tmp_path):
    evaluated(tmp_path / folder / "journal.jsonl", 2, 2)
    assert status_of(tmp_path).state == "unfinished"
    (tmp_path / folder / written).write_text("{}")
    command = folder or "eval"
    (missing,) = {"summary.json", "report.html"} - {written}
    assert f"{missing} of {command} not written" in status_of(tmp_path).text()
    for name in ("summary.json", "report.html"):
        write_result(tmp_path / folder / name, {})
    assert status_of(tmp_path).state == "finished"
