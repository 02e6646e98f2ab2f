"""A method acts where the model can look too far: layers whose window holds no distance of M stay as trained."""

from dataclasses import replace

import families
import matrix
import pytest
import torch
from tiny import tokens

import mesa
from mesa.engine import structure
from mesa.errors import Refused
from mesa.settings import fitting_methods
from mesa.support import as_trained_text, attending_layers, windows_of

MIXED = {
    **{family: {} for family in "cohere2 gemma3 gemma3n gemma4 gpt_oss olmo3".split()},
    "ministral": {"layer_types": ["sliding_attention", "full_attention"]},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1, "layer_types": None},
    "llama4": {"attention_chunk_size": 17},
}
"""Families with a window, or chunks, of 17 tokens in layer 0 (qwen2: 1), full attention in the other; more config."""
NAMES = ("rerope", "pi", "dynamic-ntk", "mesa", "lm-infinite")


@torch.no_grad()
def logits(model, method):
    with mesa.applied(model, method) as attachment:
        return model(tokens(1, 60), use_cache=False).logits, attachment.heads


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", MIXED)
def test_windows_below_m_stay_as_trained_and_wider_ones_do_not(family):
    model, short = matrix.build(family, **MIXED[family]), int(family == "qwen2")
    assert structure.windows(model) == windows_of(model.config) == {short: 17}
    for name in NAMES if family not in ("cohere2", "llama4") else ("lm-infinite",):  # whose full layer has no positions
        method = mesa.make(name, trained_length=24)
        (got, heads), (full, _), (all_layers, _) = (
            logits(model, each)
            for each in (method, replace(method, layers=(1 - short,)), replace(method, layers=(0, 1)))
        )
        assert heads == {short: (), 1 - short: (0, 1, 2, 3)}
        assert torch.equal(got, full)
        assert name != "pi" or not torch.allclose(got, all_layers, atol=1e-3)
        within = replace(mesa.make(name, trained_length=16), log_n=False)  # a distance of 16 is in the window
        assert torch.equal(logits(model, within)[0], logits(model, replace(within, layers=(0, 1)))[0])


def test_a_sliding_layer_with_a_convolution_is_one_with_a_window():
    model = matrix.build("zaya", layer_types=["hybrid_sliding", "hybrid"])
    assert structure.windows(model) == windows_of(model.config) == {0: 17}
    assert attending_layers(model.config) == [0, 1]


@torch.no_grad()
def test_the_last_distance_in_a_window_is_one_below_its_size():
    """17 tokens hold distances up to 16: at M = 17 nothing changes, at M = 16 the farthest does."""
    model = families.build("mistral sliding", sliding_window=17)
    with pytest.warns(UserWarning, match=r"rerope would change nothing.* see 17 tokens, .* M = 17; .* below 17"):
        unchanged = logits(model, mesa.ReRoPE(trained_length=17))[0]
    stock = model(tokens(1, 60), use_cache=False).logits
    torch.testing.assert_close(unchanged, stock, atol=1e-5, rtol=0)
    window = {"window": 15, "log_n": False}
    changed = logits(model, mesa.ReRoPE(trained_length=16, **window))[0]
    assert float((changed - stock).abs().max()) > 1e-3
    assert torch.equal(changed, logits(model, mesa.ReRoPE(trained_length=17, layers=(0, 1, 2), **window))[0])
    torch.testing.assert_close(logits(model, mesa.Origin(trained_length=17))[0], stock, atol=1e-5, rtol=0)


def test_a_model_changed_since_the_last_block_is_examined_again():
    model, method = families.build("mistral sliding", sliding_window=17), mesa.ReRoPE(trained_length=24)
    with pytest.warns(UserWarning, match="would change nothing"):
        logits(model, method)
    model.config.sliding_window = None
    assert logits(model, method)[1] == dict.fromkeys(range(3), (0, 1, 2, 3))
    del model.model.layers[1:]
    assert logits(model, method)[1] == {0: (0, 1, 2, 3)}


def test_a_config_says_before_any_weights_are_read_that_no_layer_acts():
    config = families.build("mistral sliding", sliding_window=17).config
    fitting, left_out = fitting_methods("origin,rerope", 24, config=config, by_default=True)
    assert list(fitting) == ["origin"]
    assert "would change nothing" in left_out["rerope"]
    with pytest.raises(Refused, match="use the model as it is, name layers="):
        fitting_methods("origin,rerope", 24, config=config)
    assert list(fitting_methods("origin,rerope", 16, config=config)[0]) == ["origin", "rerope"]


@pytest.mark.filterwarnings("ignore")
def test_check_names_the_layers_that_stay_as_trained():
    model = matrix.build("gemma3")
    rows = mesa.check(model, None, methods="rerope,pi", trained_length=40, pretended=32).rows
    assert not [row for row in rows if row.result == "failed"]
    (row,) = [row for row in rows if row.check == "layers of methods"]
    assert row.detail == as_trained_text({0: 17}, 40)
    assert row.detail == "no method changes layer 0 (17 tokens seen): no distance there reaches M = 40"
    rows = mesa.check(families.build("mistral sliding", sliding_window=17), None, methods="rerope", pretended=32).rows
    assert not [row for row in rows if row.result == "failed"]
    assert {row.detail[:27] for row in rows if row.method == "rerope"} == {"rerope would change nothing"}


def test_layers_of_each_window_are_named_once():
    windows = {layer: 512 for layer in range(18) if layer not in (5, 11, 17)} | {5: 64}
    assert as_trained_text(windows, 512) == (
        "no method changes layer 5 (64 tokens seen) and layers 0-4, 6-10, 12-16 (512 tokens seen): no distance there "
        "reaches M = 512"
    )
    assert as_trained_text(windows, 63) == ""
