"""The theorems' head is found where it is built and nowhere else; holding attention on the first key does just that."""

import json
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import mesa
import theory
from probe.capture.bridge import bridge_to
from probe.interventions.passes import Item
from probe.interventions.passes import run as one_pass
from research.script import Journal
from research.trained_counterpart import counterpart
from research.trained_counterpart.first_key import first_key
from research.trained_counterpart.reading import chosen_queries, crossing, read_heads
from research.trained_counterpart.run import main, parser

M, LENGTH = 32, 100
ORIGIN = mesa.Origin(trained_length=M)
WORDS = " ".join(f"{number * number % 9973:04d} of them" for number in range(400))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return theory.save(theory.build("plain", M=M), tmp_path_factory.mktemp("plain"))


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


def test_without_positions_the_one_head_is_found(built):
    assert parts(read(theory.build("nope", M=M), built)) == {(0, 0): "counterpart"}


@pytest.mark.parametrize("sharper", [1.0, 4.0, 20.0])
def test_random_weights_have_none(built, sharper):
    """With 1 attention is uniform, and tells 1 / t too, but of any key; with 20 it is anywhere."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=257, hidden_size=128, intermediate_size=64, max_position_embeddings=M)
    config.num_hidden_layers = config.num_attention_heads = config.num_key_value_heads = 4
    config.head_dim = 32
    model: Any = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= sharper
    rows = read(model, built)
    assert not parts(rows)
    assert (max(row["linear"][0] for row in rows) > 0.9) == (sharper == 1.0)


def test_held_attention_is_that_inside_and_the_rest_is_shared_as_before(tmp_path):
    model = tiny.model(key_heads=2)
    bridge = bridge_to(model, tiny.tokenizer(tmp_path))
    trained, item = tiny.TRAINED, Item((0, *range(3, 60)), 8)
    method, keep = mesa.Origin(trained_length=trained), [("pattern", 1), ("z", 1), ("v", 1)]
    with torch.no_grad():
        plain, held = (
            one_pass(bridge, item, method, edits, record=keep, executor="dense")
            for edits in ([], counterpart.hold([(1, 1), (1, 2)], trained))
        )
    before, after = (run.activations["pattern", 1] for run in (plain, held))
    assert torch.equal(before[[0, 3]], after[[0, 3]])
    assert torch.equal(before[:, :trained], after[:, :trained])
    for head in (1, 2):
        value = before[head, trained - 3 : trained, 0].mean()
        torch.testing.assert_close(after[head, trained:, 0], value.expand(len(item.ids) - trained))
        rest = before[head, trained:, 1:] / before[head, trained:, 1:].sum(1, keepdim=True) * (1 - value)
        torch.testing.assert_close(after[head, trained:, 1:], rest)
    assert (before - after).abs().max() > 0.05
    values = held.activations["v", 1].reshape(len(item.ids), 2, -1).repeat_interleave(2, 1)
    expected = torch.einsum("hqk,khd->qhd", after, values)
    torch.testing.assert_close(held.activations["z", 1].reshape(expected.shape), expected)


def test_a_crossing_is_out_of_range_to_stay_beyond_what_means_are_sure_of():
    rng, position = np.random.default_rng(0), np.arange(1, 400)
    noise = rng.standard_normal((8, 399))
    step = 4.0 * (position >= 128)
    assert crossing(noise, position, 128, 128, 400) is None
    assert crossing(noise + step, position, 128, 128, 400) == 128
    assert crossing(noise - step, position, 128, 128, 400) == 128
    assert crossing(noise + step * (position < 134), position, 128, 128, 400) is None  # 6 tokens of the 8 it takes
    assert crossing(noise + step, position, 128, 80, 100) is None


def request(built, words, **changed):
    options = {"method": "stair", "lengths": (LENGTH,), "samples": 2, "nearest": 1, "draws": 2, "text": words}
    return counterpart.plan(str(built), {"dtype": "float64", "device": "cpu"}, **{**options, **changed})


def test_the_built_head_is_found_and_holding_it_takes_its_crossing_away(built, words, tmp_path, monkeypatch):
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


def test_the_script_writes_heads_and_tables(built, words, tmp_path, capsys):
    """In float32, too; one text has no intervals."""
    options = f"--model {built} --method stair --lengths {LENGTH} --samples 1 --find-only --text {words}"
    main(parser().parse_args([*options.split(), "--out", str(tmp_path)]))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert parts(summary["heads"]) == {(1, 0): "counterpart", (0, 0): "kin"}
    assert summary["heads"][0]["linear"][1:] == [None, None]
    assert (summary["texts"], summary["held"]) == ({"found_on": 1, "judged": 0}, [])
    assert "| counterpart |" in capsys.readouterr().out
