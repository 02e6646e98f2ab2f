"""`mesa-lens eval`: plans, resuming, statistics, files."""

import csv
import json

import numpy as np
import pytest
import tiny
import torch

from mesa.evaluation import run as running
from mesa.evaluation.plan import TASKS, EvalRequest, estimate, parse_lengths, plan
from mesa.evaluation.summary import bootstrap, interval, tables, wilson
from mesa.journal import Journal
from mesa.tasks.base import Metric
from mesa_lens.cli import main
from probe.evaluation_chart import evaluation_charts

FINDING = [name for name, task in TASKS.items() if task.metrics[0].name == "accuracy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("model"))


def request(folder, **changes):
    asked = {"tasks": ("passkey", "nll"), "methods": "origin,mesa", "lengths": (200, 320), "samples": 2}
    return EvalRequest(model=str(folder), **{**asked, **changes})


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("256,512", (256, 512)), ("1k", (1024,)), ("1k:3k:1k", (1024, 2048, 3072)), ("8:10:1,9,64", (8, 9, 10, 64))],
)
def test_lengths_are_read(text, lengths):
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "1m", "0", "3:1:1", "1:2", "-5"])
def test_unreadable_lengths_are_told(text):
    with pytest.raises(ValueError, match=r"--lengths .* (is no number of tokens|is no FIRST:LAST:STEP)"):
        parse_lengths(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("passkeys",)}, "unknown task 'passkeys'; known: passkey, passkey-question"),
        ({"lengths": (20,)}, "length=20 is below the task's fixed text of"),
        ({"tasks": ("nll",), "lengths": (20,)}, "nll: length=20 is below 80 tokens"),
        ({"samples": 0}, "--samples 0 is below 1"),
        ({"batch": 0}, "--batch 0 is below 1"),
        ({"depth": 1.5}, r"--depth 1.5 is not within 0 \(start\) to 1 \(end\)"),
        ({"tasks": ("summary",)}, "summary needs documents; give --data"),
        ({"methods": "origin,rope"}, "unknown method 'rope'"),
        ({"tasks": ("nll",), "lengths": (10**7,)}, "the text has .* tokens at most"),
        ({"executor": "fast"}, "executor"),
    ],
)
def test_bad_requests_are_told_before_weights_are_loaded(folder, changes, message, monkeypatch):
    monkeypatch.setattr("mesa.models.AutoModelForCausalLM.from_pretrained", lambda *a, **k: pytest.fail("loaded"))
    with pytest.raises(ValueError, match=message):
        plan(request(folder, **changes))


def test_a_tokenizer_that_cannot_hit_the_length_says_by_how_much(folder, monkeypatch):
    from mesa.tasks import retrieval

    real = retrieval._haystack
    monkeypatch.setattr(retrieval, "_haystack", lambda filler, tokens, depth: real(filler, tokens - 3, depth))
    with pytest.raises(ValueError, match="cannot make a prompt of 200 tokens, it is off by -3"):
        plan(request(folder, tasks=("passkey",)))


def test_all_methods_leave_out_what_the_model_cannot_have(folder, monkeypatch, capsys):
    from mesa.evaluation import plan as planning

    def check(config, method):
        if method.name == "dynamic-ntk":
            raise ValueError("dynamic-ntk cannot be attached")

    monkeypatch.setattr(planning, "check_method", check)
    assert "dynamic-ntk" not in plan(request(folder, methods="all")).methods
    assert "left out: dynamic-ntk cannot be attached" in capsys.readouterr().err
    with pytest.raises(ValueError, match="cannot be attached"):
        plan(request(folder, methods="dynamic-ntk"))


@pytest.mark.parametrize("name", FINDING)
def test_prompts_have_the_exact_length_and_hold_the_answer(folder, name):
    made = plan(request(folder, tasks=(name,), lengths=(260,)))
    tokenizer = running.load(str(folder)).tokenizer
    prompts = TASKS[name].prepare(tokenizer, 260, made.setting, 3)
    assert [len(prompt.ids) for prompt in prompts] == [260] * 3
    assert all(prompt.answer in tokenizer.decode(prompt.ids) for prompt in prompts)
    assert len({prompt.answer for prompt in prompts}) == 3
    again = TASKS[name].prepare(tokenizer, 260, made.setting, 3)
    assert [prompt.ids for prompt in prompts] == [prompt.ids for prompt in again]
    other = plan(request(folder, tasks=(name,), lengths=(260,), seed=1))
    assert TASKS[name].prepare(tokenizer, 260, other.setting, 1)[0].ids != prompts[0].ids


def test_enhanced_prompts_are_the_papers(folder):
    tokenizer = running.load(str(folder)).tokenizer
    setting = plan(request(folder)).setting
    question = tokenizer.decode(TASKS["passkey-question"].prepare(tokenizer, 260, setting, 1)[0].ids)
    answer = tokenizer.decode(TASKS["passkey-answer"].prepare(tokenizer, 260, setting, 1)[0].ids)
    assert "Q: what is the passkey in below text? There is an important info" in question
    assert question.endswith("\nA:")
    assert "Q: There is an important info" in answer
    assert answer.endswith("\nA: the passkey is")


@pytest.mark.parametrize("depth", [0.0, 1.0])
def test_the_key_is_where_depth_says(folder, depth):
    tokenizer = running.load(str(folder)).tokenizer
    setting = plan(request(folder, depth=depth)).setting
    positions = [prompt.key_position for prompt in TASKS["passkey"].prepare(tokenizer, 300, setting, 4)]
    assert len(set(positions)) == 1
    middle = plan(request(folder)).setting
    uniform = [prompt.key_position for prompt in TASKS["passkey"].prepare(tokenizer, 300, middle, 8)]
    assert (min if depth == 0 else max)([*uniform, positions[0]]) == positions[0]


def test_an_interrupted_run_goes_on_to_the_same_table(folder, tmp_path, monkeypatch):
    made = plan(request(folder))
    whole = running.run(made, tmp_path / "whole")
    real, calls = Journal.add, []

    def interrupted(self, cell, row):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(cell)
        real(self, cell, row)

    monkeypatch.setattr(Journal, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.run(made, tmp_path / "parts")
    monkeypatch.setattr(Journal, "add", real)
    path = tmp_path / "parts" / "cells.jsonl"
    with (tmp_path / "parts" / "samples.csv").open() as file:
        assert len({(row["task"], row["method"], row["length"]) for row in csv.DictReader(file)}) == 3
    with path.open("a") as file:
        file.write('{"cell": ["passkey", "me')  # cut by a kill
    assert without_times(running.run(made, tmp_path / "parts")) == without_times(whole)
    tables_ = [table(tmp_path / name) for name in ("whole", "parts")]
    assert tables_[0] == tables_[1]
    monkeypatch.setattr(running, "load", lambda *a, **k: pytest.fail("everything is there"))
    running.run(made, tmp_path / "parts")


def table(folder):
    with (folder / "samples.csv").open() as file:
        varying = {"seconds", "peak_mib"}
        return [{key: value for key, value in row.items() if key not in varying} for row in csv.DictReader(file)]


def without_times(summary):
    return {key: value for key, value in summary.items() if key != "versions"}


def test_a_folder_holds_one_evaluation(folder, tmp_path):
    running.run(plan(request(folder, tasks=("nll",))), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"another seed; use --overwrite or another --out"):
        running.run(plan(request(folder, tasks=("nll",), seed=1)), tmp_path)
    with pytest.raises(FileExistsError, match=r"nll of mesa at 200 with other parameters"):
        running.run(plan(request(folder, tasks=("nll",), settings=("mesa.width=3",))), tmp_path)
    more = running.run(plan(request(folder, tasks=("nll", "latency"), methods="origin,mesa,rerope")), tmp_path)
    assert {(cell["task"], cell["method"]) for cell in more["cells"]} >= {("nll", "rerope"), ("latency", "origin")}
    running.run(plan(request(folder, tasks=("nll",), seed=1)), tmp_path, overwrite=True)
    assert {row["seed"] for row in table(tmp_path)} == {"1"}
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_that_is_no_journal_is_left_alone(tmp_path):
    (tmp_path / "cells.jsonl").write_text("hello\n")
    with pytest.raises(ValueError, match="is no journal of a run"):
        Journal(tmp_path / "cells.jsonl", {"seed": 0})
    assert (tmp_path / "cells.jsonl").read_text() == "hello\n"


def test_less_memory_means_smaller_batches_and_the_same_scores(folder, tmp_path, monkeypatch):
    made = plan(request(folder, tasks=("passkey",), methods="origin", lengths=(200,), samples=5, batch=4))
    expected = running.run(made, tmp_path / "a")
    from mesa.tasks import finding

    real, sizes = finding.retrieval_hits, []

    def small(model, tokenizer, prompts, report, batch):
        sizes.append(len(prompts))
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return real(model, tokenizer, prompts, report, batch)

    monkeypatch.setattr(finding, "retrieval_hits", small)
    assert running.run(made, tmp_path / "b")["cells"] == expected["cells"]
    assert sizes == [4, 2, 1, 1, 1, 1, 1]


def test_intervals():
    assert wilson(0, 10) == pytest.approx((0, 0.2775), abs=1e-3)  # Wilson's published example values
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-3)
    values = np.random.default_rng(0).normal(3, 2, 400)
    low, high = bootstrap(values)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)
    assert interval([1.0] * 10, Metric("accuracy", "", binary=True)) == wilson(10, 10)
    assert interval([1.0] * 10, Metric("nll", "")) == (1, 1)


def test_tables_and_charts_hold_the_means(folder, tmp_path):
    summary = running.run(plan(request(folder, tasks=("nll", "nll-position"), samples=3)), tmp_path)
    text = tables(summary["cells"])
    cell = next(
        cell for cell in summary["cells"] if (cell["task"], cell["method"], cell["length"]) == ("nll", "mesa", 320)
    )
    assert f"{cell['mean']:.3g} [{cell['low']:.3g}, {cell['high']:.3g}]" in text
    with (tmp_path / "samples.csv").open() as file:
        assert all(float(row["seconds"]) > 0 and float(row["peak_mib"]) >= 0 for row in csv.DictReader(file))
    line = next(line for line in evaluation_charts(summary)["nll"].panels[0].lines if line.label == "mesa")
    assert line.y[-1] == cell["mean"]
    assert (line.interval[0][-1], line.interval[1][-1]) == (cell["low"], cell["high"])
    rows = [
        float(row["score"])
        for row in table(tmp_path)
        if (row["task"], row["method"], row["length"]) == ("nll", "mesa", "320")
    ]
    assert np.mean(rows) == pytest.approx(cell["mean"])


def test_the_command(folder, tmp_path, capsys):
    arguments = ["eval", "--model", str(folder), "--task", "passkey,latency", "--methods", "origin", "--lengths", "200"]
    arguments += ["--samples", "2", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--estimate"]) == 0
    assert "2 cells (2 tasks x 1 methods), 2 samples each: about 800 prompt tokens" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trained_length"] == 160
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("cells.jsonl", "samples.csv", "summary.json"),
        *(f"{task}.{form}" for task in ("passkey", "latency") for form in ("png", "html")),
    }
    assert main([*arguments[:-2], "--seed", "3", "--out", str(tmp_path / "out")]) == 2
    assert "another seed" in capsys.readouterr().err
    assert main(["eval", "--list-tasks"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(TASKS)


def test_estimates_count_batches_only_where_tasks_have_them(folder):
    texts = [estimate(plan(request(folder, tasks=(task,), batch=8))) for task in ("nll", "passkey")]
    sizes = [int(text.split("about ")[2].split()[0].replace(",", "")) for text in texts]
    assert sizes[1] == pytest.approx(8 * sizes[0], abs=8)
