"""Attention in whichever structure it comes: methods against a loop over pairs that takes the model's own rotation."""

import cases
import oracle
import pytest
import structures
import torch
from structures import STRUCTURES
from tiny import tokens
from torch import nn
from transformers import DynamicCache, Gemma2Config, Gemma2ForCausalLM, LlamaForCausalLM
from transformers.models.llama import modeling_llama

import mesa

NAMES = ("origin", "rerope", "self-extend", "stair", "mesa", "lm-infinite", "streaming-llm")
LENGTH = 30


def held_to_pairs(model, name, positions=None):
    ids, method, sizes = tokens(1, LENGTH), cases.method(name), cases.oracle_parameters(name)
    given = {"trained": cases.TRAINED, "prompt": LENGTH, **sizes}

    def at(t, i):
        distance = oracle.relative(name, t, i, **given)
        return None if distance is None else (distance, 0)

    wanted = structures.by_pairs(
        model,
        ids,
        positions or at,
        lambda t: oracle.query_scale(name, t, cases.TRAINED, LENGTH, **sizes) if method.log_n else 1.0,
    )
    for executor in ("dense", "fused"):
        with torch.no_grad(), mesa.applied(model, method, executor=executor):
            got = model(ids).logits
        torch.testing.assert_close(got, wanted, atol=1e-4 * max(1.0, float(wanted.abs().max())), rtol=0)
    return wanted


@pytest.mark.parametrize("structure", [name for name in STRUCTURES if name != "norms after the rotation"])
@pytest.mark.parametrize("name", ["rerope", pytest.param("origin", marks=pytest.mark.slow)] + [
    pytest.param(name, marks=pytest.mark.slow) for name in NAMES[2:]
])  # fmt: skip
def test_a_method_is_what_its_pairs_give(structure, name):
    held_to_pairs(structures.build(structure), name)


@pytest.mark.parametrize("structure", list(STRUCTURES))
def test_origin_is_the_stock_model_padded_and_decoded(structure):
    model, ids = structures.build(structure), tokens(2, LENGTH)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0

    def decoded():
        cache, parts = DynamicCache(config=model.config), []
        for begin, end in ((0, LENGTH - 2), (LENGTH - 2, LENGTH - 1), (LENGTH - 1, LENGTH)):
            places = (mask[:, :end].cumsum(1) - 1).clamp(min=0)[:, begin:]
            given = {"attention_mask": mask[:, :end], "past_key_values": cache, "position_ids": places}
            parts.append(model(ids[:, begin:end], **given).logits)
        return torch.cat(parts, 1)[mask.bool()]

    with torch.no_grad():
        wanted = decoded()
        for executor in ("dense", "fused"):
            with mesa.applied(model, mesa.Origin(trained_length=cases.TRAINED), executor=executor):
                torch.testing.assert_close(decoded(), wanted, atol=3e-5 * float(wanted.abs().max()), rtol=0)


def test_where_norms_follow_the_rotation_scores_are_by_both_positions():
    """Their factors do not commute with turning, so that a distance does not say a score; ReRoPE's positions do."""
    model, window = structures.build("norms after the rotation"), cases.CASES["rerope"]["window"]
    held_to_pairs(model, "rerope", lambda t, i: (t, i) if t - i <= window else (window, 0))


def test_layers_without_rotary_keep_no_distances():
    model, ids = structures.build("no layer rotates"), tokens(1, LENGTH)
    with torch.no_grad():
        wanted = model(ids).logits
        for name in ("self-extend", "rerope"):
            method = cases.method(name, log_n=False)
            with mesa.applied(model, method):
                torch.testing.assert_close(model(ids).logits, wanted, atol=3e-5, rtol=0)


class OwnAttention(modeling_llama.LlamaAttention):
    """Attention of a name of its own."""


class OwnForCausalLM(LlamaForCausalLM):
    """A model of a name of its own, built like others."""


def test_a_class_of_an_unknown_name_is_accepted():
    config = structures.AutoConfig.for_model("llama", **structures.SIZES)
    config.model_type = "own"
    model = OwnForCausalLM(config).eval()
    for number, layer in enumerate(model.model.layers):
        layer.self_attn = OwnAttention(config, number)
    held_to_pairs(model.eval(), "rerope")


def test_an_argument_that_is_not_known_is_an_error():
    class Attention(modeling_llama.LlamaAttention):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs, position_bias=torch.zeros(1))

    model = structures.AutoModelForCausalLM.from_config(
        structures.AutoConfig.for_model("llama", **structures.SIZES, rope_theta=321.0)
    )
    model.model.layers[1].self_attn = Attention(model.config, 1)
    message = "'llama' is not supported: Attention gives its attention position_bias=Tensor, which methods do not know"
    with pytest.raises(ValueError, match=message), mesa.applied(model.eval(), cases.method("rerope")):
        pass


def test_attention_that_a_method_cannot_follow_is_refused_by_layer():
    class Rotary(nn.Module):
        """Turns by other frequencies than it holds."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.register_buffer("inv_freq", inner.inv_freq * 2)
            self.rope_type = "default"

        def forward(self, x, position_ids):
            return self.inner(x, position_ids)

    model = structures.AutoModelForCausalLM.from_config(
        structures.AutoConfig.for_model("llama", **structures.SIZES, rope_theta=123.0)
    ).eval()
    model.model.rotary_emb = Rotary(model.model.rotary_emb)
    model.model.rotary_emb.inner.forward = type(model.model.rotary_emb.inner).forward.__get__(
        model.model.rotary_emb.inner
    )
    model.model.rotary_emb.inner._buffers["scaled"] = model.model.rotary_emb.inner._buffers.pop("inv_freq")
    type(model.model.rotary_emb.inner).inv_freq = property(lambda part: part.scaled)
    try:
        with (
            pytest.raises(ValueError, match="layer 0 turns its queries and keys in a way that was not found"),
            mesa.applied(model, cases.method("rerope")),
        ):
            pass
    finally:
        del type(model.model.rotary_emb.inner).inv_freq


def test_the_probe_leaves_no_trace():
    config = Gemma2Config(**structures.SIZES, rope_theta=77.0)
    model, calls = Gemma2ForCausalLM(config).train(), []
    model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    state, hooks = torch.get_rng_state(), dict(model.model.layers[0]._forward_hooks)
    with mesa.applied(model, cases.method("rerope")):
        pass
    assert not calls
    assert model.training
    assert model.model.layers[1].mlp.training
    assert torch.equal(torch.get_rng_state(), state)
    assert dict(model.model.layers[0]._forward_hooks) == hooks
