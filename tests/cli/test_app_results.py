"""The dashboard's page of evaluations."""

import json
from dataclasses import replace
from functools import partial

import pytest
from pages import drawn, shown_texts, tables
from results import evaluation, write_evaluation

from probe.commands.eval.page import EVALUATED, Sample, summarize
from probe.evaluation import TASKS
from probe.experiment.journal import Journal
from probe.files import write_result


@pytest.fixture
def opened(monkeypatch, tmp_path):
    monkeypatch.setenv("MESA_LENS_RUNS", str(tmp_path))
    return partial(drawn, "results")


def test_an_evaluation_begins_with_its_differences(opened, tmp_path):
    write_evaluation(tmp_path / "mine", tasks_left=3, model="<script>alert(1)</script> **bold**")
    write_evaluation(tmp_path / "newer")
    assert "result=gone (result=newer (eval) is displayed)" in shown_texts(opened(result="gone"))
    app = opened(result="mine (eval)")
    assert "\\<script\\>" in "".join(element.value for element in app.markdown)  # names stay text
    difference, means = (table.set_index("method") for table in tables(app))
    assert difference.index.tolist() == ["rerope"]
    assert difference.loc["rerope", "512"].startswith("+0.800 [+0.")
    assert difference.loc["rerope", "256"].startswith("+0.000 [-")
    assert means.loc["origin", "512"].startswith("0.20 [")
    assert "passkey, accuracy at 512 tokens (2 M): origin 0.20, rerope 1.00." in shown_texts(app)
    assert "Cells that are not run yet: 3." in shown_texts(app)
    (chart,) = app.get("plotly_chart")
    assert {trace["name"] for trace in json.loads(chart.proto.spec)["data"]} >= {"origin", "rerope"}
    keys = [str(element.key) for element in app.get("download_button")]
    assert any("mine-passkey.csv" in key for key in keys)


def test_scores_of_prompts_are_in_no_table(opened, tmp_path):
    scores = {"recall": 0.9, "copied": 0.2}
    rows = [
        Sample("vt", "origin", 256, sample, metric, score) for sample in range(5) for metric, score in scores.items()
    ]
    sizes, former = {"vt": "4 hops, no example; 30 tokens generated"}, evaluation()
    result = replace(former, sizes=sizes, cells=former.cells + summarize(rows, TASKS))
    EVALUATED.write(write_evaluation(tmp_path / "mine"), result)
    app = opened()
    others = tables(app)
    assert "vt: 4 hops, no example; 30 tokens generated." in shown_texts(app)
    assert len(others) == 3  # passkey's difference and means, vt's means
    assert len(app.get("plotly_chart")) == 2


def test_a_damaged_result_is_named_with_the_command(opened, tmp_path):
    folder = write_evaluation(tmp_path / "mine")
    for content in ("{", "[]", '{"settings": 3}'):
        (folder / "summary.json").write_text(content)
        (error,) = opened().error
        assert f"write it again: `mesa-lens eval --out {folder}`" in error.value.replace("\\", "")


def test_runs_that_are_not_finished_are_listed_as_by_the_command(opened, tmp_path):
    for name, done in {"grid": 2, "whole": 3}.items():
        journal = Journal(tmp_path / name / "journal.jsonl", {"model": "tiny"}, request={"seed": ["3"]})
        journal.expect(3)
        for number in range(done):
            journal.add(("nll", "origin", number), {"config": {"name": "origin"}, "scores": [1.0]})
    for name in ("summary.json", "samples.csv", "report.html"):
        write_result(tmp_path / "whole" / name, {})
    app = opened()
    (fold,) = [part for part in app.expander if part.label.startswith("Not finished")]
    assert fold.label == "Not finished: 1"
    assert "grid: unfinished" in fold.code[0].value
    assert "2 of 3 cells done, 1 left" in fold.code[0].value
    assert fold.code[1].value == f"mesa-lens eval --seed=3 --out={tmp_path / 'grid'}"


def test_scores_of_lm_evals_tasks_are_shown(opened, tmp_path):
    scores = {"rerope": {"niah": {"acc,none": 0.5, "acc_stderr,none": 0.1}}}
    (tmp_path / "mine").mkdir()
    write_result(tmp_path / "mine" / "harness.json", {"model": "tiny", "max_length": 512, "results": scores})
    app = opened()
    assert "prompts of at most 512 tokens" in shown_texts(app)
    row = ["rerope", "niah", "not recorded", "not recorded", "acc,none 0.5, acc_stderr,none 0.1"]
    assert tables(app)[0].values.tolist() == [row]
