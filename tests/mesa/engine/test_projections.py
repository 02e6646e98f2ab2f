"""Adapters, hooks and other modules in place of a projection take part on a bridge, in every family."""

import copy

import families
import matrix
import pytest
import tiny
import torch
from bridged import attached
from torch import nn
from transformers import LlamaForCausalLM

import mesa
from mesa.decoder import layers_of
from mesa.models import load


@pytest.fixture(scope="module")
def tokenizer():
    return load().tokenizer


class Adapted(nn.Module):
    """What PEFT puts in a Linear's place: the Linear, whose weight it shows, and an adapter."""

    def __init__(self, linear):
        super().__init__()
        self.base = linear
        self.down = nn.Linear(linear.in_features, 2, bias=False)
        self.up = nn.Linear(2, linear.out_features, bias=False)

    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)

    def forward(self, states):
        return self.base(states) + self.up(self.down(states))


class Holding(nn.Module):
    """What PEFT puts around a model."""

    def __init__(self, model, config=None):
        super().__init__()
        self.model, self.active_peft_config = model, config

    def get_base_model(self):
        return self.model


def projections(model):
    """Of all layers: (module that holds it, its name, it)."""
    places = [
        (holder, name, part)
        for layer in layers_of(model)
        for holder in list(layer.modules())
        for name, part in holder.named_children()
    ]
    return [place for place in places if type(place[2]) is nn.Linear]


def adapt(model):
    for holder, name, linear in projections(model):
        setattr(holder, name, Adapted(linear))


def hook(model):
    for _, _, linear in projections(model):
        linear.register_forward_hook(lambda module, args, output: output * 2)


@torch.no_grad()
def logits(model, name, run=None):
    with attached(model, name):
        return run(tiny.tokens(length=40)) if run else model(tiny.tokens(length=40)).logits


NO_STOCK = ("phi norms",)
"""Families whose attention TransformerLens' own cannot stand for."""


HOOKED = "llama,gpt_neox,phi3,mixtral,gemma4_text shared,phi norms,mpt,bloom".split(",")
"""The families of the quick suite: projections apart and joint, experts, shared keys, norms, ALiBi."""
SLOWER = [pytest.param(family, marks=pytest.mark.slow) for family in families.FAMILIES if family not in HOOKED]
SIMPLE = ("gpt_neox", "mixtral", "phi norms", "bloom")
"""Families whose hooks are those of another one's projections: joint, apart, with norms, ALiBi."""
HOOKS = [pytest.param(family, hook, marks=pytest.mark.slow if family in SIMPLE else ()) for family in HOOKED]
ADAPTED = [pytest.param(*each.values, adapt, marks=each.marks) for each in SLOWER]


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize(("family", "change"), [*ADAPTED, *((family, adapt) for family in HOOKED), *HOOKS])
def test_what_stands_in_place_of_projections_takes_part(family, change, tokenizer):
    torch.manual_seed(0)
    model = families.build(family)
    plain = {name: logits(model, name) for name in ("", "mesa")}
    change(model)
    changed = {name: logits(model, name) for name in plain}
    bridge = mesa.bridge(Holding(model), tokenizer)
    for name, expected in changed.items():
        assert (expected - plain[name]).abs().max() > 0.03
        got = logits(bridge.original_model, name, bridge)
        torch.testing.assert_close(got, expected, atol=3e-5, rtol=0)
        if name or family not in NO_STOCK:  # every hook listens, those of q, k and v among them
            got = logits(bridge.original_model, name, lambda ids: bridge.run_with_cache(ids)[0])
            torch.testing.assert_close(got, expected, atol=3e-5, rtol=0)


@pytest.mark.parametrize("family", ["gpt_neox", "phi3"])
def test_a_joint_module_runs_once_a_pass_and_its_parts_can_be_edited(family, tokenizer):
    model, calls = families.build(family), []
    adapt(model)
    for module in model.modules():
        if isinstance(module, Adapted):
            module.register_forward_hook(lambda module, args, output: calls.append(module))
    bridge = mesa.bridge(model, tokenizer)
    plain = logits(bridge.original_model, "mesa", bridge)
    assert len(calls) == len(set(calls))
    with bridge.hooks([("blocks.0.attn.v.hook_out", lambda value, hook: torch.zeros_like(value))]):
        edited = logits(bridge.original_model, "mesa", bridge)
    assert (edited - plain).abs().max() > 0.01


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_what_reads_weights_alone_is_refused_where_they_are_not_all(family, tokenizer):
    model = families.build(family)
    adapt(model)
    bridge = mesa.bridge(model, tokenizer)
    with pytest.raises(mesa.errors.Refused, match="merge_and_unload"):
        bridge.process_weights()
    for switch in ("use_split_qkv_input", "use_attn_in", "use_attn_result"):
        getattr(bridge, f"set_{switch}")(True)
        for name in ("", "mesa"):
            with pytest.raises(mesa.errors.Refused, match=f"{switch}.* the Adapted there"):
                logits(bridge.original_model, name, lambda ids: bridge.run_with_cache(ids)[0])
        getattr(bridge, f"set_{switch}")(False)


@pytest.mark.parametrize("family", [*HOOKED, *SLOWER])
def test_hooks_by_which_transformers_records_states_are_not_the_users(family, tokenizer):
    model = families.build(family)
    expected = model(tiny.tokens(1, 12), output_hidden_states=True, output_attentions=False).logits
    recorded = any(module._forward_hooks for module in model.modules())  # for good, but in families older than that
    assert recorded or family in ("bloom", "mpt")
    bridge = mesa.bridge(model, tokenizer)
    torch.testing.assert_close(bridge(tiny.tokens(1, 12)), expected, atol=3e-5, rtol=0)


def test_weights_beside_routers_and_sinks_are_processed_and_a_hooked_router_is_refused(tokenizer):
    bridge, ids = mesa.bridge(matrix.build("gpt_oss"), tokenizer), tiny.tokens(1, 12)
    plain = bridge(ids).log_softmax(-1)
    router = next(module for module in bridge.original_model.modules() if type(module).__name__.endswith("Router"))
    hooked = router.register_forward_hook(lambda module, args, output: output)
    with pytest.raises(mesa.errors.Refused, match="Router there computes more"):
        bridge.process_weights()
    hooked.remove()
    bridge.process_weights()
    torch.testing.assert_close(bridge(ids).log_softmax(-1), plain, atol=3e-4, rtol=0)


def test_a_joint_weight_that_cannot_be_read_is_refused(tokenizer):
    model = families.build("gpt_neox")
    for holder, name, linear in projections(model):
        if name == "query_key_value":
            packed = copy.deepcopy(linear)
            packed.weight = nn.Parameter(linear.weight.to(torch.int8), requires_grad=False)
            setattr(holder, name, packed)
    with pytest.raises(mesa.errors.Refused, match=r"'query_key_value' apart, .*torch.int8"):
        mesa.bridge(model, tokenizer)


def test_a_subclass_is_taken_as_its_base(tokenizer):
    class Mine(LlamaForCausalLM):
        pass

    model = tiny.model()
    model.__class__ = Mine
    expected = {name: logits(model, name) for name in ("", "mesa")}
    bridge = mesa.bridge(model, tokenizer)
    for name in expected:
        assert torch.equal(logits(model, name, bridge), expected[name])
    with pytest.raises(mesa.errors.Refused, match="no adapter for a LlamaModel"):
        mesa.bridge(tiny.model().model, tokenizer)


def test_a_peft_model_that_adds_tokens_is_refused(tokenizer):
    class PromptTuningConfig:
        is_prompt_learning = True

    with pytest.raises(mesa.errors.Refused, match="PromptTuningConfig adds tokens"):
        mesa.bridge(Holding(tiny.model(), PromptTuningConfig()), tokenizer)


def given_own_forwards(model, ending):
    """Gives modules whose class is called so a forward of their own, as a subclass's would be."""
    for module in model.modules():
        base = type(module)
        if base.__name__.endswith(ending):

            def forward(self, *args, base=base, **kwargs):
                output = base.forward(self, *args, **kwargs)
                return (output[0] * 1.5, *output[1:]) if isinstance(output, tuple) else output * 1.5

            module.__class__ = type(
                f"Mine{base.__name__}", (base,), {"forward": forward, "__module__": base.__module__}
            )


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("ending", ["Norm", "MLP", "Attention"])
@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_neox", "bloom", "mpt", "olmo2"])
def test_modules_with_forwards_of_their_own_are_computed_by_them_or_refused(family, ending, tokenizer):
    model = families.build(family)
    given_own_forwards(model, ending)
    expected = logits(model, "")
    if (family, ending) == ("phi3", "MLP") or (ending == "Attention" and family in ("bloom", "mpt")):
        with pytest.raises(mesa.Refused, match=r"a Mine.*forward"):
            under_origin(mesa.bridge(model, tokenizer))
        return
    bridge = mesa.bridge(model, tokenizer)
    torch.testing.assert_close(logits(model, "", bridge), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(under_origin(bridge), expected, atol=1e-5, rtol=0)
    if ending == "Attention":
        with pytest.raises(mesa.Refused, match=r"attach mesa\.Origin"):
            bridge.run_with_cache(tiny.tokens(length=40))


def under_origin(bridge):
    return logits(bridge.original_model, "origin", lambda ids: bridge.run_with_cache(ids)[0])
