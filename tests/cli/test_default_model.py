"""The shipped model shows the real thing: it retrieves inside its window, fails beyond it, and is fixed."""

import json

import numpy as np
import pytest

import mesa
from mesa.checkpoints.place import shipped_folder
from mesa.models import load
from mesa.support import trained_length
from probe.eval_tasks import score
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.tasks import PASSKEY, TAIL
from research.shipped_models import card


@pytest.fixture(scope="module")
def loaded():
    return load()


def test_files_are_small_and_the_tokenizer_is_as_the_card_says(loaded):
    assert sum(path.stat().st_size for path in shipped_folder().rglob("*")) <= 12e6
    assert loaded.model.config.max_position_embeddings == 256
    assert len(loaded.tokenizer.encode(" hello", add_special_tokens=False)) == 1
    assert len(loaded.tokenizer.encode("2026", add_special_tokens=False)) == 4
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("def f(x): é")) == "<bos>def f(x): é"


def test_the_cards_scores_show_what_they_must():
    measured = json.loads((shipped_folder() / "scores.json").read_text())
    assert measured["prompts"] == card.PROMPTS

    def at(method, key, multiple):
        return measured["scores"][method][key][measured["lengths"].index(multiple * 256)]

    in_window = at("origin", "tail_nll", 1)
    least = {"passkey": 0.95, "needle": 0.95, "passkey-question": 0.95, "lines": 0.8, "key-value": 0.8, "tracking": 0.5}
    for key, share in least.items():
        assert at("origin", key, 1) >= share, key
    assert at("origin", "passkey", 4) <= 0.3
    assert at("origin", "tail_nll", 4) >= in_window + 0.5
    for method in ("rerope", "stair", "mesa"):
        for multiple in (4, 8):
            assert at(method, "passkey", multiple) >= 0.9, (method, multiple)
            assert at(method, "tail_nll", multiple) <= in_window + 0.2, (method, multiple)
    for method in ("dynamic-ntk", "lm-infinite"):
        assert at("origin", "passkey", 4) < at(method, "passkey", 4) <= at("mesa", "passkey", 4)


def mean_score(loaded, task, length, count, measured):
    """The mean over the card's first prompts or windows."""
    documents = tuple(score.heldout_ids(loaded.tokenizer))
    setting = PromptSpec(256, tuple(measured["lengths"]), seed=measured["seed"], documents=documents)
    prompts = task.prepare(loaded.tokenizer, length, setting, count)
    return np.mean([sample.value for sample in task.measure(loaded, length, prompts, setting)])


@pytest.mark.slow
def test_the_cards_scores_are_this_models(loaded):
    measured = json.loads((shipped_folder() / "scores.json").read_text())
    for name, length in (("origin", 256), ("mesa", 1024)):
        with mesa.applied(loaded.model, mesa.make(name, 256)):
            nll = mean_score(loaded, TAIL, length, measured["windows"], measured)
            hits = mean_score(loaded, PASSKEY, length, 8, measured)
        column = measured["lengths"].index(length)
        assert nll == pytest.approx(measured["scores"][name]["tail_nll"][column], abs=2e-3)
        assert hits == pytest.approx(measured["scores"][name]["passkey"][column], abs=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nope", "alibi"])
def test_siblings_retrieve_inside_the_window_and_under_mesa_beyond(name):
    folder = shipped_folder(name)
    measured = json.loads((folder / "scores.json").read_text())
    scores, column = measured["scores"], measured["lengths"].index
    assert sum(path.stat().st_size for path in folder.rglob("*")) <= 8e6
    loaded = load(name)
    assert trained_length(loaded.model.config) == 256
    nll = mean_score(loaded, TAIL, 256, measured["windows"], measured)
    assert nll == pytest.approx(scores["origin"]["tail_nll"][column(256)], abs=2e-3)  # the card is these weights'
    for task in ("passkey", "needle"):
        assert scores["origin"][task][column(256)] >= 0.95
        assert scores["mesa"][task][column(512)] >= 0.8
