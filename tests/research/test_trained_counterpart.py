"""The theorems' head is found where it is built and nowhere else; holding attention on the first key does just that."""

import numpy as np
import pytest
from transformers import AutoTokenizer

import mesa
from mesa.engine.bridge import bridge as bridge_to
from research.script import Journal
from research.theorems.pretrained import build, save
from research.trained_counterpart import counterpart
from research.trained_counterpart.first_key import first_key
from research.trained_counterpart.reading import chosen_queries, read_heads

M, LENGTH = 32, 100
ORIGIN = mesa.Origin(trained_length=M)
WORDS = " ".join(f"{number * number % 9973:04d} of them" for number in range(400))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return save(build("plain", M=M), tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(WORDS)
    return str(path)


def read(model, folder, samples=4):
    bridge, rng = bridge_to(model, AutoTokenizer.from_pretrained(folder)), np.random.default_rng(0)
    queries = chosen_queries(LENGTH, M)
    texts = [[0, *rng.integers(1, model.config.vocab_size, LENGTH - 1).tolist()] for _ in range(samples)]
    by_text = [first_key(bridge, ids, ORIGIN, queries) for ids in texts]
    attention, output, apart = (np.stack([text[name] for text in by_text]) for name in ("attention", "output", "apart"))
    return read_heads(attention, output, apart, queries, M)


def parts(rows):
    return {(row["layer"], row["head"]): row["part"] for row in rows if row["part"]}


def test_without_positions_the_one_head_is_detected(built):
    assert parts(read(build("nope", M=M), built)) == {(0, 0): "counterpart"}


def request(built, words, **changed):
    options = {"method": "stair", "lengths": (LENGTH,), "samples": 2, "nearest": 1, "draws": 2, "text": words}
    return counterpart.plan(str(built), {"dtype": "float64", "device": "cpu"}, **{**options, **changed})


def test_the_built_head_is_detected_and_holding_it_takes_its_crossing_away(built, words, tmp_path, monkeypatch):
    """Layer 2's D is t; layer 1 tells positions by the same key, but as e^t."""
    plan = request(built, words)
    journal = Journal(tmp_path / "journal.jsonl", plan.settings)
    counterpart.run(plan, journal, iter([False, False, True]).__next__)
    assert counterpart.summarize(plan, journal)["tasks_left"] == 3
    journal = Journal(tmp_path / "journal.jsonl", plan.settings)
    monkeypatch.setattr(counterpart, "first_key", None)  # no head is read again
    counterpart.run(plan, journal, lambda: False)
    summary = counterpart.summarize(plan, journal)
    assert parts(summary["heads"]) == {(1, 0): "counterpart", (0, 0): "kin"}
    (row,) = (row for row in summary["heads"] if row["part"] == "counterpart")
    assert (row["crossing"], row["pretended"]) == (M, 1.0)  # token M is position M + 1; D goes on, nothing happens at M
    assert min(row["linear"][1], row["monotone"][1], row["carried"][1]) > 1 - 1e-9
    crossed = summary["crossed"]["attn_out"]
    assert (crossed["as_trained"], crossed["found"], crossed["every"]) == (1, 0, 0)
    assert crossed["random"]["found"] == [1, 1]
    assert summary["sets"]["found"] == [(0, 0), (1, 0)]
    assert [row["set"] for row in summary["held"]] == ["found", "nearest", "every"]
    with pytest.raises(ValueError, match="holds a run with another draws"):
        Journal(tmp_path / "journal.jsonl", request(built, words, draws=3).settings)
