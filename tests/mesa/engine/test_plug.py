import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import cases
import pytest
import tiny
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from tiny import logits, tokens
from transformers import AttentionInterface, DynamicCache, GPT2Config, GPT2LMHeadModel, StaticCache
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import mesa


@pytest.fixture
def model():
    return tiny.model()


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_before(model, fails):
    ids = tokens(1, 60)
    before, config, registered = logits(model, ids), copy.deepcopy(model.config), set(AttentionInterface())
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    rotary, modules = model.model.rotary_emb, list(model.modules())
    try:
        with mesa.applied(model, cases.method("dynamic-ntk")):
            logits(model, ids)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert torch.equal(logits(model, ids), before)
    assert model.config.to_dict() == config.to_dict()
    assert model.config._attn_implementation == config._attn_implementation
    assert set(AttentionInterface()) == registered
    assert model.model.rotary_emb is rotary
    assert list(model.modules()) == modules
    assert not model.model._forward_pre_hooks
    assert not model.model._forward_hooks
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in weights.items())


def test_dense_returns_attention_weights(model):
    with mesa.applied(model, cases.method("lm-infinite"), executor="dense"), torch.no_grad():
        weights = model(tokens(1, 30), output_attentions=True).attentions
    assert len(weights) == 3
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(1, 4, 30))
    assert (weights[0][0, :, 20, 3:12] == 0).all()  # masked: beyond the 3 first, before the last 9


@pytest.mark.parametrize("name", cases.names())
@pytest.mark.parametrize("executor", ["dense", "fused"])
def test_a_prompt_in_uneven_pieces_is_the_prompt_in_one_call(model, name, executor):
    ids = tokens(1, 70)
    with mesa.applied(model, cases.method(name), executor=executor, prompt_length=62):
        got = tiny.in_pieces(model, ids, 1, 30, 33, 53, 61, 62, 63, 64)
        expected = tiny.in_pieces(model, ids, 62, 63, 64)
    compared = 62 if name == "dynamic-ntk" else 70  # its base depends on how many tokens a call brings
    torch.testing.assert_close(got[:, :compared], expected[:, :compared], atol=3e-5, rtol=0)


def test_bad_input_is_refused(model):
    gpt = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9))
    message = "model type 'gpt2' is not supported: it has no rotary embeddings and no ALiBi, so no distances to change"
    with pytest.raises(ValueError, match=message):
        mesa.applied(gpt, cases.method("rerope")).__enter__()
    with mesa.applied(model, cases.method("rerope")) as attachment:
        with pytest.raises(ValueError, match="use executor='dense'"):
            logits(model, tokens(1, 9), output_attentions=True)
        with pytest.raises(RuntimeError, match="no gradients"):
            model(tokens(1, 10))
        with pytest.raises(ValueError, match="already attached"), mesa.applied(model, cases.method("mesa")):
            pass
        logits(model, tokens(1, 10))
        assert attachment.running is None


def test_arguments_by_position_are_heeded(model):
    ids, mask = tokens(2, 40), torch.ones(2, 40, dtype=torch.long)
    mask[0, :9] = 0
    with torch.no_grad(), mesa.applied(model, cases.method("rerope")):
        by_name = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
        by_place = model.model(ids, mask).last_hidden_state
        without = model.model(ids).last_hidden_state
    torch.testing.assert_close(by_place, by_name, atol=0, rtol=0)
    assert (without[0, 9:] - by_name[0, 9:]).abs().max() > 0.1


def test_rotary_tables_come_out_where_the_states_are():
    model = tiny.model()
    ids = tokens(1, 61)
    with mesa.applied(model, cases.method("rerope")):
        expected = logits(model, ids)
    hook = AlignDevicesHook(execution_device="cpu")
    add_hook_to_module(model.model.rotary_emb, hook)  # as a device map does
    hook.execution_device = "meta"
    with mesa.applied(model, cases.method("rerope")):
        torch.testing.assert_close(logits(model, ids), expected, atol=0, rtol=0)
    assert model.model.rotary_emb._hf_hook is hook  # the model keeps its own


class Counting:
    """A hook, which holds what is not to be copied."""

    def __init__(self):
        self.calls = 0

    def __call__(self, *args):
        self.calls += 1

    def __deepcopy__(self, memo):
        raise AssertionError


@pytest.mark.parametrize("name", ["rerope", "crop"])
def test_hooks_of_a_rotary_module_run_once(model, name):
    before, after = Counting(), Counting()
    model.model.rotary_emb.register_forward_pre_hook(before)
    model.model.rotary_emb.register_forward_hook(after)
    with mesa.applied(model, cases.method(name)):
        logits(model, tokens(1, 40))
    assert (before.calls, after.calls) == (1, 1)


@pytest.mark.parametrize("executor", ["dense", "fused"])
def test_crop_is_the_stock_model_on_the_last_tokens(model, executor):
    """Another token in or out of the window moves these logits by more than 0.02."""
    ids, last = tokens(1, 70), cases.TRAINED
    with mesa.applied(model, cases.method("crop"), executor=executor):
        cropped = logits(model, ids)[:, -last:]
    torch.testing.assert_close(cropped, logits(model, ids[:, -last:]), atol=2e-6, rtol=0)
    for other in (last - 1, last + 1):
        assert (logits(model, ids[:, -other:])[:, -1] - cropped[:, -1]).abs().max() > 0.02


def filled(model, cache):
    """Weak references to a cache and to its first layer's keys, after a pass that filled it, or began to."""
    with suppress(ZeroDivisionError):
        logits(model, tokens(1, 40), past_key_values=cache)
    return [weakref.ref(cache), weakref.ref(cache.layers[0].keys)]


def test_no_cache_is_kept_alive_by_the_pass_that_filled_it(model):
    def own():
        return [weakref.ref(tiny.generated(model, tokens(1, 40), return_dict_in_generate=True).past_key_values)]

    with mesa.applied(model, cases.method("rerope")) as attachment, ThreadPoolExecutor(1) as thread:
        seen = own() + filled(model, StaticCache(model.config, 48)) + filled(model, DynamicCache())
        seen += thread.submit(filled, model, DynamicCache()).result()
        failing = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
        seen += filled(model, DynamicCache())
        failing.remove()
        gc.collect()
        assert [reference() for reference in seen] == [None] * len(seen)
        last = filled(model, DynamicCache())
    assert [reference() for reference in last] == [None, None]
    assert attachment.calls[0]


def test_no_model_is_kept_alive_by_a_forward_of_its_own():
    model = tiny.model()
    model.model.rotary_emb.forward = lambda x, position_ids, of=model: LlamaRotaryEmbedding.forward(
        of.model.rotary_emb, x, position_ids
    )
    add_hook_to_module(model.model.rotary_emb, AlignDevicesHook("cpu"))
    with mesa.applied(model, cases.method("rerope")):
        logits(model, tokens(1, 40))
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None
