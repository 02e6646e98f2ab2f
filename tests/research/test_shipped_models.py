"""Training the shipped models: it continues to the same weights, what is trained loads, and its rows are right."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM

import mesa
from mesa.models import load
from mesa.support import trained_length
from research.shipped_models import card, train
from research.shipped_models.run import main, parser

STEPS = 5
TINY = train.TrainConfig(
    tokens=STEPS * 512, tokens_per_step=512, vocabulary=600, hidden=32, intermediate=40, layers=2, heads=4
)


@pytest.fixture(scope="module")
def read():
    """A corpus of one file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "training_files", lambda root, files=train.training_files: files(root)[:1])
        return train.read_corpus(TINY)


@pytest.fixture
def short(read, monkeypatch):
    """Tiny recipes, a checkpoint every step, and little measured."""
    monkeypatch.setattr(train, "read_corpus", lambda config, stdlib: read)
    recipes = {name: replace(TINY, architecture=recipe.architecture) for name, recipe in train.RECIPES.items()}
    monkeypatch.setattr(train, "RECIPES", recipes)
    monkeypatch.setattr(train, "SAVE_SECONDS", -1)
    monkeypatch.setattr(card, "MULTIPLES", (1,))
    monkeypatch.setattr(card, "WINDOWS", 1)
    monkeypatch.setattr(card, "METHODS", ("origin", "dynamic-ntk", "mesa"))
    monkeypatch.setattr(card, "measure", partial(card.measure, prompts=1))


def run(out, *options):
    main(parser().parse_args(["--out", str(out), *options]))


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


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_weights_alone_are_measured_later(tmp_path):
    run(tmp_path, "--no-card")
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert not (tmp_path / "README.md").exists()
    run(tmp_path)
    assert (tmp_path / "README.md").exists()
    assert (tmp_path / "model.safetensors").read_bytes() == weights


def test_another_standard_library_is_read_without_its_tests_and_held_out_files(tmp_path):
    for name in ("b.py", "a/c.py", "test/d.py", "argparse.py", "a/argparse.py", "e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.relative_to(tmp_path).as_posix() for path in train.training_files(tmp_path)] == [
        "a/argparse.py",
        "a/c.py",
        "b.py",
    ]
