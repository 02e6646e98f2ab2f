"""lm-evaluation-harness tasks of our own, from local files, under each method."""

import json

import pytest
import tiny
import yaml

from mesa.evaluation import harness
from mesa.plug import applied
from mesa_lens.cli import main

pytest.importorskip("lm_eval")


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A folder with a task: which of two words follows; the words are far apart, so that positions matter."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    folder = tmp_path / "tasks"
    folder.mkdir()
    rows = [
        {"question": f"{'a few words, ' * 60}{number}", "choices": ["text", "words"], "answer": number % 2}
        for number in range(4)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "task": "mesa_words",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_target": "answer",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc"}],
    }
    (folder / "mesa_words.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_a_local_task_under_two_methods(task, tmp_path, monkeypatch, capsys):
    model, attached = tiny.folder(tmp_path / "model"), []

    def recorded(model, method, **options):
        attached.append(method.name)
        return applied(model, method, **options)

    monkeypatch.setattr(harness.mesa, "applied", recorded)
    arguments = ["eval", "--model", str(model), "--harness", "mesa_words", "--include-path", str(task)]
    arguments += ["--methods", "origin,mesa", "--lengths", "512", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert attached == ["origin", "mesa"]
    results = json.loads((tmp_path / "out" / "harness.json").read_text())["results"]
    assert {name: list(tasks) for name, tasks in results.items()} == {"origin": ["mesa_words"], "mesa": ["mesa_words"]}
    assert all(0 <= tasks["mesa_words"]["acc,none"] <= 1 for tasks in results.values())
    assert "mesa_words: acc,none" in capsys.readouterr().out
    assert main(arguments) == 2
    assert "is already there; use --overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--harness", "no_such_task"], "lm-eval knows no task 'no_such_task'"),
        (["--harness", "mesa_words", "--include-path", "nowhere"], "--include-path nowhere is not a folder"),
    ],
)
def test_misuse(task, tmp_path, arguments, message, capsys):
    assert (
        main(["eval", "--model", str(tiny.folder(tmp_path / "model")), *arguments, "--out", str(tmp_path / "out")]) == 2
    )
    assert message in capsys.readouterr().err


def test_without_lm_eval_the_remedy_is_named(monkeypatch):
    def missing(name):
        raise ImportError("No module named 'lm_eval'")

    monkeypatch.setattr(harness.importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"pip install 'mesa-lens\[eval\]'"):
        harness.harness()
