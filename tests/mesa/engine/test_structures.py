"""Attention in whichever structure it comes: methods against a loop over pairs that takes the model's own rotation."""

import sys
from types import SimpleNamespace

import cases
import pytest
import structures
import torch
from families import DYNAMIC, build
from structures import LENGTH, NAMES, STRUCTURES, held_to_pairs
from tiny import model as tiny_model, tokens
from torch import nn
from transformers import DynamicCache, Gemma2Config, Gemma2ForCausalLM, LlamaForCausalLM
from transformers.models.llama import modeling_llama

import mesa
from mesa.engine import structure
from mesa.engine.structure import structure_of

QUICK = {"sinks": "mesa", "chunks": "streaming-llm", "MLA, complex": "dynamic-ntk", "soft cap": "self-extend"}
"""By structure the method of the quick suite, where it is not ReRoPE."""


@pytest.mark.parametrize(
    ("structure", "name"),
    [
        pytest.param(structure, name, marks=() if name == QUICK.get(structure, "rerope") else pytest.mark.slow)
        for structure in STRUCTURES
        for name in NAMES
    ],
)
def test_a_method_is_what_its_pairs_give(structure, name):
    """Where norms follow the rotation, their factors do not commute with turning: scores are by both positions."""
    held_to_pairs(structures.build(structure), name, absolute=structure == "norms after the rotation")


@pytest.mark.quick_cases(7)
@pytest.mark.parametrize("structure", list(STRUCTURES))
def test_origin_is_the_stock_model_padded_and_decoded(structure):
    model, (ids, mask) = structures.build(structure), structures.padded()
    with torch.no_grad():
        wanted = structures.run(model, ids, mask)
        for executor in ("dense", "fused"):
            with mesa.applied(model, mesa.Origin(trained_length=cases.TRAINED), executor=executor):
                got = structures.run(model, ids, mask)
            torch.testing.assert_close(got, wanted, atol=3e-5 * float(wanted.abs().max()), rtol=0)


def test_weights_of_norms_after_the_rotation_may_be_edited_between_tokens():
    """They are kept from token to token, and cached keys are without them."""
    model, ids = structures.build("norms after the rotation"), tokens(1, 30)
    norm = next(module for path, module in model.named_modules() if path.endswith("key_layernorm"))
    before = norm.weight.detach().clone()
    logits = []
    with torch.no_grad(), mesa.applied(model, cases.method("rerope")):
        for forget in (False, True):
            norm.weight.copy_(before)
            cache = DynamicCache()
            model(ids[:, :28], past_key_values=cache)
            model(ids[:, 28:29], past_key_values=cache)
            norm.weight.copy_(2 * before)
            if forget:
                mesa.engine.plug.attachment_of(model)._norm_weights.clear()
            logits.append(model(ids[:, 29:], past_key_values=cache).logits)
    assert torch.equal(*logits)


def test_a_single_rotary_pair_has_no_base_to_raise():
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    model = structures.built("glm4", {**structures.SIZES, "rope_parameters": rope})
    assert held_to_pairs(model, "dynamic-ntk").isfinite().all()


def test_a_long_prompt_of_soft_capped_scores_is_said_to_be_slow():
    model, method = structures.build("soft cap"), cases.method("rerope")
    with torch.no_grad(), mesa.applied(model, method):
        model(tokens(1, 1024))
        with pytest.warns(UserWarning, match="this gemma2 model are soft-capped, which no kernel knows"):
            model(tokens(1, 1025))


def test_layers_without_rotary_keep_no_distances():
    model, ids = structures.build("no layer rotates"), tokens(1, 30)
    with torch.no_grad():
        wanted = model(ids).logits
        for name in ("self-extend", "rerope"):
            method = cases.method(name, log_n=False)
            with mesa.applied(model, method):
                torch.testing.assert_close(model(ids).logits, wanted, atol=3e-5, rtol=0)


def test_a_cache_that_drops_what_a_layer_sees_is_refused():
    """transformers gives Moshi a cache of its window, and a mask without one."""
    sizes = {**structures.SIZES, "audio_vocab_size": 8, "ffn_dim": 96, "sliding_window": 9}
    model, ids = structures.built("moshi", sizes), tokens(1, 30)
    with torch.no_grad(), mesa.applied(model, cases.method("rerope", layers=(0, 1))):
        wanted = model(ids, use_cache=False).logits
        cache = model(ids[:, :20]).past_key_values
        with pytest.raises(
            ValueError, match=r"dropped 12 tokens that layer 0 .* pass past_key_values=DynamicCache\(\)"
        ):
            model(ids[:, 20:], past_key_values=cache)
        cache = model(ids[:, :20], past_key_values=DynamicCache()).past_key_values
        got = model(ids[:, 20:], past_key_values=cache).logits
    torch.testing.assert_close(got, wanted[:, 20:], atol=1e-4, rtol=0)


def test_factors_by_the_texts_length_are_refused():
    kind, options = structures.STRUCTURES["rotary that computes its frequencies again"]
    rope = {**options["rope_parameters"], "long_mscale": 1.4}
    model = structures.built(kind, {**structures.SIZES, **options, "rope_parameters": rope})
    with pytest.raises(ValueError, match="a PhimoeRotaryEmbedding is not supported that scales queries and keys by"):
        held_to_pairs(model, "rerope")


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


def test_padding_without_an_embedding_does_not_hide_the_rotation_in_float16():
    model = tiny_model().half()
    assert not model.model.embed_tokens.weight[model.config.pad_token_id].any()
    assert all(attends.kind for attends in structure_of(model).values())


def test_an_argument_that_is_not_known_is_an_error():
    class Attention(modeling_llama.LlamaAttention):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs, position_bias=torch.zeros(1))

    model = structures.AutoModelForCausalLM.from_config(
        structures.AutoConfig.for_model("llama", **structures.SIZES, rope_theta=321.0)
    )
    model.model.layers[1].self_attn = Attention(model.config, 1)
    message = "'llama' is not supported: Attention gives its attention position_bias=Tensor, which methods do not know"
    method = cases.method("rerope")
    for _ in range(2):
        with pytest.raises(ValueError, match=message), mesa.applied(model.eval(), method):
            pass
        with mesa.applied(model, method, family=mesa.Family(arguments={"position_bias": None})):
            pass
    wrong = mesa.Family(arguments={"position_bias": lambda value: 0.5})
    with (
        pytest.raises(ValueError, match="the attention of layer 1 is not what a method can follow"),
        mesa.applied(model, method, family=wrong),
    ):
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


class Angles(nn.Module):
    """Turns by a table, with no inverse frequencies to go by."""

    def __init__(self, inner):
        super().__init__()
        self.register_buffer("angles", torch.arange(4 * LENGTH)[:, None] * inner.inv_freq)

    def forward(self, x, position_ids):
        angles = self.angles[position_ids].repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def test_rotation_by_no_module_that_is_known_is_refused_and_not_taken_for_none():
    model = structures.built("llama", {**structures.SIZES, "rope_theta": 55.0})
    model.model.rotary_emb = Angles(model.model.rotary_emb)
    with (
        pytest.raises(ValueError, match="layer 0 turns its queries and keys in a way that was not found: by other"),
        mesa.applied(model, cases.method("rerope")),
    ):
        pass


def test_attention_that_is_more_than_queries_keys_and_distances_is_refused(monkeypatch):
    class Squared(modeling_llama.LlamaAttention):
        """Attends by the eager function of a file of its own."""

    def eager(module, query, key, value, *args, **kwargs):
        return modeling_llama.eager_attention_forward(module, query, key, value**2, *args, **kwargs)

    Squared.__module__ = "squared"
    monkeypatch.setitem(sys.modules, "squared", SimpleNamespace(eager_attention_forward=eager))
    model = structures.built("llama", {**structures.SIZES, "rope_theta": 66.0})
    model.model.layers[1].self_attn = Squared(model.config, 1).eval()
    with (
        pytest.raises(ValueError, match="the attention of layer 1 is not what a method can follow"),
        mesa.applied(model, cases.method("rerope")),
    ):
        pass


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


@torch.no_grad()
def test_the_probe_has_a_rotary_module_forget_no_long_text(monkeypatch):
    monkeypatch.setattr(structure, "_cache", {})
    model = build("llama", **{**DYNAMIC, "max_position_embeddings": 2 * structure.TOKENS})
    module = model.model.rotary_emb
    model(tokens(1, 200))
    state, frequencies = dict(vars(module)), module.inv_freq.clone()
    with mesa.applied(model, cases.method("rerope")):
        pass
    assert vars(module) == state
    assert torch.equal(module.inv_freq, frequencies)
