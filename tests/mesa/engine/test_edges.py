"""What is neither an ordinary model nor an ordinary call: done right, or refused with the way round."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import cases
import pytest
import tiny
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from families import build, dynamic_llama
from tiny import tokens
from transformers.models.llama.modeling_llama import LlamaAttention

import mesa
from mesa.errors import Refused
from mesa.plan import Constant, Plan, Region, check_plan
from mesa.support import check_method


@torch.no_grad()
def logits(model, ids, method=None, **kwargs):
    if method is None:
        return model(ids, **kwargs).logits
    with mesa.applied(model, method):
        return model(ids, **kwargs).logits


def attentions(model):
    return [module for module in model.modules() if type(module).__name__.endswith("Attention")]


def refused(model, method, message, executor="fused"):
    with pytest.raises(ValueError, match=message), mesa.applied(model, method, executor=executor):
        model(tokens())


class TestALiBi:
    def test_mpt_is_as_trained_where_transformers_ignores_its_config(self):
        """Slopes of 4 heads, by MPT's formula: 2 ** -(maximum * head / 4)."""
        model = build("mpt", attn_config={"alibi_bias_max": 16})
        with (
            pytest.warns(UserWarning, match="alibi_bias_max=16, which methods follow, Origin included"),
            mesa.applied(model, cases.method("origin")) as attachment,
        ):
            assert attachment.slopes.tolist() == [2**-4, 2**-8, 2**-12, 2**-16]
        with mesa.applied(build("mpt"), cases.method("origin")) as attachment:
            assert attachment.slopes.tolist() == [2**-2, 2**-4, 2**-6, 2**-8]

    @pytest.mark.parametrize(
        "build", [lambda: build("bloom", attention_dropout=0.5), lambda: build("mpt", attn_config={"attn_pdrop": 1})]
    )
    def test_attention_dropout_is_refused_in_training_only(self, build):
        model, method = build(), cases.method("rerope")
        refused(model.train(), method, r"attention dropout=\S+ is not supported .* use model.eval\(\)", "dense")
        assert torch.isfinite(logits(model.eval(), tokens(), method)).all()

    @pytest.mark.parametrize("family", ["bloom", "mpt"])
    def test_a_forward_on_a_module_is_refused_and_kept(self, family):
        model = build(family)
        module = attentions(model)[1]
        module.forward = own = lambda *args, **kwargs: type(module).forward(module, *args, **kwargs)
        refused(model, cases.method("rerope"), r"Attention has a forward of its own.*`del module.forward`")
        assert module.__dict__["forward"] is own
        del module.forward
        assert torch.isfinite(logits(model, tokens(), cases.method("rerope"))).all()

    @pytest.mark.parametrize("family", ["bloom", "mpt"])
    def test_accelerates_hooks_run_and_stay(self, family):
        model, ran = build(family), []

        class Seen(AlignDevicesHook):
            def pre_forward(self, module, *args, **kwargs):
                ran.append(module)
                return super().pre_forward(module, *args, **kwargs)

        expected = logits(model, tokens(), cases.method("rerope"))
        for module in attentions(model):
            add_hook_to_module(module, Seen(execution_device="cpu"))
        before = [dict(module.__dict__) for module in attentions(model)]
        assert torch.equal(logits(model, tokens(), cases.method("rerope")), expected)
        assert ran == attentions(model)
        assert [dict(module.__dict__) for module in attentions(model)] == before


class TestRotary:
    @pytest.mark.parametrize("module", [__name__, "no.such.module"])
    def test_an_attention_subclass_defined_elsewhere(self, module):
        model, method = tiny.model(), cases.method("rerope")
        expected = logits(model, tokens(), method)
        for each in attentions(model):
            each.__class__ = type("Mine", (LlamaAttention,), {"__module__": module})
        assert torch.equal(logits(model, tokens(), method), expected)

    @pytest.mark.parametrize("part", [{"layers": (1,)}, {"heads": {1: (0,)}}])
    def test_parts_of_a_model_whose_base_follows_the_length_are_refused(self, part):
        model = dynamic_llama()
        message = rf"rerope: {next(iter(part))} cannot be chosen on this llama model: .*'rope_theta': 10000.0"
        refused(model, cases.method("rerope", **part), message)
        assert torch.equal(logits(model, tokens(), cases.method("origin", **part)), logits(model, tokens()))
        stated = model.config.rope_parameters
        by_kind = {"full_attention": {**stated}, "sliding_attention": {**stated, "rope_type": "default"}}
        config = SimpleNamespace(**{**model.config.to_dict(), "rope_parameters": by_kind})
        with pytest.raises(Refused, match="load the model with rope_type default for each kind of layers"):
            check_method(config, cases.method("rerope", **part))
        model.config.rope_parameters["rope_type"] = "default"  # as the message says
        assert torch.isfinite(logits(model, tokens(), cases.method("rerope", **part))).all()

    @pytest.mark.parametrize("name", ["origin", "rerope", "mesa"])
    def test_a_padded_row_has_the_frequencies_of_its_own_length(self, name):
        """Rows of 16 and of 40 tokens: LongRoPE's short and long frequencies change at 24."""
        model, (ids, mask), method = build("phi3 longrope"), tiny.padded(24, 0, 3, length=40), cases.method(name)
        batch = logits(model, ids, method, attention_mask=mask)
        for row, pad in enumerate((24, 0, 3)):
            alone = logits(model, ids[row : row + 1, pad:], method)
            torch.testing.assert_close(batch[row, pad:], alone[0], atol=2e-5, rtol=0)


def test_an_attached_model_can_be_saved(tmp_path):
    model = tiny.model()
    with mesa.applied(model, cases.method("rerope")):
        model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


@dataclass(frozen=True, kw_only=True)
class Foreign(mesa.Method):
    """Another package's method: plain attention, and one more region."""

    name, formula, source = "foreign", "", ""
    more: Region | None = None
    doubled: int = 0

    def plan(self, length, prompt_length=None):
        near = Region((0, length), (0, length))
        return Plan(length + self.doubled, (near, self.more) if self.more else (near,))


class TestForeignPlans:
    @pytest.mark.parametrize("executor", ["fused", "dense"])
    def test_overlapping_regions(self, executor):
        more = Region((40, 60), (0, 60), Constant(5), Constant(0), nearest=30)
        message = r"foreign: in its plan for 60 tokens, query 40 sees key 0 in more than one region \(regions 0, 1\)"
        refused(tiny.model(), Foreign(trained_length=24, more=more), message, executor)

    def test_keys_after_the_query(self):
        more = Region((0, 60), (0, 60), nearest=-2, farthest=-1)
        refused(tiny.model(), Foreign(trained_length=24, more=more), "query 0 sees key 1 which comes after it")

    def test_another_length(self):
        refused(tiny.model(), Foreign(trained_length=24, doubled=60), "its plan for 60 tokens is one for 120")

    def test_a_sound_one_runs(self):
        model = tiny.model()
        got = logits(model, tokens(), Foreign(trained_length=24))
        torch.testing.assert_close(got, logits(model, tokens()), atol=2e-6, rtol=0)

    def test_an_overlap_of_a_single_query_in_a_long_prompt(self):
        length = 100_000
        near = Region((0, length), (0, length))
        for queries in ((77_777, 77_778), (length - 1, length), (0, 1)):
            plan = Plan(length, (near, replace(near, queries=queries)))
            with pytest.raises(ValueError, match=f"query {queries[0]} sees key 0 in more"):
                check_plan("foreign", plan, length)


@pytest.mark.parametrize(
    ("given", "name", "end"),
    [
        ("yarn", "yarn", "$"),
        ("reroope", "rerope", r"; did you mean 'rerope'\?"),
        (None, "rerope", "$"),
        (mesa.PI, "pi", "$"),
    ],
)
def test_what_is_no_method_is_refused(given, name, end):
    example = rf"is not a method: give one, such as mesa.make\('{name}', trained_length=4096\), with .* your model"
    refused(tiny.model(), given, f"{example}{end}")


def test_names_that_are_misspelt():
    with pytest.raises(ValueError, match=r"unknown method 'Self_Extend'; known: .*; did you mean 'self-extend'\?"):
        mesa.make("Self_Extend", 24)
    with pytest.raises(AttributeError, match=r"module 'mesa' has no attribute 'Rerope'; did you mean 'ReRoPE'\?"):
        _ = mesa.Rerope
