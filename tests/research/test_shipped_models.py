"""Training the shipped models: it continues to the same weights, what is trained loads, and its rows are right."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import mesa
from mesa.models import load
from mesa.support import trained_length
from research.shipped_models import card, quizzes, train
from research.shipped_models.mixture import ANSWER, PROMPT, SHARES, Mixture
from research.shipped_models.run import main, parser

STEPS = 5
TINY = train.TrainConfig(
    tokens=STEPS * 512, tokens_per_step=512, vocabulary=600, hidden=32, intermediate=40, layers=2, heads=4
)


@pytest.fixture(scope="module")
def read():
    """A corpus of one file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "training_files", lambda files=train.training_files: files()[:1])
        return train.read_corpus(TINY)


@pytest.fixture
def short(read, monkeypatch):
    """Tiny recipes, a checkpoint every step, and little measured."""
    monkeypatch.setattr(train, "read_corpus", lambda config: read)
    recipes = {name: replace(TINY, architecture=recipe.architecture) for name, recipe in train.RECIPES.items()}
    monkeypatch.setattr(train, "RECIPES", recipes)
    monkeypatch.setattr(train, "SAVE_SECONDS", -1)
    monkeypatch.setattr(card, "MULTIPLES", (1,))
    monkeypatch.setattr(card, "WINDOWS", 1)
    monkeypatch.setattr(card, "measure", partial(card.measure, prompts=1))


def run(out, *options):
    main(parser().parse_args(["--out", str(out), *options]))


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_an_interrupted_training_continues_to_the_same_weights(tmp_path, monkeypatch):
    whole, parted, take_step = tmp_path / "whole", tmp_path / "parted", train.take_step
    run(whole)

    def interrupted(training, *given):
        if training.step == 3:
            raise KeyboardInterrupt
        return take_step(training, *given)

    monkeypatch.setattr(train, "take_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(parted)
    monkeypatch.setattr(train, "take_step", take_step)
    assert json.loads((parted / "training.json").read_text())["steps"] == 3
    with pytest.raises(ValueError, match=f"--out {parted} was begun with seed 0, not 1; give the same"):
        run(parted, "--seed", "1")
    run(parted)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (whole / name).read_bytes() == (parted / name).read_bytes(), name
    assert json.loads((parted / "config.json").read_text())["dtype"] == "float16"
    assert not [path.name for path in parted.iterdir() if path.is_dir() or path.name.startswith(".")]
    assert not (parted / train.STATE).exists()
    with pytest.raises(FileExistsError, match="already holds a model"):
        run(parted)


TITLES = {"default": "a small Llama\n", "nope": "a small Llama without positions\n", "alibi": "a small MPT\n"}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[] if name == "default" else pytest.mark.slow) for name in train.RECIPES]
)
def test_a_recipe_is_a_model_that_plain_transformers_loads(recipe, tmp_path):
    """And Origin computes what it computes, beyond the window too."""
    run(tmp_path, "--recipe", recipe)
    assert TITLES[recipe] in (tmp_path / "README.md").read_text()
    scores = json.loads((tmp_path / "scores.json").read_text())["scores"]
    assert ("dynamic-ntk" in scores) == (recipe != "alibi")
    assert set(scores["mesa"]) == set(card.TASKS)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    loaded = load(str(tmp_path), dtype="float32")
    assert trained_length(plain.config) == TINY.trained_length
    ids = torch.randint(0, TINY.vocabulary, (1, TINY.trained_length + 40))
    with torch.no_grad(), mesa.applied(loaded.model, mesa.make("origin", TINY.trained_length)):
        torch.testing.assert_close(loaded.model(ids).logits, plain(ids).logits, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def mixture(read):
    return Mixture(read[0].tokenizer, read[0].text)


def test_rows_are_exactly_as_long_as_wanted_and_weigh_their_answers(mixture):
    rng = np.random.default_rng(1)
    for length in (48, 96, 256):
        ids, weights = mixture.batch(40, length, rng)
        assert ids.shape == weights.shape == (40, length)
        assert {float(value) for value in np.unique(weights)} <= {0.0, np.float32(PROMPT), 1.0, ANSWER}
        assert (weights == ANSWER).any(axis=1).mean() > 0.3
    assert sum(SHARES.values()) == pytest.approx(1)
    assert set(SHARES) == {*quizzes.KINDS, "text", "copy"}
