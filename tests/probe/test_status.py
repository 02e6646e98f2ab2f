"""How far a run is, told from what lies in its folder: nothing is written, and no model is needed."""

import json

import synthetic

from mesa_lens.cli import main
from probe.experiment.journal import Journal
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
