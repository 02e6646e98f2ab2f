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
from probe.tasks.base import Setting
from research.shipped_models import card, key_values, making, quizzes, train
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


@pytest.mark.usefixtures("short")
def test_minutes_stop_it_and_a_loss_that_is_no_number_ends_it(tmp_path, monkeypatch, capsys):
    run(tmp_path / "slow", "--minutes", "0")
    assert "stopped after 0 of 5 steps; the same command continues in" in capsys.readouterr().out
    nothing = torch.full((), torch.nan, requires_grad=True)
    monkeypatch.setattr(train, "loss_of", lambda model, *given: nothing + 0 * model.lm_head.weight.sum())
    with pytest.raises(RuntimeError, match="the loss of step 0 is nan; try another --seed"):
        run(tmp_path / "nan", "--seed", "3")


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


@pytest.mark.parametrize("kind", quizzes.KINDS)
def test_every_answer_stands_in_the_sentences_anywhere_before_its_question(kind, mixture):
    """How far back it is must not help to find it."""
    rng, places = np.random.default_rng(2), []
    for _ in range(50):
        quiz = quizzes.KINDS[kind](int(rng.integers(47, 256)), rng)
        text = "".join(quiz.sentences)
        assert all(part in text for _, answer in quiz.questions for part in answer.strip(' >".\n').split())
    while len(places) < 60:
        ids, weights = mixture._episode(kind, 200, rng)
        answers = [index for index, weight in enumerate(weights) if weight == ANSWER]
        if not answers:
            continue  # it did not fit
        first = ids[answers[0] : answers[0] + (3 if len(answers) > 2 else 1)]
        where = [at for at in range(answers[0]) if ids[at : at + len(first)] == first]
        places += [answers[0] - where[0]] if where else []
    assert len(set(places)) > 25
    assert np.std(places) > 15


@pytest.mark.parametrize("task", [key_values.KEY_VALUE, key_values.TRACKING], ids=lambda task: task.name)
def test_prompts_that_measure_are_exactly_as_long_as_wanted(task, mixture):
    setting = Setting(trained_length=400, lengths=(400,))
    for prompt in task.prepare(mixture.tokenizer, 400, setting, 5):
        text = mixture.tokenizer.decode(prompt.ids)
        assert (len(prompt.ids), prompt.ids[0]) == (400, 0)
        assert mixture.tokenizer.decode(prompt.answer_ids).strip() == prompt.answer
        if task is key_values.TRACKING:
            assert [text.count(name) for name in prompt.answer.split()] == [2, 2, 2, 2, 1]
        else:
            name = text.rsplit('Key: "', 1)[1].split('"')[0]
            assert f'"{name}": {prompt.answer}' in text
    with pytest.raises(ValueError, match="length=60"):
        task.build(mixture.tokenizer, 60, np.random.default_rng(0), setting)
