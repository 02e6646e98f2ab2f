"""research/shipped_models: an interrupted training goes on to the same weights; its siblings load."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM

import mesa
from mesa.models import load
from mesa.support import trained_length
from mesa_lens.cli import main
from probe.tasks import corpus
from research.shipped_models import card, config, making, train
from research.shipped_models import run as command
from research.shipped_models.state import STATE

STEPS = 5
TINY = config.TrainConfig(
    tokens=STEPS * 512, tokens_per_step=512, vocabulary=600, hidden=32, intermediate=40, layers=2, heads=4
)


@pytest.fixture(scope="module")
def read():
    """A corpus of one file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "training_files", lambda found=corpus.training_files: found()[:1])
        return train.read_corpus(TINY)


@pytest.fixture(autouse=True)
def short(read, monkeypatch):
    """Tiny recipes, a checkpoint every step, and nothing measured."""
    monkeypatch.setattr(train, "read_corpus", lambda config: read)
    recipes = {name: replace(TINY, architecture=recipe.architecture) for name, recipe in config.RECIPES.items()}
    monkeypatch.setattr(command, "RECIPES", recipes)
    monkeypatch.setattr(train, "SAVE_SECONDS", -1)
    monkeypatch.setattr(card, "MULTIPLES", (1,))
    monkeypatch.setattr(card, "WINDOWS", 1)
    monkeypatch.setattr(card, "measure", partial(card.measure, prompts=1))


def begun(out, *more):
    return main(["--out", str(out), *more], command.parser)


def interrupted(*given):
    raise KeyboardInterrupt


def after(steps, wanted):
    """A `take_step` that is interrupted after `steps` of the training, estimates apart."""

    def take(training, *given):
        if training.log and training.step == steps:
            raise KeyboardInterrupt
        return wanted(training, *given)

    return take


@pytest.mark.slow
def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path, monkeypatch, capsys):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert begun(whole) == 0
    assert "5 of 5 steps are left, 2,560 tokens: about 0 minutes" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(train, "take_step", after(3, train.take_step))
        assert begun(parted) == 1
    assert f"the same command goes on; the newest checkpoint is kept in {parted}" in capsys.readouterr().err
    assert json.loads((parted / "training.json").read_text())["steps"] == 3
    assert json.loads((parted / "config.json").read_text())["dtype"] == "float32"
    assert begun(parted, "--seed", "1") == 2
    assert f"--out {parted} was begun with seed 0, not 1; give the same" in capsys.readouterr().err
    assert begun(parted) == 0
    assert "2 of 5 steps are left" in capsys.readouterr().out
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (whole / name).read_bytes() == (parted / name).read_bytes(), name
    assert json.loads((parted / "config.json").read_text())["dtype"] == "float16"
    assert not [path.name for path in parted.iterdir() if path.is_dir() or path.name.startswith(".")]
    assert not (parted / STATE).exists()
    assert begun(parted) == 2
    assert f"--out {parted} already holds a model" in capsys.readouterr().err


def test_minutes_end_it_and_the_same_command_goes_on(tmp_path, capsys):
    out = tmp_path / "made"
    assert begun(out, "--estimate") == 0
    assert not out.exists()
    assert begun(out, "--minutes", "1e-9") == 0
    assert f"stopped after 0 of 5 steps; the same command goes on in {out}" in capsys.readouterr().out
    assert begun(out) == 0
    assert json.loads((out / "training.json").read_text())["tokens_seen"] >= 0.9 * TINY.tokens


def test_an_interrupt_before_the_first_checkpoint_leaves_nothing(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", interrupted)
        assert begun(tmp_path / "made") == 1
    assert not (tmp_path / "made").exists()
    assert "nothing half-written was left" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_trained_is_measured_though_measuring_was_interrupted(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(card, "measure", interrupted)
        assert begun(tmp_path / "made") == 1
    weights = (tmp_path / "made" / "model.safetensors").read_bytes()
    assert begun(tmp_path / "made") == 0
    assert (tmp_path / "made" / "README.md").exists()
    assert (tmp_path / "made" / "model.safetensors").read_bytes() == weights


def test_a_loss_that_is_no_number_ends_it(tmp_path, monkeypatch, capsys):
    nothing = torch.full((), torch.nan, requires_grad=True)
    monkeypatch.setattr(train, "loss_of", lambda model, *given: nothing + 0 * model.lm_head.weight.sum())
    assert begun(tmp_path / "made", "--seed", "3") == 1
    assert "the loss of step 0 is nan; try another --seed" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


TITLES = {"default": "a small Llama\n", "nope": "a small Llama without positions\n", "alibi": "a small MPT\n"}


@pytest.mark.parametrize(
    "recipe", [pytest.param(each, marks=[] if each == "default" else pytest.mark.slow) for each in config.RECIPES]
)
def test_each_recipe_is_a_model_that_plain_transformers_loads(recipe, tmp_path):
    """And Origin computes what it computes, beyond the window too."""
    assert begun(tmp_path, "--recipe", recipe) == 0
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


@torch.no_grad()
def test_only_the_model_without_positions_sees_none():
    ids = torch.randint(0, TINY.vocabulary, (1, 60))
    apart = torch.arange(60)[None] * 1000
    for name, moved in (("llama", True), ("nope", False)):
        torch.manual_seed(0)
        model = making.make_model(replace(TINY, architecture=name)).eval()
        for weight in model.parameters():
            weight *= 5  # attention that is not flat
        difference = (model(ids, position_ids=apart).logits - model(ids).logits).abs().max()
        assert (difference > 0.1) if moved else (difference == 0), name


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ValueError, match="architecture='rope' is unknown; known: llama, nope, alibi"):
        config.TrainConfig(architecture="rope")
