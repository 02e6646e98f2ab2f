"""The time of passes: counted work at the speed of a trial; a range that holds what passes take as busy as now."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from mesa.methods import Origin, ReRoPE, make
from mesa.plan import relative_positions
from probe.experiment import cost, estimate
from probe.experiment.progress import format_seconds

CONFIG = LlamaConfig(
    vocab_size=8, hidden_size=32, intermediate_size=48, num_hidden_layers=8, num_attention_heads=4,
)  # fmt: skip
ORIGIN, REROPE = Origin(trained_length=64), ReRoPE(trained_length=64)
PASSES = {(ORIGIN, 100): 300.0, (ORIGIN, 1000): 40.0, (REROPE, 1000): 5.0, (REROPE, 4000): 1.0}


class Machine:
    """A clock for passes of a layer: `fixed` s, `token` s a token and `pair` s a pair, times what `load` says next."""

    def __init__(self, monkeypatch, *, fixed=0.0, token=1e-5, pair=1e-8, load=lambda: 1.0):
        self.fixed, self.token, self.pair, self.load, self.lengths, self.now = fixed, token, pair, load, [], 0.0
        monkeypatch.setattr(estimate, "_timed", self.timed)
        monkeypatch.setattr(estimate.time, "perf_counter", lambda: self.now)

    def timed(self, layer, method, executor, length):
        load = self.load()
        self.lengths.append(length)
        spent = (
            load * self.pair * estimate._scored_pairs(method, length, executor),
            load * (self.fixed + self.token * length),
        )
        self.now += sum(spent)
        return spent

    def truth(self, work, load=1.0):
        one = {
            key: self.fixed + self.token * key[1] + self.pair * estimate._scored_pairs(key[0], key[1], "fused")
            for key in work
        }
        return 8 * load * sum(many * one[key] for key, many in work.items())  # 8 layers, of which one is timed


def test_on_an_idle_machine_the_range_is_what_passes_take(monkeypatch):
    machine = Machine(monkeypatch, fixed=1e-3)
    low, high = estimate.seconds(CONFIG, {}, "fused", PASSES)
    assert max(machine.lengths) == 4000
    assert high == pytest.approx(1.3 * low)
    assert low == pytest.approx(machine.truth(PASSES), rel=0.03)  # and the vocabulary's share


@pytest.mark.parametrize("seed", range(3))
def test_the_range_holds_what_passes_take_at_any_load_of_the_trial(monkeypatch, seed):
    """Slow, so that the trial is of short passes; loads of 1 to 3."""
    rng = np.random.default_rng(seed)
    machine = Machine(monkeypatch, token=1e-4, pair=4e-7, load=lambda: rng.uniform(1, 3))
    low, high = estimate.seconds(CONFIG, {}, "fused", PASSES)
    assert max(machine.lengths) < 4000
    assert machine.truth(PASSES, 1) * 0.97 <= low < machine.truth(PASSES, 2) < high <= 1.3 * machine.truth(PASSES, 3.1)
    assert machine.now < 4 * estimate._SECONDS


def test_an_estimate_says_what_its_range_means(monkeypatch):
    Machine(monkeypatch)
    text = estimate.time_text(CONFIG, PASSES, {}, "fused")
    low, high = estimate.seconds(CONFIG, {}, "fused", PASSES)
    ends = " to ".join(dict.fromkeys(map(format_seconds, (low, high))))
    assert text.startswith(f"time: about {ends} for the passes, if this machine stays as busy")
    assert re.search(rf"\({torch.get_num_threads()} threads?; range of a short trial, repeated\)$", text)


def test_what_cannot_be_timed_says_why(monkeypatch):
    def refuse(*_):
        raise MemoryError("7 GiB are needed")

    monkeypatch.setattr(estimate, "check_memory", refuse)
    assert estimate.time_text(CONFIG, PASSES, {}, "fused") == "time: not estimated (7 GiB are needed)"


@pytest.mark.parametrize("executor", ["fused", "dense"])
def test_a_layer_of_the_configs_shapes_is_timed(executor):
    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2)
    layer = estimate.TrialLayer(config, {})
    assert layer.size == 64 * (2 * 64 + 2 * 32) + 3 * 64 * 96
    for method in (ORIGIN, REROPE):
        assert all(part > 0 for part in layer.timed(method, executor, 200))


def test_on_a_gpu_the_time_is_computed():
    """Llama-3-8B's prompt of 8192 tokens: 7 billion weights, and attention under Origin to half of all pairs."""
    config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                         num_key_value_heads=8, dtype="bfloat16")  # fmt: skip
    method, length = Origin(trained_length=8192), 8192
    layer = 4096 * (4096 * 2 + 1024 * 2) + 3 * 4096 * 14336
    operations = 32 * (2 * layer * length + 4 * 4096 * length * (length + 1) / 2)
    least = estimate.least_seconds(config, {"dtype": "bfloat16"}, {(method, length): 10})
    assert least == pytest.approx(10 * operations / 989e12, rel=1e-6)
    text = estimate.time_text(config, {(method, length): 10}, {"device": "cuda", "dtype": "bfloat16"}, "fused")
    assert text == "time: on an H100 at least 1 s for the passes, at 40% of its peak rates 3 s " + (
        "(computed from shapes and plans, never measured)"
    )


@pytest.mark.parametrize("name", ["origin", "rerope", "dca", "stair", "mesa", "streaming-llm", "self-extend"])
def test_computed_operations_are_those_of_the_pairs_that_are_seen(name):
    """Where a pattern chooses between regions, of each one's pairs; of a prompt both share the product with values."""
    method, length = make(name, 64), 300
    for new, prompt in ((length, length), (1, length - 1)):
        plan, index = method.plan(length, prompt), np.arange(length)
        queries = index[-new:]
        seen = int((relative_positions(plan, queries, index) >= 0).sum())
        whole = [replace(region, holds=None) for region in plan.regions]
        pairs = [int(region.contains(queries[:, None], index).sum()) for region in whole]
        assert sum(pairs) == seen if name not in ("stair", "mesa") else sum(pairs) > seen
        products = [3 if region.holds and new > 1 else 4 for region in plan.regions]
        calls = cost.pass_parts(CONFIG, method, length, new)[0]
        assert calls.flops / CONFIG.num_hidden_layers == 32 * np.dot(products, pairs)
