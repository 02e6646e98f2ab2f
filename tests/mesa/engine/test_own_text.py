"""A pass belongs to the cache or the text that it is given, whatever runs around it or ran before."""

import copy
import pickle
from functools import partial
from types import SimpleNamespace

import cases
import numpy as np
import pytest
import tiny
import torch
from families import build, dynamic_llama, shared
from tiny import generated, step_logits, tokens
from torch import nn
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

import mesa

PROMPT, OTHER = 61, 45
BY_PROMPT = ["mesa", "lampe", "pi", "dynamic-ntk"]


def by_hand(model, method, ids, new=4):
    """Logits of every greedy step without a cache."""
    steps, length = [], ids.shape[1]
    with torch.no_grad(), mesa.applied(model, method, prompt_length=length):
        for _ in range(new):
            steps.append(model(ids, use_cache=False).logits[:, -1])
            ids = torch.cat([ids, steps[-1].argmax(-1, keepdim=True)], 1)
    return torch.stack(steps, 1)


class Calls(LogitsProcessor):
    """Has the model read other texts while `generate` runs."""

    def __init__(self, model, texts):
        self.model, self.texts, self.got = model, texts, []

    def __call__(self, input_ids, scores):
        self.model.prepare_inputs_for_generation(input_ids)  # for a pass that is not made
        self.got.append([self.model(text).logits for text in self.texts])
        self.got[-1].append(self.model(input_ids, use_cache=False).logits)
        generated(self.model, self.texts[0], 1)
        return scores


@pytest.mark.quick_cases(4)
@torch.no_grad()
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", BY_PROMPT)
def test_other_passes_inside_generate_are_as_alone(name, use_cache):
    model, method, ids = tiny.model(), cases.method(name), tokens(1, PROMPT)
    texts = [tokens(1, OTHER), torch.cat([ids, tokens(1, 9)], 1)]  # the second goes on from the prompt
    expected = by_hand(model, method, ids)
    calls = Calls(model, texts)
    with mesa.applied(model, method):
        alone = [model(text).logits for text in texts]
        got = step_logits(model, ids, use_cache=use_cache, logits_processor=LogitsProcessorList([calls]))
        step = torch.cat([ids, expected[:, :1].argmax(-1)], 1)
        own = model(step).logits
    for one in calls.got:
        for text, other in zip(alone, one, strict=False):
            assert torch.equal(text, other)
    assert torch.equal(calls.got[1][-1], own)
    if name != "dynamic-ntk" or not use_cache:  # whose cached states keep the base of their time
        torch.testing.assert_close(got, expected, atol=3e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("other", [OTHER, 2 * PROMPT, None])
def test_guidance_goes_by_the_negative_prompts_length(other, use_cache):
    model, method, ids, new, scale = tiny.model(), cases.method("mesa"), tokens(2, PROMPT), 4, 1.7
    negative = None if other is None else torch.randint(2, 97, (2, other))
    with mesa.applied(model, method):
        got = generated(model, ids, guidance_scale=scale, negative_prompt_ids=negative, use_cache=use_cache)
    text, against = ids, ids[:, -1:] if negative is None else negative
    lengths = text.shape[1], against.shape[1]
    for _ in range(new):
        scores = []
        for given, length in zip((text, against), lengths, strict=True):
            with mesa.applied(model, method, prompt_length=length):
                scores.append(model(given, use_cache=False).logits[:, -1].log_softmax(-1))
        token = (scale * (scores[0] - scores[1]) + scores[1]).argmax(-1, keepdim=True)
        text, against = torch.cat([text, token], 1), torch.cat([against, token], 1)
    assert got.tolist() == text.tolist()


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [True, False])
def test_prompt_tuning_counts_its_own_tokens(use_cache):
    """As PEFT does it: an input prepared with embeddings before the prompt's."""
    model, method, ids = tiny.model(), cases.method("mesa"), tokens(1, PROMPT)
    embed, prepare = model.get_input_embeddings(), model.prepare_inputs_for_generation
    added = torch.randn(1, 8, embed.weight.shape[1])

    def prepared(input_ids, *args, **kwargs):
        inputs = prepare(input_ids, *args, **kwargs)
        inputs.update(attention_mask=None, position_ids=None)
        if inputs["input_ids"].shape[1] > 1:
            inputs["inputs_embeds"] = torch.cat([added, embed(inputs.pop("input_ids"))], 1)
        return inputs

    expected, text = [], ids
    with mesa.applied(model, method, prompt_length=PROMPT + 8):
        for _ in range(4):
            logits = model(inputs_embeds=torch.cat([added, embed(text)], 1), use_cache=False).logits[:, -1]
            expected.append(logits)
            text = torch.cat([text, logits.argmax(-1, keepdim=True)], 1)
    with mesa.applied(model, method):
        model.prepare_inputs_for_generation = prepared
        got = step_logits(model, ids, use_cache=use_cache)
    torch.testing.assert_close(got, torch.stack(expected, 1), atol=3e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [True, False])
def test_the_bridges_own_loop_counts_the_prompt_as_it_was_given(use_cache, tmp_path):
    model, method, ids = tiny.model(), cases.method("mesa"), tokens(1, PROMPT)
    bridge = mesa.bridge(model, tiny.tokenizer(tmp_path))
    expected = by_hand(model, method, ids).argmax(-1)[0].tolist()
    again = []

    def criterion(text, scores):
        again.append(bridge(text))
        return torch.zeros(len(text), dtype=torch.bool)

    with mesa.applied(model, method):
        options = {"do_sample": False, "stop_at_eos": False, "verbose": False, "use_past_kv_cache": use_cache}
        got = bridge.generate(ids, max_new_tokens=4, stopping_criteria=[criterion], **options)
        alone = bridge(got[:, :-1])
    assert got[0, PROMPT:].tolist() == expected
    assert len(again) >= 3
    assert torch.equal(again[2], alone)


@torch.no_grad()
def test_beams_without_a_cache_give_what_they_give_with_one():
    model, (ids, mask) = tiny.model(), tiny.padded(9, 0, length=PROMPT)
    with mesa.applied(model, cases.method("mesa")):
        options = {"num_beams": 3, "num_return_sequences": 2, "attention_mask": mask, "new": 6}
        cached, again = (generated(model, ids, use_cache=use_cache, **options) for use_cache in (True, False))
    assert cached.tolist() == again.tolist()


@torch.no_grad()
def test_after_generate_and_an_error_in_it_passes_are_texts_of_their_own():
    model, ids = tiny.model(), tokens(1, PROMPT)

    def stop(input_ids, scores):
        raise KeyError("stop")

    with mesa.applied(model, cases.method("mesa")):
        text = torch.cat([ids, tokens(1, 9)], 1)
        alone = model(text, use_cache=False).logits
        generated(model, ids[:, :40])
        assert torch.equal(model(text, use_cache=False).logits, alone)
        with pytest.raises(KeyError):
            generated(model, ids, logits_processor=LogitsProcessorList([stop]), use_cache=False)
        assert torch.equal(model(text, use_cache=False).logits, alone)
    assert not {"generate", "prepare_inputs_for_generation", "_get_logits_processor"} & set(model.__dict__)


@torch.no_grad()
def test_a_cached_prefix_counts_to_the_prompt_of_generate_where_it_is_read_alike():
    model, method, ids = tiny.model(), cases.method("mesa"), tokens(1, PROMPT)
    with mesa.applied(model, method):
        expected = step_logits(model, ids)
        caches = [DynamicCache(), DynamicCache()]
        for cache, length in zip(caches, (method.first, 50), strict=True):
            model(ids[:, :length], past_key_values=cache)
        torch.testing.assert_close(
            step_logits(model, ids, past_key_values=copy.deepcopy(caches[0])), expected, atol=3e-5, rtol=0
        )
        rest = generated(model, ids[:, method.first :], attention_mask=torch.ones_like(ids), past_key_values=caches[0])
        assert rest[0, -4:].tolist() == expected.argmax(-1)[0].tolist()
        with pytest.warns(UserWarning, match="50 tokens were read as a prompt of 50, and a prompt of 61 would place"):
            step_logits(model, ids, past_key_values=caches[1])


@torch.no_grad()
@pytest.mark.parametrize("name", ["origin", "crop", "rerope"])
@pytest.mark.parametrize("build_model", [dynamic_llama, lambda: build("phi3 longrope")])
def test_what_ran_before_changes_no_frequencies_and_we_change_none_of_the_models(build_model, name):
    model, fresh, ids, long = build_model(), build_model(), tokens(1, 40), tokens(1, 200)
    with mesa.applied(fresh, cases.method(name)):
        expected = fresh(ids).logits
    model(long)
    state = {key: value.clone() for key, value in model.named_buffers()}
    with mesa.applied(model, cases.method(name)):
        first = model(ids).logits
        model(long[:, :150])
        model(long.repeat(1, 2))
        assert torch.equal(model(ids).logits, first)
    torch.testing.assert_close(first, expected, atol=1e-6, rtol=0)
    for key, value in model.named_buffers():
        assert torch.equal(value, state[key])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["forward", "compile", "layer", "attention", "rotary", "model"])
def test_a_compiled_model_is_refused(kind):
    def compile_it(model):
        part = {"layer": model.model.layers[0], "attention": model.model.layers[1].self_attn}.get(kind, model)
        part = model.model.rotary_emb if kind == "rotary" else part
        if kind == "model":
            return torch.compile(model, backend="eager")
        if kind == "compile":
            model.compile(backend="eager")
        else:
            part.forward = torch.compile(part.forward, backend="eager")
        return model

    refused = partial(pytest.raises, mesa.Refused, match=r"is compiled \(torch.compile\)")
    with refused(), mesa.applied(compile_it(tiny.model()), cases.method("rerope")):
        pass
    model = tiny.model()
    model.model.layers[0].mlp.compile(backend="eager")  # as good as not
    with mesa.applied(model, cases.method("rerope")):
        generated(model, tokens(1, 30), 1)
        if kind != "model":  # which dynamo leaves to us, pass by pass
            with refused():
                generated(compile_it(model), tokens(1, 30), 1)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_rotary_module_replaced_in_the_block_is_an_error(family):
    model = build(family)
    other = copy.deepcopy(model.model.rotary_emb)
    with mesa.applied(model, cases.method("rerope")):
        model.model.rotary_emb = other
        with pytest.raises(RuntimeError, match="rotary module, which gives it its positions, was replaced inside"):
            model(tokens(1, 30))


@torch.no_grad()
def test_a_generate_from_before_the_block_is_refused_without_a_cache():
    model, ids = tiny.model(), tokens(1, PROMPT)
    before = SimpleNamespace(generate=model.generate)
    with mesa.applied(model, cases.method("mesa")):
        assert generated(before, ids).tolist() == generated(model, ids).tolist()
        with pytest.raises(mesa.Refused, match="this `generate` was taken from the model before the block"):
            generated(before, ids, use_cache=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_model_is_not_copied_in_the_block(copied):
    model = build("llama")
    with mesa.applied(model, cases.method("rerope")), pytest.raises(mesa.Refused, match="is attached to this model"):
        copied(model)
    copied(model)


@pytest.mark.parametrize("value", [-5, 0, True, 3.5, "60", 2**31])
def test_a_prompt_length_that_is_none_is_refused(value):
    with (
        pytest.raises(mesa.Refused, match="applied: prompt_length="),
        mesa.applied(shared("llama"), cases.method("mesa"), prompt_length=value),
    ):
        pass


@pytest.mark.parametrize("name", cases.CASES)
def test_lengths_of_plans_are_checked(name):
    method = cases.method(name)
    for value in (-1, "5", True, 2.0, None, 2**31):
        with pytest.raises(mesa.Refused, match="length="):
            method.plan(value)
    with pytest.raises(mesa.Refused, match="prompt_length=-1 is below"):
        method.plan(5, -1)
    assert method.plan(np.int64(30)).length == 30


def test_arguments_of_applied_are_checked():
    model, method = shared("llama"), cases.method("rerope")
    for args, kwargs, match in [
        ((method, model), {}, "the model comes first"),
        ((nn.Linear(2, 2), method), {}, "a Linear is not a Hugging Face model"),
        (("gpt", method), {}, "a str is not a Hugging Face model"),
        ((model.model, method), {}, "a LlamaModel is not a Hugging Face model that generates"),
        ((model, method), {"executor": "flash"}, "unknown executor 'flash'; known: dense, fused"),
        ((model, method), {"executor": 3}, "unknown executor 3"),
        ((model, method), {"executor": ["fused"]}, "unknown executor"),
    ]:
        with pytest.raises(mesa.Refused, match=match), mesa.applied(*args, **kwargs):
            pass
