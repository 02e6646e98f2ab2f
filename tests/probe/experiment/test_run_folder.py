"""A folder is a run's by what only a run writes; another's files are refused by name, before any work."""

import json

import pytest

from mesa import make
from mesa.settings import make_methods
from probe.experiment.journal import Journal
from probe.options import Tokens, read_as
from probe.run_folder import RunFolder, differing


@pytest.mark.parametrize("name", ["data.jsonl", "deep/data.jsonl", "a.zarr/zarr.json", "store.zarr/notes", "locate/me"])
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_a_strangers_folder_is_no_runs_and_stays_as_it_is(name, overwrite, tmp_path, model, capsys):
    from commands import main

    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"text": "mine"}\n')
    (tmp_path / "summary.json").write_text("mine")
    assert main(["eval", "--model", model, "--samples", "1", "--lengths", "96", "--out", tmp_path, *overwrite]) == 2
    assert "holds other things than a run" in capsys.readouterr().err
    assert file.read_text() == '{"text": "mine"}\n'
    assert (tmp_path / "summary.json").read_text() == "mine"
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


@pytest.mark.parametrize("name", ["journal.jsonl", "new-experiment/journal.jsonl", "any.jsonl"])
def test_a_folder_with_a_journal_of_any_experiment_is_a_runs(name, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds other things than a run"):
        RunFolder(tmp_path).check_run()
    Journal(tmp_path / name, {"model": "tiny"}).add(("nll", "origin", 64), {"nll": [1.0]})
    RunFolder(tmp_path).check_run()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("harness.json", "{}"),
        ("data.jsonl", '{"settings": {"theme": "dark"}}\n'),
        ("store.zarr/zarr.json", '{"zarr_format": 3, "node_type": "group", "attributes": {"mine": 1}}'),
        ("journal.jsonl", ""),
        ("journal.jsonl", '{"sett'),
    ],
)
def test_a_file_named_or_begun_as_ours_makes_no_run(name, content, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    (tmp_path / "summary.json").write_text("mine")
    with pytest.raises(FileExistsError, match="holds other things than a run"):
        RunFolder(tmp_path).check_run()


@pytest.mark.parametrize("name", ["journal.jsonl", "locate/journal.jsonl"])
def test_a_run_killed_in_its_first_line_goes_on(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"sett')
    RunFolder(tmp_path).check_run()


def test_every_number_of_tokens_may_be_in_thousands():
    assert [read_as(Tokens, text) for text in ("2k", "1K", "300")] == [2048, 1024, 300]
    for wrong in ("k", "0k", "-1k", "2kk", "1.5k"):
        with pytest.raises(ValueError, match="is not an integer"):
            read_as(Tokens, wrong)


def test_a_seed_is_compared_where_both_have_one():
    there = {"model": "m", "trained_length": 64}
    assert differing(there | {"seed": 3}, there) == differing(there, there | {"seed": 3}) == ""
    assert differing(there | {"seed": 3}, there | {"seed": 0}) == "another seed (3 there, 0 now)"


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [("mesa", "middle", "woven"), ("rerope", "heads", "0:1;1:0,2"), ("rerope", "layers", (0, 1))],
)
def test_parameters_that_a_config_leaves_out_are_taken_and_compared(name, parameter, value, tmp_path):
    changed, default = make(name, trained_length=64, **{parameter: value}), make(name, trained_length=64)
    settings = {"model": "m", "trained_length": 64}
    for number, (there, other) in enumerate([(changed, default), (default, changed)]):
        folder, configs = RunFolder(tmp_path / str(number)), json.dumps({name: there.describe()})
        Journal(folder.path / "locate" / "journal.jsonl", {**settings, "method_configs": configs}).add(
            ("nll", name, 64), {}
        )
        assert make_methods(name, 64, folder.taken({}, (), name)["set"]) == {name: there}
        folder.check(settings, {name: there}, lambda settings: "float32")
        with pytest.raises(FileExistsError, match=rf"holds {name} of another {parameter} \("):
            folder.check(settings, {name: other}, lambda settings: "float32")
