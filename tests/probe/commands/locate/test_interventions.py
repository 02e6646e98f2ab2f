"""Interventions on a model whose one position-dependent head is planted."""

from types import SimpleNamespace

import matrix
import numpy as np
import pytest
import torch
from headed import HEAD, planted

import mesa
from mesa.engine.bridge import bridge as bridge_to, hooked
from mesa.models import tokenizer_of
from probe.commands.locate import interventions
from probe.commands.locate.interventions import BASELINE, PATCHED, Clamp, Item, Patch, RunPair, Start, patches, run
from probe.commands.locate.run import ORIGIN, PairedLosses, RunCache
from probe.eval_tasks.retrieval import word_ids

M, LENGTH = 24, 96
HEADS = [(layer, head) for layer in range(3) for head in range(4)]
METHODS = {BASELINE: mesa.Origin(trained_length=M), PATCHED: mesa.ReRoPE(trained_length=M, window=9)}


def bridged(model):
    """With any tokenizer: prompts here are token ids."""
    return bridge_to(model, tokenizer_of("default"))


def item(seed=0, length=LENGTH, scored=24):
    return Item(tuple(np.random.default_rng(seed).integers(2, 97, length).tolist()), scored)


@torch.no_grad()
def test_a_pass_begun_in_the_middle_equals_the_whole_pass():
    bridge, one = bridged(planted()), item()
    whole = run(bridge, one, METHODS[PATCHED], record=[("resid_pre", 2)])
    states = whole.activations["resid_pre", 2]
    assert torch.equal(whole.losses, run(bridge, one, METHODS[PATCHED], start=Start(2, states)).losses)
    other = run(bridge, one, METHODS[PATCHED], start=Start(2, states.flip(0)))
    assert (whole.losses - other.losses).abs().max() > 1e-3
    assert len(bridge.original_model.model.layers) == 3


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["gemma3", "qwen3_5", "gemma4", "minicpm3", "moshi"])
def test_a_pass_begun_in_the_middle_has_each_layers_own_mask_and_rotation(family):
    """Windows, layers with a state, layers with inputs of their own, and none that TransformerLens knows."""
    bridge = hooked(matrix.build(family, times=2), tokenizer_of("default"))
    for method in METHODS.values():
        full = run(bridge, item(length=48), method, record=[("resid_pre", layer) for layer in range(4)])
        for layer in (1, 2, 3):
            start = Start(layer, full.activations["resid_pre", layer])
            again = run(bridge, item(length=48), method, start=start)
            torch.testing.assert_close(again.losses, full.losses, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
def test_a_layer_that_stays_as_trained_recovers_nothing():
    bridge = hooked(matrix.build("gemma3", times=2), tokenizer_of("default"))
    pair = RunPair(bridge, item(length=48), METHODS)  # of windows of 17 tokens in layers 0 and 2
    losses = {layer: Patch("only", layer).run(pair).losses for layer in range(4)}
    unchanged = pair.outcome(BASELINE).losses
    assert [torch.equal(losses[layer], unchanged) for layer in range(4)] == [True, False, True, False]


@torch.no_grad()
def test_the_planted_head_alone_recovers_the_loss():
    model = planted()
    model.lm_head.weight *= 50
    pairs = [RunPair(bridged(model), item(seed), METHODS) for seed in (3, 5, 6)]
    losses = PairedLosses(*[[[pair.outcome(of).losses.mean().item()] for pair in pairs] for of in (BASELINE, PATCHED)])
    assert losses.gap.size > 0.1
    for intervention in patches(range(3), HEADS, ("only", "without")):
        share = losses.share(
            [[intervention.run(pair).losses.mean().item()] for pair in pairs], again=intervention.way == "without"
        )
        is_planted = (intervention.layer, intervention.head) in (HEAD, (HEAD[0], None))
        assert share.share == pytest.approx(float(is_planted), abs=2e-3), intervention


@torch.no_grad()
@pytest.mark.parametrize("way", ["at-M", "range"])
def test_clamped_dims_stay_in_their_range(way, monkeypatch):
    pair, point = RunPair(bridged(planted()), item(), METHODS), ("resid_post", 1)
    before = pair.states_after(BASELINE, 1)

    def recording(base, layer, edits):
        start = Start(layer, pair.outcome(base).activations["resid_pre", layer])
        return run(pair.bridge, pair.item, METHODS[BASELINE], edits, record=[point], start=start)

    monkeypatch.setattr(pair, "run", recording)
    clamped = Clamp(way, "drift", "threshold", 1, ((1, (3, 7)),)).run(pair).activations[point]
    free = [dim for dim in range(32) if dim not in (3, 7)]
    assert torch.equal(clamped[:M], before[:M])
    assert torch.equal(clamped[:, free], before[:, free])
    inside = before[M - 1 : M, [3, 7]] if way == "at-M" else before[M // 2 : M, [3, 7]]
    assert (clamped[M:, [3, 7]] <= inside.amax(0)).all()
    assert (clamped[M:, [3, 7]] >= inside.amin(0)).all()


def test_dims_of_a_word_of_several_tokens_are_evaluated_a_token(monkeypatch):
    rules, find = [], interventions.find_drift
    monkeypatch.setattr(interventions, "find_drift", lambda *of, **by: rules.append(of[2]) or find(*of, **by))
    bridge, ids = bridged(planted()), [5, 9] * (LENGTH // 2)
    interventions.clamped_dims(bridge, ids, [*METHODS.values()], 2, period=2)
    assert rules[0].period == 2
    passed, request = [], SimpleNamespace(word="unforeseeable", dims=2, executor="dense")
    monkeypatch.setattr("probe.commands.locate.run.clamped_dims", lambda *of, period, **by: passed.append(period))
    locate_plan = SimpleNamespace(request=request, methods={ORIGIN: None, "rerope": None}, compared=["rerope"])
    tokenizer = tokenizer_of("default")
    RunCache._dims(SimpleNamespace(plan=locate_plan, _tokenizer=tokenizer, _bridge=None), 64)
    assert passed == [len(word_ids(tokenizer, request.word))] != [1]
