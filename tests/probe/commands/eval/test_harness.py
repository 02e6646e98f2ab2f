"""lm-eval runs local tasks under each method, without the network."""

import importlib
import json
import socket
import sys

import pytest
import tiny
import torch
from commands import main
from lm_tasks import ROWS, write_tasks

import mesa
from mesa.errors import Refused
from probe.commands.eval import harness
from probe.commands.eval.page import HARNESS_SCORES, HarnessScores, harness_table
from probe.evaluation import plan_evaluation
from probe.experiment import run as source
from probe.files import read_result
from probe.request import EvalRequest


def command(folder, tasks, *options):
    return ["eval", "--harness", tasks, "--include-path", str(folder / "tasks"), "--model", str(folder / "model"),
            "--methods", "origin,mesa", "--lengths", "300", "--out", str(folder / "out"), *options]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    tiny.folder(folder / "model")
    write_tasks(folder / "tasks")
    return folder


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
        finished["code"] = main(command(folder, "choose,say"))
    _, *finished["journal"] = map(json.loads, (folder / "out" / harness.JOURNAL).read_text().splitlines())
    return finished


@torch.no_grad()
def chosen(model, text):
    """Which of the two choices is likelier after a text, of which as much is read as 300 tokens hold."""
    sums, tokenizer = [], tiny.byte_level()
    for choice in ("  green", "  blue"):  # lm-eval's space and the task's
        ids = tokenizer(text + choice).input_ids
        answer = len(ids) - len(tokenizer(text).input_ids)
        ids = torch.tensor([ids[-301:]])
        losses = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:], reduction="none")
        sums.append(-float(losses[-answer:].sum()))
    return sums.index(max(sums))


@pytest.mark.slow
def test_local_tasks_are_scored_for_each_method(folder, finished):
    assert finished["code"] == 0
    written = read_result(folder / "out" / "harness.json")
    assert written["max_length"] == 300
    assert list(written["results"]) == ["origin", "mesa"]
    for name, results in written["results"].items():
        with mesa.applied(finished["model"], mesa.make(name, 160)):
            hits = [chosen(finished["model"], row["text"]) == row["label"] for row in ROWS]
        assert results["choose"]["acc,none"] == pytest.approx(sum(hits) / 3)
        assert results["choose"]["sample_len"] == 3
        assert {name: results["choose"][name] for name in ("shots", "documents", "documents_cut")} == {
            "shots": 0, "documents": 3, "documents_cut": 1
        }  # fmt: skip
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
def test_the_table_counts_cut_prompts(folder):
    table = harness_table(HARNESS_SCORES.read(folder / "out"))
    assert table.head[2:4] == ("shots", "documents cut")
    assert {row[2:4] for row in table.rows} == {("0", "1 of 3")}
    former = HarnessScores("m", 300, {"origin": {"a": {"acc,none": 1.0}}})
    assert harness_table(former).rows == (("origin", "a", *["not recorded"] * 2, "acc,none 1"),)


@pytest.mark.slow
def test_no_room_for_a_prompt_is_refused_before_the_model_is_loaded(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(source, "load", None)
    arguments = [*command(folder, "choose,say"), "--lengths", "4", "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "lm-eval's say generates 4 tokens (max_gen_toks), which leaves no room" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_finished_tasks_are_not_run_again(folder, finished, capsys, monkeypatch):
    monkeypatch.setattr(harness, "harness", None)
    assert main(command(folder, "choose", "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    tasks = {name: list(results) for name, results in printed["results"].items()}
    assert tasks == {"origin": ["choose"], "mesa": ["choose"]}
    for options, message in {
        ("--limit", "1"): "holds a run with another limit (None there, 1 now); use --overwrite",
        ("--set", "mesa.width=7"): "holds mesa with other parameters",
    }.items():
        assert main(command(folder, "choose", *options)) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--methods", "nonsense"), "nonsense"),
        (("--estimate",), "--estimate is not for --harness"),
        (("--depth", "0.5"), "--depth is not for --harness"),
        (("--include-path", "nowhere"), "--include-path nowhere is not a folder"),
        ((), "--harness needs lm-evaluation-harness"),
    ],
)
def test_misuse_and_a_missing_lm_eval_are_refused(folder, tmp_path, capsys, monkeypatch, options, message):
    if options:
        monkeypatch.setattr(harness, "harness", lambda: None)
    else:
        monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main([*command(folder, "choose", *options), "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_rows_depend_on_lm_eval_and_the_files_of_tasks_alone(tmp_path, monkeypatch):
    folder = tmp_path / "tasks"
    write_tasks(folder)
    plan = plan_evaluation(EvalRequest(methods="origin", lengths=(256,)))

    def settings():
        return harness.Harness(plan, ["choose"], folder, None).settings

    before = settings()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "utils.cpython-311.pyc").write_bytes(b"")  # as Python writes it for a task's functions
    (folder / "x.parts").mkdir()
    (folder / ".cache").write_text("")
    run = harness.Harness(plan, ["choose"], folder, None).open_journal(folder / "out")
    run.add(("choose", "origin", 256), {"results": {}})
    (folder / "out" / "report.html").write_text("")
    assert settings() == before
    data = folder / "data.jsonl"
    data.write_text(data.read_text().replace("blue", "red"))
    changed = settings()["tasks"]
    data.rename(folder / "other.jsonl")
    renamed = settings()["tasks"]
    (folder / "utils.py").write_text("")
    assert len({before["tasks"], changed, renamed, settings()["tasks"]}) == 4
    monkeypatch.setattr(harness, "version", lambda _: "0.0")
    assert settings()["lm_eval"] == "0.0" != before["lm_eval"]


def test_our_own_tasks_need_no_lm_eval(monkeypatch):
    package = "probe.commands.eval"
    for name in ("harness", "run"):
        monkeypatch.setattr(f"{package}.{name}", importlib.import_module(f"{package}.{name}"))
        monkeypatch.delitem(sys.modules, f"{package}.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.setitem(sys.modules, name, None)
    importlib.import_module(f"{package}.run")
    with pytest.raises(Refused, match="--harness needs lm-evaluation-harness"):
        importlib.import_module(f"{package}.harness")
