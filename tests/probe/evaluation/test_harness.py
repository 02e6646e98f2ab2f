"""lm-eval runs local tasks under each method, without the network."""

import json
import socket
import sys
from types import SimpleNamespace

import pytest
import tiny
import torch
from commands import main
from elsewhere import Elsewhere
from lm_tasks import write_tasks

import mesa
from probe.evaluation import harness
from probe.experiment import model_spec as source


def asked(folder, tasks, *options):
    return ["eval", "--harness", tasks, "--include-path", str(folder / "tasks"), "--model", str(folder / "model"),
            "--methods", "origin,mesa", "--lengths", "300", "--out", str(folder / "out"), *options]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    tiny.folder(folder / "model")
    write_tasks(folder / "tasks")
    return folder


@pytest.mark.slow
def test_states_that_are_no_numbers_end_it_with_the_layers_name(folder, tmp_path, monkeypatch, capsys):
    def spoilt(*given, **more):
        loaded = load(*given, **more)
        loaded.model.model.layers[1].register_forward_hook(lambda module, given, out: out * torch.nan)
        return loaded

    load = source.load
    monkeypatch.setattr(source, "load", spoilt)
    assert main([*asked(folder, "choose"), "--out", str(tmp_path)]) == 1
    assert "the states of layer 1 are not finite" in capsys.readouterr().err


@pytest.fixture(scope="module")
def finished(folder):
    """The command's exit code, the model, and the ids and logits of its passes over cut prompts."""
    passes = []

    def watched(*arguments, **options):
        loaded = original(*arguments, **options)
        loaded.model.register_forward_hook(keep, with_kwargs=True)
        finished["model"] = loaded.model
        return loaded

    def keep(model, arguments, options, output):
        ids = arguments[0] if arguments else options["input_ids"]
        if ids.shape[1] > 290:
            passes.append((ids.clone(), output.logits.clone()))

    def refused(*_):
        raise OSError("no network in tests")

    original, finished = source.load, {"passes": passes}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "load", watched)
        patch.setattr(socket.socket, "connect", refused)
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(name, "1")
        finished["code"] = main(asked(folder, "choose,say"))
    _, *finished["journal"] = map(json.loads, (folder / "out" / harness.JOURNAL).read_text().splitlines())
    return finished


@pytest.mark.slow
def test_local_tasks_are_scored_for_each_method(folder, finished):
    assert finished["code"] == 0
    written = json.loads((folder / "out" / "harness.json").read_text())
    assert written["max_length"] == 300
    assert list(written["results"]) == ["origin", "mesa"]
    for results in written["results"].values():
        assert results["choose"]["acc,none"] in (0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1)
        assert results["choose"]["sample_len"] == 3
        assert results["say"]["exact_match,none"] == 0  # a random model says nothing of the kind


@pytest.mark.slow
@torch.no_grad()
def test_each_method_is_attached_while_its_tasks_run(finished):
    passes = finished["passes"]
    assert len(passes) % 2 == 0
    assert len(passes) >= 4  # the choices and a generation, twice
    assert [line["cell"][:2] for line in finished["journal"]] == [
        ["choose", "origin"], ["say", "origin"], ["choose", "mesa"], ["say", "mesa"],
    ]  # fmt: skip
    half = len(passes) // 2
    for name, mine in (("origin", passes[:half]), ("mesa", passes[half:])):
        for ids, logits in mine:
            with mesa.applied(finished["model"], mesa.make(name, 160)):
                expected = finished["model"](ids).logits
            other = finished["model"](ids).logits
            torch.testing.assert_close(logits[:, -1], expected[:, -1], atol=1e-5, rtol=0)
            assert (float((logits[:, -1] - other[:, -1]).abs().max()) > 1e-2) == (name == "mesa")


@pytest.mark.slow
def test_finished_tasks_are_not_run_again(folder, finished, capsys, monkeypatch):
    monkeypatch.setattr(harness, "harness", None)
    assert main(asked(folder, "choose", "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {name: list(results) for name, results in printed["results"].items()} == {
        "origin": ["choose"],
        "mesa": ["choose"],
    }
    for options, message in {
        ("--limit", "1"): "holds a run with another limit (None there, 1 now); use --overwrite",
        ("--set", "mesa.width=7"): "holds choose of mesa at 300 with other parameters",
    }.items():
        assert main(asked(folder, "choose", *options)) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_task_that_no_worker_can_finish_is_told_left_out_and_run_by_the_same_command(
    folder, finished, tmp_path, capsys, monkeypatch
):
    real, lost = harness.run_harness, (("say", "origin", 300),)
    given = [*asked(folder, "choose,say"), "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(
            harness, "run_harness", lambda *some, **more: real(*some, **{**more, "runner": Elsewhere(lost=lost)})
        )
        assert main(given) == 1
    told = capsys.readouterr().err
    assert "failed: say, origin, 300: its process died" in told
    assert "mesa-lens: 1 cells failed; the same command continues" in told
    written = json.loads((tmp_path / harness.RESULTS).read_text())
    assert written["failed"] == [["say", "origin", 300]]
    assert {name: [*each] for name, each in written["results"].items()} == {
        "origin": ["choose"],
        "mesa": ["choose", "say"],
    }
    assert main(given) == 0
    one, other = (sorted((out / harness.JOURNAL).read_bytes().splitlines()) for out in (folder / "out", tmp_path))
    assert one == other


def test_misuse_is_told_before_lm_eval_is_loaded(folder, capsys, monkeypatch):
    monkeypatch.setattr(harness, "harness", None)
    for options, message in {
        ("--methods", "nonsense"): "nonsense",
        ("--estimate",): "--estimate is for --task",
    }.items():
        assert main(asked(folder, "choose", *options)) == 2
        assert message in capsys.readouterr().err


def test_lm_eval_missing_names_the_extra_and_a_missing_folder_is_named(folder, tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(harness, "harness", lambda: None)
        with pytest.raises(FileNotFoundError, match=r"--include-path .*nowhere is not a folder"):
            harness.check_tasks(["choose"], tmp_path / "nowhere", {})
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(asked(folder, "choose", "--out", str(tmp_path))) == 2
    assert "--harness needs lm-evaluation-harness" in (error := capsys.readouterr().err)
    assert "pip install 'mesa-lens[eval]'" in error


def test_a_task_that_lacks_a_package_says_which_extra(monkeypatch):
    class Manager:
        def __init__(self, **_):
            pass

        def match_tasks(self, names):
            return names

        def load(self, names):
            raise ImportError(f"Please install jieba for {names[0]}.\nMore of it.")

    monkeypatch.setattr(harness, "harness", lambda: None)
    monkeypatch.setattr(harness.importlib, "import_module", lambda name: SimpleNamespace(TaskManager=Manager))
    with pytest.raises(
        ValueError, match=r"qasper lacks a package: Please install jieba for qasper\.; pip install 'mesa-"
    ):
        harness.check_tasks(["qasper"], None, {})


@pytest.mark.slow
def test_overwriting_removes_nothing_for_tasks_that_are_unknown(folder, finished, capsys):
    before = (folder / "out" / harness.JOURNAL).read_text()
    assert main(asked(folder, "nonsense", "--overwrite")) == 2
    assert "lm-eval knows no task 'nonsense'" in capsys.readouterr().err
    assert (folder / "out" / harness.JOURNAL).read_text() == before


@pytest.mark.slow
def test_rulers_needle_is_as_long_as_asked(folder, tmp_path, monkeypatch):
    seen = []

    def watched(*arguments, **options):
        loaded = original(*arguments, **options)
        loaded.model.register_forward_pre_hook(keep, with_kwargs=True)
        return loaded

    def keep(model, arguments, options):
        seen.append((arguments[0] if arguments else options["input_ids"]).shape[1])

    original = source.load
    monkeypatch.setattr(source, "load", watched)
    options = ("--out", str(tmp_path), "--lengths", "4096", "--limit", "1", "--methods", "mesa")
    assert main(asked(folder, "niah_single_1", *options)) == 0
    assert 3700 < max(seen) <= 4096 - 128  # the answer has room
    written = json.loads((tmp_path / "harness.json").read_text())
    assert written["results"]["mesa"]["niah_single_1"]["4096,none"] in (0, 1)
