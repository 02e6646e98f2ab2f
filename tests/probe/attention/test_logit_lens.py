"""The logit lens against what models say themselves, and on a model whose later layers do nothing."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

import mesa
from mesa.models import load
from probe.attention.logit_lens import logit_lens
from probe.capture.bridge import bridge_to
from probe.tasks.score import nll

METHOD = mesa.ReRoPE(trained_length=24, window=5)


def families():
    path = Path(__file__).parents[2] / "mesa" / "engine" / "test_families.py"
    spec = importlib.util.spec_from_file_location("families_table", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = families()


@pytest.fixture(scope="module")
def tokenizer():
    return load().tokenizer


def prompts(count=2, length=60):
    return torch.randint(3, 90, (count, length), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("family", list(TABLE.FAMILIES))
def test_after_the_last_layer_it_is_what_the_model_says(family, tokenizer):
    """And the first layer says something else, so that the one is not taken for the other."""
    model = TABLE.build(family)
    with mesa.applied(model, METHOD):
        expected = [nll(model, np.array(ids), len(ids) - 1) for ids in prompts()]
    nlls = logit_lens(bridge_to(model, tokenizer), prompts(), METHOD, [20, 24, 60])
    exact = model.config.model_type not in ("phi3", "mpt", "bloom")  # TransformerLens computes their MLPs anew
    for row, losses in enumerate(expected):
        parts = [losses[:19], losses[19:23], losses[23:]]
        by_hand = [float(part.double().mean()) for part in parts]
        np.testing.assert_allclose(nlls[row, -1], by_hand, rtol=0, atol=1e-12 if exact else 1e-6)
        assert np.abs(nlls[row, 0] - by_hand).max() > 1e-4
    assert nlls["begin"].values.tolist() == [1, 20, 24]
    assert nlls.dims == ("prompt", "layer", "bucket")


@pytest.mark.parametrize("last", [0, 1])
def test_layers_that_do_nothing_change_nothing(last, tokenizer):
    model = tiny.model()
    with torch.no_grad():
        for layer in model.model.layers[last + 1 :]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    losses = logit_lens(bridge_to(model, tokenizer), prompts(), METHOD, [60])
    for later in range(last + 1, 3):
        np.testing.assert_array_equal(losses.sel(layer=later), losses.sel(layer=last))
    if last:
        assert np.abs(losses.sel(layer=0) - losses.sel(layer=1)).min() > 1e-3


def test_a_planted_answer_is_read_from_the_layer_that_writes_it(tokenizer):
    """Every state is the token's own embedding, and the unembedding says the token after it in a cycle of ten."""
    model = tiny.model()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        model.model.embed_tokens.weight[:10] = torch.eye(32)[:10]
        model.lm_head.weight[(torch.arange(10) + 1) % 10] = 3 * torch.eye(32)[:10]
    cycle = [each % 10 for each in range(40)]
    losses = logit_lens(bridge_to(model, tokenizer), [cycle, cycle[::-1]], METHOD, [40])
    assert (losses.sel(prompt=0) < 0.01).all()
    assert (losses.sel(prompt=1) > 10).all()


def test_slices_samples_and_layers_read_the_same_tokens(tokenizer, monkeypatch):
    bridge = bridge_to(tiny.model(), tokenizer)
    whole = logit_lens(bridge, prompts(), METHOD, [24, 60])
    assert not np.allclose(whole, logit_lens(bridge, prompts(), mesa.Origin(trained_length=24), [24, 60]), atol=1e-4)
    monkeypatch.setattr("probe.attention.logit_lens.SLICE", 7)
    some = logit_lens(bridge, prompts(), METHOD, [60, 24], layers=[1])
    np.testing.assert_allclose(some, whole.sel(layer=[1]), atol=1e-6)
    sampled = logit_lens(bridge, prompts(), METHOD, [2, 3, 59, 60], sample=1)
    single = logit_lens(bridge, prompts(), METHOD, [2, 3, 4, 59, 60])
    np.testing.assert_allclose(sampled.isel(bucket=[0, 1, 3]), single.isel(bucket=[0, 1, 4]), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ends": [24, 61]}, "a prompt of 60 tokens does not fill the bucket that ends at 61"),
        ({"ends": [1, 24]}, r"buckets that end at \[1, 24\] are not all of one token or more"),
        ({"ends": []}, r"buckets that end at \[\]"),
        ({"layers": [3]}, r"layers=\[3\] are not all among the model's, 0-2"),
        ({"sample": 0}, "sample=0 is below 1 token a bucket"),
    ],
)
def test_what_cannot_be_read_is_named(tokenizer, changes, message):
    with pytest.raises(ValueError, match=message):
        logit_lens(bridge_to(tiny.model(), tokenizer), prompts(), METHOD, **{"ends": [60], **changes})
