"""The time of passes, at the speed of the model's own; and what takes less."""

import re
from types import SimpleNamespace

import matrix
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from mesa.methods import Origin, ReRoPE, make
from mesa.plan import relative_positions
from probe.experiment import estimate
from probe.experiment.pool import format_seconds
from probe.experiment.run import ModelSpec

ORIGIN, REROPE = Origin(trained_length=64), ReRoPE(trained_length=64)
PASSES = {(ORIGIN, 100): 300.0, (ORIGIN, 1000): 40.0, (REROPE, 1000): 5.0, (REROPE, 4000): 1.0}


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=50, **sizes)).eval()


@pytest.mark.parametrize(("each", "token", "pair"), [(1e-3, 1e-5, 1e-8), (0, 1e-4, 4e-7), (0, 1e-2, 0), (0.1, 0, 0)])
def test_the_parts_of_a_pass_are_separated(model, monkeypatch, each, token, pair):
    """A clock that passes move; the passes that are timed are few."""
    clock = SimpleNamespace(now=0.0)

    def timed(_, length):
        clock.now += each + token * length + pair * length * (length + 1) / 2
        return each + token * length + pair * length * (length + 1) / 2

    monkeypatch.setattr(estimate, "_timed", timed)
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: clock.now)
    speed = estimate.speed_of(model, 4000)
    assert clock.now < 1.5 * estimate._TRIAL_S
    assert (speed.longest < 4000) == (token == 1e-2)
    truth = sum(
        count * (each + token * length + pair * estimate.pairs(method.plan(length)))
        for (method, length), count in PASSES.items()
    )
    assert estimate.seconds_of(PASSES, speed) == pytest.approx(truth, rel=1e-3)
    assert speed.seconds(3000, 1000) == pytest.approx(3 * speed.seconds(1000, 1000, ORIGIN))


def test_layers_with_windows_are_linear_in_the_length(monkeypatch):
    model = matrix.build("gemma3")  # a window of 17 tokens in one of two layers

    def timed(_, length):
        return 1e-5 * length + 1e-7 * (length**2 / 2 + 17 * length) / 2

    monkeypatch.setattr(estimate, "_timed", timed)
    speed = estimate.speed_of(model, 2**13)
    assert speed.windows == (17, None)
    assert speed.seconds(2**16, 2**16) == pytest.approx(timed(None, 2**16), rel=0.02)
    assert speed.seconds(2**16, 2**16, REROPE) > speed.seconds(2**16, 2**16, make("streaming-llm", 64))
    assert estimate.speed_of(model, 2**13, "dense").windows == (None, None)


@pytest.mark.parametrize("seconds", [100.0, 3.0])
def test_few_slow_passes_are_not_all_pairs(model, monkeypatch, seconds):
    """A first pass of 32 tokens that takes long, on a busy machine, says little of one of 50,000."""
    clock = SimpleNamespace(now=0.0)

    def timed(_, length):
        clock.now += seconds
        return seconds

    model.config.hidden_size, model.config.intermediate_size = 512, 1024
    monkeypatch.setattr(estimate, "_timed", timed)
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: clock.now)
    speed = estimate.speed_of(model, 50_000)
    assert clock.now < 4 * estimate._TRIAL_S or speed.longest == 32
    assert speed.seconds(50_000, 50_000) < seconds * 50_000 / 32 * 20


@pytest.mark.parametrize("executor", ["fused", "dense"])
def test_passes_of_the_model_are_timed(model, executor):
    speed = estimate.speed_of(model, 100, executor)
    assert speed.longest == 100
    assert speed.seconds(1000, 100) > 0


@pytest.mark.parametrize("name", ["origin", "rerope", "dca", "stair", "mesa", "streaming-llm", "self-extend"])
def test_pairs_are_those_of_the_plan(name):
    plan, index = make(name, 64).plan(300), np.arange(300)
    seen = int((relative_positions(plan, index, index) >= 0).sum())
    assert estimate.pairs(plan) == seen if name not in ("stair", "mesa") else seen < estimate.pairs(plan) <= 2 * seen


def test_pairs_of_a_long_prompt_are_counted_at_some_queries():
    tokens = 2**31 - 1  # 16 GiB, one by one
    assert estimate.pairs(ORIGIN.plan(tokens)) == pytest.approx(tokens * (tokens + 1) / 2, rel=1e-5)


def test_an_estimate_says_what_was_measured():
    text, speed = estimate.time_text({(ORIGIN, 100): 3.0}, ModelSpec("default"), "fused")
    assert re.fullmatch(
        r"time: about \d+ s for the passes, if this machine stays as busy as it is now \([\d,]+ tokens/s measured, in "
        r"passes of up to 100 tokens, with \d+ threads?\)",
        text,
    )
    assert speed is not None
    assert speed.longest == 100
    assert estimate.time_text({}, ModelSpec("default"), "fused") == ("time: none, no pass is left", None)


def test_what_cannot_be_timed_says_why(monkeypatch):
    def refuse(*_, **__):
        raise MemoryError("7 GiB are needed")

    monkeypatch.setattr("probe.experiment.run.load", refuse)
    text, speed = estimate.time_text(PASSES, ModelSpec("default"), "fused")
    assert (text, speed) == ("time: not measured (7 GiB are needed)", None)


@pytest.mark.parametrize(
    ("seconds", "words"), [(89, "89 s"), (5400, "1.5 h"), (172800, "48.0 h"), (12e6, "138.9 days")]
)
def test_times_in_words(seconds, words):
    assert format_seconds(seconds) == words
