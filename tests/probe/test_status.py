"""How far a run is, told from what lies in its folder: nothing is written, and no model is needed."""

import argparse
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import synthetic
import tiny
from holding import held

from mesa_lens.arguments import read_options
from mesa_lens.cli import main, parser
from probe.commands import commands, resume_command
from probe.experiment.journal import Journal, recorded
from probe.files import write_result
from probe.run_folder import LOCK, layouts
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
    assert "eval: 2 cells done" in status_of(other.parent).text()


def test_a_probe_run_is_counted_by_passes_and_measured_cells(tmp_path):
    hidden = synthetic.hidden_states(layers=2, dims=4)
    labels = {f"{name}s": hidden[name].values.tolist() for name in ("method", "prompt", "layer")}
    axes = {"resid_post": {name: hidden[name].values.tolist() for name in ("position", "dim")}}
    attrs = {"trained_length": 64, "model": "tiny", "lengths": "[64, 128]"}
    store.create(tmp_path / "store.zarr", store.Template(axes=axes, attrs=attrs, **labels))
    for layer in range(2):
        values = hidden.isel(method=0, prompt=0, layer=layer).values
        store.write(tmp_path / "store.zarr", "resid_post", "origin", "repeated", layer, values)
    journal = Journal(tmp_path / "measured.jsonl", {"model": "tiny"})
    journal.add(("nll", "origin", 64), {"config": {"name": "origin"}, "scores": [1.0]})
    journal.add(("nll", "origin", 96), {"config": {"name": "origin"}, "scores": [1.0]})  # a refined length
    journal.add(("nll", "yarn", 64), {"config": {"name": "yarn"}, "scores": [1.0]})  # a method of an earlier run
    assert counts(tmp_path) == [("probe", "measured cells", 2, 17), ("probe", "captured passes", 1, 8)]
    assert "the store is not finished" in status_of(tmp_path).text()


MODEL = "--model /m/it\\'s --revision=-x --dtype float16 --device cuda:1 --trained-length 2k --trust-remote-code"
METHODS = f"{MODEL} --methods mesa,rerope --set rerope.window=9 --set mesa.E=3 --seed 7 --executor dense"
LINES = {
    "probe": f"{METHODS} --length 4k --prompt ' a;$(b)' --text t.txt --texts 3 --hooks q,k --layers 0-1,3 --positions "
    "0-9 --dims 4 --store-dtype float16 --samples 5 --lengths 64,1k --refine 2 --rule paper",
    "eval": f"{METHODS} --task nll,vt --lengths 1k:3k:1k --samples 3 --text t --depth .25 "
    "--batch 2 --harness niah,acc --include-path tasks --limit 4",
    "locate": f"{METHODS} --try clamp,smallest --measure passkey --lengths 128 --samples 2 --layers 0-2 --heads none "
    "--ways only --dims 3 --candidates 5 --prompt=--trust-remote-code --text '~/t x'",
    "anatomy": f"{METHODS} --parts heads,tokens --lengths 64,128 --samples 1 --layers 1 --text t",
    "readout": f"{METHODS} --probe position,previous-3 --lengths 2k,4k --samples 8 --tokens 9 --classes 5 "
    "--hook resid_pre --layers 1 --text t",
    "predict": f"{METHODS} --config rerope:window=3 --config stair:E=2,N=4 --lengths 2k --samples 6 --text t --check",
}


def read(words):
    """The request of a command line."""
    args = parser().parse_args(words, argparse.Namespace())
    return [read_options(args, cls) for cls in commands()[words[0]].options]


@pytest.mark.parametrize("command", LINES)
def test_the_recorded_request_makes_the_line_that_asks_it_again(command):
    words = shlex.split(LINES[command])
    given = read([command, *words])
    record = recorded(*given)
    line = resume_command(command, Path("my runs"), json.loads(json.dumps(record)))
    again = shlex.split(line)
    assert again[:2] == ["mesa-lens", command]
    assert "--trust-remote-code" not in again  # a prompt may be called so
    words.remove("--trust-remote-code")
    assert read(again[1:]) == read([command, *words])
    assert parser().parse_args(again[1:]).out == Path("my runs")
    default = resume_command(command, Path("x"), recorded(*read([command])))
    assert default == f"mesa-lens {command} --out=x"
    for key, values in {
        "trust_remote_code": [],
        "out": ["/"],
        "seed": ["1; rm"],
        "executor": ["a\x1b[2J"],
        "model": "text",
        "trained_length": [],
    }.items():
        assert resume_command(command, Path("x"), record | {key: values}) == ""
    for damaged in (None, 3, [], "seed"):
        assert resume_command(command, Path("x"), damaged) == ""


def test_an_unfinished_run_is_finished_by_the_line_that_its_status_prints(tmp_path, capsys):
    out, model = tmp_path / "it's", tiny.folder(tmp_path / "model")
    given = ["eval", "--model", str(model), "--lengths", "80,128", "--samples", "1", "--out", str(out)]
    assert main([*given, "--task", "nll", "--methods", "origin"]) == 0
    assert status_of(out).resume == {}
    assert main([*given, "--task", "nll", "--methods", "origin,rerope", "--minutes", "1e-9"]) == 0
    status = status_of(out)
    assert status.state == "unfinished"
    capsys.readouterr()
    assert main(["status", str(out)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "to go on: " in line]
    assert line.endswith(status.resume["eval"])
    assert status.as_dict()["resume"] == [status.resume["eval"]]
    assert main(shlex.split(status.resume["eval"])[1:]) == 0
    assert status_of(out).state == "finished"
    rows = status_of(out).parts[0]
    assert [rows.done, rows.left] == [4, 0]


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
    results = layouts()[command].results
    missing = " and ".join(name for name in results if name != written)
    assert f"{missing} of {command} not written" in status_of(tmp_path).text()
    for name in results:
        write_result(tmp_path / folder / name, {})
    assert status_of(tmp_path).state == "finished"
