"""The tasks' scores against slow and obvious ways to get them."""

import json

import numpy as np
import pytest
import tiny
import torch

from mesa.models import load
from mesa.tasks import latency, score, sources, summaries
from mesa.tasks.base import Setting
from mesa.tasks.likelihood import LIKELIHOOD
from mesa.tasks.summaries import Summaries

LENGTHS = (100, 160)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load(str(tiny.folder(tmp_path_factory.mktemp("model"))))


@pytest.fixture(scope="module")
def setting(loaded):
    return Setting(160, LENGTHS, samples=3, documents=tuple(score.heldout_ids(loaded.tokenizer)))


def likelihood(kind, loaded, length, setting):
    task = next(task for task in LIKELIHOOD if task.kind == kind)
    prepared = task.prepare(loaded.tokenizer, length, setting, 3)
    return prepared, list(task.measure(loaded, length, prepared, setting))


def losses(loaded, ids):
    """NLL of every token but the first, by its definition."""
    with torch.no_grad():
        log = loaded.model(torch.tensor(ids)[None]).logits[0].double().log_softmax(-1)
    return np.array([-float(log[place - 1, ids[place]]) for place in range(1, len(ids))])


def test_tail_nll_is_that_of_the_last_tokens_the_same_at_every_length(loaded, setting):
    short, scores = likelihood("tail", loaded, 100, setting)
    long, _ = likelihood("tail", loaded, 160, setting)
    for sample, (ids, other) in enumerate(zip(short, long, strict=True)):
        assert (len(ids), len(other)) == LENGTHS
        assert (ids[-40:] == other[-40:]).all()
        assert scores[sample].value == pytest.approx(losses(loaded, ids)[-40:].mean(), abs=1e-4)


def test_nll_by_position_parts_one_pass(loaded, setting):
    prepared, scores = likelihood("position", loaded, 160, setting)
    for sample, ids in enumerate(prepared):
        whole = losses(loaded, ids)
        first, second = [each for each in scores if each.sample == sample]
        assert (first.length, second.length) == LENGTHS
        assert first.value == pytest.approx(whole[:99].mean(), abs=1e-4)
        assert second.value == pytest.approx(whole[99:].mean(), abs=1e-4)


def test_sliding_nll_sees_at_most_a_window(loaded, setting):
    prepared, scores = likelihood("sliding", loaded, 100, setting)
    for sample, ids in enumerate(prepared):
        assert len(ids) == 2 * max(LENGTHS)
        parts = [losses(loaded, ids[start : start + 100])[-50:] for start in range(0, len(ids) - 99, 50)]
        assert scores[sample].value == pytest.approx(np.concatenate(parts).mean(), abs=1e-4)


def reports(path, texts, fields=("report", "summary")):
    path.write_text("\n".join(json.dumps(dict(zip(fields, text, strict=True))) for text in texts))
    return path


def summary_scores(loaded, setting, path, outputs, monkeypatch):
    from dataclasses import replace

    task, own = Summaries(), replace(setting, data=path, new_tokens=16, batch=2)
    prepared = task.prepare(loaded.tokenizer, 100, own, 8)
    ids = loaded.tokenizer(outputs, add_special_tokens=False).input_ids
    most = max(map(len, ids)) or 1
    padded = [each + [loaded.tokenizer.eos_token_id or 0] * (most - len(each)) for each in ids]
    asked = iter(padded)
    monkeypatch.setattr(summaries, "greedy", lambda model, prompts, count: torch.tensor([next(asked) for _ in prompts]))
    monkeypatch.setattr(type(loaded.tokenizer), "eos_token_id", loaded.tokenizer.eos_token_id or 0, raising=False)
    return prepared, list(task.measure(loaded, 100, prepared, own))


def test_summaries_are_scored_by_rouge_and_bleu(loaded, setting, tmp_path, monkeypatch):
    pytest.importorskip("rouge_score")
    text = "the report says that the words are many and the lines are long"
    path = reports(tmp_path / "data.jsonl", [("word " * 300, text), ("short", "dropped"), ("line " * 300, text)])
    prepared, scores = summary_scores(loaded, setting, path, [text, "nothing"], monkeypatch)
    assert [len(prompt.ids) for prompt in prepared] == [100, 100]
    assert loaded.tokenizer.decode(prepared[0].ids).endswith("Summary:")
    by = {(each.sample, each.metric): each.value for each in scores}
    assert [by[0, name] for name in ("rouge1", "rouge2", "rougeL")] == [1, 1, 1]
    assert by[0, "bleu"] == pytest.approx(100)
    assert [by[1, name] for name in ("rouge1", "rouge2", "rougeL")] == [0, 0, 0]
    assert by[1, "bleu"] < 1


@pytest.mark.parametrize(
    ("texts", "fields", "message"),
    [
        ([("word", "x")], ("report", "summary"), "no document has .* tokens, the longest has"),
        ([("word", "x")], ("text", "summary"), "row 1 has no field 'document'; it has text, summary"),
        ([], ("report", "summary"), "is empty; give lines with document and summary"),
    ],
)
def test_documents_that_cannot_be_summarized(loaded, setting, tmp_path, texts, fields, message):
    from dataclasses import replace

    path = reports(tmp_path / "data.jsonl", texts, fields)
    with pytest.raises(ValueError, match=message):
        Summaries().prepare(loaded.tokenizer, 100, replace(setting, data=path), 2)


def test_missing_scorers_name_the_remedy(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(summaries.importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"pip install 'mesa-lens\[eval\]'"):
        summaries._scorers()


def test_texts_come_from_files_and_datasets(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    assert sources.texts(str(tmp_path / "a.txt")) == ["hello"]
    folder = tmp_path / "set"
    folder.mkdir()
    reports(folder / "test.jsonl", [("one", "1"), ("two", "2")], ("text", "summary"))
    assert sources.texts(str(folder / "test.jsonl")) == ["one", "two"]
    assert sources.texts(str(folder)) == ["one", "two"]
    assert len(sources.texts(None)) == 8


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("gone.txt", None, FileNotFoundError, "is not a file or folder"),
        ("empty.txt", "  ", ValueError, "holds no text"),
        ("bad.jsonl", '{"text": "x"}\n{', ValueError, "line 2 is not JSON"),
        ("list.jsonl", "[1]", ValueError, "line 1 is no object"),
        ("other.jsonl", '{"body": "x"}', ValueError, "row 1 has no field 'text'; it has body"),
    ],
)
def test_bad_texts_are_told(tmp_path, name, content, error, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=message):
        sources.texts(str(path))


def test_a_hub_name_that_cannot_be_loaded_is_told(monkeypatch):
    import datasets

    def load_dataset(name):
        raise ConnectionError(f"Couldn't reach {name}")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(FileNotFoundError, match="someone/something is no file, folder, or dataset"):
        sources.texts("someone/something")


def test_latency_and_its_peak(loaded, setting):
    task = latency.Latency()
    scores = list(task.measure(loaded, 100, task.prepare(loaded.tokenizer, 100, setting, 2), setting))
    assert [each.metric for each in scores] == ["prefill", "decode", "peak_memory"] * 2
    assert all(each.value > 0 for each in scores if each.metric != "peak_memory")
    with latency.Peak(torch.device("cpu")) as peak:
        held = torch.ones(64 * 2**18)  # 64 MiB
        for _ in range(20):
            held += 1
    assert 60 < peak.bytes / 2**20 < 120
