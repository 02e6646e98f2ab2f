"""TransformerLens' own calls on `mesa.bridge`: what they see is what the method computes, and what they edit counts."""

import contextlib
import copy

import cases
import pytest
import tiny
import torch
from transformer_lens.model_bridge import TransformerBridge

import mesa
from mesa.models import load

LOWEST = torch.finfo(torch.float32).min


@pytest.fixture(scope="module")
def tokenizer():
    return load().tokenizer


@pytest.fixture
def model():
    return tiny.model()


def tokens(batch=1, length=40):
    return torch.randint(2, 97, (batch, length), generator=torch.Generator().manual_seed(0))


def name(hook, layer=0):
    return f"blocks.{layer}.attn.hook_{hook}"


def cached(bridge, method, ids=None, executor="dense", **kwargs):
    with mesa.applied(bridge.original_model, method, executor=executor):
        return bridge.run_with_cache(tokens() if ids is None else ids, **kwargs)


@pytest.mark.parametrize("executor", ["fused", "dense"])
def test_run_with_cache_holds_the_methods_states(model, tokenizer, executor):
    """Gradients are enabled, as in TransformerLens' examples."""
    method = cases.method("mesa")
    with torch.no_grad(), mesa.applied(model, method, executor=executor):
        expected = model(tokens(), output_hidden_states=True)
    bridge = mesa.bridge(model, tokenizer)
    logits, cache = cached(bridge, method, executor=executor)
    assert torch.equal(logits, expected.logits)
    for layer in (0, 1):
        assert torch.equal(cache["resid_post", layer], expected.hidden_states[layer + 1])
    assert (name("pattern") in cache) == (executor == "dense")
    part, few = cached(
        bridge, method, executor=executor, stop_at_layer=2, names_filter=lambda hook: hook.endswith("hook_resid_post")
    )
    assert list(few) == ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    assert torch.equal(part, expected.hidden_states[2])


def test_scores_are_transformer_lens_own(tokenizer, tmp_path):
    tiny.folder(tmp_path)
    ours, theirs = load(str(tmp_path)), load(str(tmp_path))
    own = TransformerBridge.boot_transformers(
        "LlamaForCausalLM", hf_model=theirs.model, tokenizer=theirs.tokenizer
    ).run_with_cache(tokens())[1]
    cache = cached(mesa.bridge(ours.model, ours.tokenizer), mesa.Origin(trained_length=cases.TRAINED))[1]
    for layer in range(3):
        for hook in ("attn_scores", "pattern"):
            torch.testing.assert_close(cache[name(hook, layer)], own[name(hook, layer)], atol=2e-5, rtol=1e-5)
    assert (cache[name("attn_scores")][0, 0, 3, 4:] == LOWEST).all()


def test_edits_of_scores_and_patterns_count(model, tokenizer):
    """A query that sees itself alone gives its own value on."""
    bridge, method, alone = mesa.bridge(model, tokenizer), cases.method("stair"), torch.eye(40).bool()
    edits = {
        "attn_scores": lambda scores, hook: torch.where(alone, scores, LOWEST),
        "pattern": lambda pattern, hook: alone.expand_as(pattern).to(pattern),
    }
    plain = cached(bridge, method)[0]
    for hook, edit in edits.items():
        with mesa.applied(model, method, executor="dense"), torch.no_grad(), bridge.hooks([(name(hook, 1), edit)]):
            logits, cache = bridge.run_with_cache(tokens(), names_filter=[name("v", 1), name("z", 1)])
        torch.testing.assert_close(cache[name("z", 1)], cache[name("v", 1)].repeat_interleave(2, 2), atol=1e-6, rtol=0)
        assert (logits - plain).abs().max() > 1e-3
        with mesa.applied(model, method, executor="dense"), torch.no_grad():
            again = bridge.run_with_hooks(tokens(), fwd_hooks=[(name(hook, 1), edit)])
        assert torch.equal(again, logits)


def test_gradients_reach_the_hooks_under_dense(model, tokenizer):
    bridge, method, seen = mesa.bridge(model, tokenizer), cases.method("rerope"), {}
    inside = {"return_type": "loss", "incl_bwd": True, "names_filter": lambda hook: ".attn.hook_" in hook}
    cache = cached(bridge, method, **inside)[1]
    for layer in range(3):
        pattern, by_pattern = cache[name("pattern", layer)], cache[name("pattern", layer) + "_grad"]
        expected = pattern * (by_pattern - (pattern * by_pattern).sum(-1, keepdim=True))
        torch.testing.assert_close(cache[name("attn_scores", layer) + "_grad"], expected, atol=1e-7, rtol=1e-4)
        assert expected.abs().max() > 1e-5
    with mesa.applied(model, method, executor="dense"):
        watch = [(name("q", 1), lambda grad, hook: seen.update(q=grad.clone()))]
        with bridge.hooks(bwd_hooks=watch):
            bridge(tokens(), return_type="loss").backward()
    assert seen["q"].abs().max() > 0


@pytest.mark.parametrize("hook", ["pattern", "attn_scores"])
def test_a_hook_that_fused_attention_does_not_reach_is_an_error(model, tokenizer, hook):
    bridge, method, own = mesa.bridge(model, tokenizer), cases.method("rerope"), name(hook, 1)
    calls = [
        lambda: bridge.run_with_cache(tokens(), names_filter=[own, "blocks.0.hook_resid_post"]),
        lambda: bridge.run_with_hooks(tokens(), fwd_hooks=[(lambda other: other.endswith(hook), print)]),
    ]
    with torch.no_grad():
        for call in calls:
            with mesa.applied(model, method), pytest.raises(ValueError, match=r"hook_.* does not fire: .*'dense'"):
                call()
            with pytest.raises(ValueError, match="executor='dense'"):  # no method attached
                call()
        with mesa.applied(model, method):
            bridge(tokens())  # the errors leave nothing behind


def test_sweeps_leave_out_what_does_not_fire(model, tokenizer):
    bridge, fired = mesa.bridge(model, tokenizer), []
    with mesa.applied(model, cases.method("rerope")), torch.no_grad():
        swept = bridge.run_with_cache(tokens(), names_filter=lambda each: "attn" in each)[1]
        bridge.run_with_hooks(tokens(), fwd_hooks=[(lambda each: True, lambda states, hook: fired.append(hook.name))])
    assert name("z") in swept
    assert name("pattern") not in swept
    assert name("z", 2).replace("hook_z", "o.hook_in") in fired


TEXTS = ("import os\n" * 30, "def f(x):\n    return x", "for")
METHODS = (None, "dynamic-ntk", "mesa")


def attached(model, name):
    return contextlib.nullcontext() if name is None else mesa.applied(model, cases.method(name))


@pytest.fixture
def wide():
    """A model with the shipped tokenizer's words, trained on 24 tokens."""
    return tiny.model(vocabulary=2048)


@pytest.mark.parametrize("name", METHODS)
def test_a_text_beyond_the_window_is_not_cut(wide, tokenizer, name):
    bridge, text = mesa.bridge(wide, tokenizer), TEXTS[0]
    ids = torch.tensor(tokenizer([text])["input_ids"])
    assert ids.shape[1] > 2 * bridge.cfg.n_ctx
    assert torch.equal(bridge.to_tokens(text), ids)
    with torch.no_grad(), attached(wide, name):
        expected = wide(ids).logits
        for logits in (bridge(text), bridge([text]), bridge.run_with_cache(text)[0], bridge.run_with_hooks(text)):
            assert torch.equal(logits, expected)
        said = bridge.generate(
            text, max_new_tokens=3, do_sample=False, stop_at_eos=False, verbose=False, return_type="tokens"
        )
        torch.testing.assert_close(said, wide.generate(ids, max_new_tokens=3, do_sample=False))
    assert bridge.to_tokens(text, truncate=True).shape[1] == bridge.cfg.n_ctx


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", METHODS)
def test_a_batch_of_texts_is_its_rows(wide, tokenizer, name, side):
    """Padding counts for nothing on either side, also for methods that follow the prompt's length."""
    own = copy.deepcopy(tokenizer)
    own.padding_side = side
    bridge = mesa.bridge(wide, own)
    with torch.no_grad(), attached(wide, name):
        rows, many = [bridge(text)[0] for text in TEXTS], bridge(list(TEXTS))
        by_token = bridge(list(TEXTS), return_type="loss")
        assert torch.equal(bridge.run_with_cache(list(TEXTS))[0], many)
        assert torch.equal(bridge.run_with_hooks(list(TEXTS)), many)
    for row, logits in zip(rows, many, strict=True):
        there = logits[-len(row) :] if side == "left" else logits[: len(row)]
        torch.testing.assert_close(there, row, atol=1e-5, rtol=1e-5)
    ids = [bridge.to_tokens(text)[0] for text in TEXTS]
    losses = [
        torch.nn.functional.cross_entropy(row[:-1], each[1:], reduction="none")
        for row, each in zip(rows, ids, strict=True)
    ]
    torch.testing.assert_close(by_token, torch.cat(losses).mean(), atol=1e-5, rtol=1e-5)


def test_what_a_cache_lacks_is_explained(model, tokenizer):
    bridge, method = mesa.bridge(model, tokenizer), cases.method("rerope")
    fused, dense = cached(bridge, method, executor="fused")[1], cached(bridge, method, stop_at_layer=2)[1]
    with torch.no_grad():
        plain = bridge.run_with_cache(tokens())[1]
    for cache in (fused, plain, fused.to("cpu"), fused.remove_batch_dim()):
        with pytest.raises(KeyError, match=r"hook_pattern does not fire: .*executor='dense'"):
            cache["pattern", 1]
    for cache, key, reason in (
        (fused, ("rot_q", 0), "hook hook_q"),
        (fused, ("result", 0, "attn"), r"call set_use_attn_result\(True\)"),
        (fused, "rotary_emb.hook_cos", "positions are the attached method's"),
        (fused, ("resid_post", 9), "no hook of this model"),
        (dense, ("pattern", 2), "names_filter or stop_at_layer left it out"),
    ):
        with pytest.raises(KeyError, match=reason):
            cache[key]
    assert dense["pattern", 1].shape == (1, 4, 40, 40)
