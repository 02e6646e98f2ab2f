"""TransformerLens' own calls on `mesa.bridge`: what they see is what the method computes, and what they edit counts."""

import contextlib
import copy
import itertools
from functools import partial

import cases
import families
import numpy as np
import pytest
import tiny
import torch
from bridged import attached, held_to_the_model
from matrix import build
from transformer_lens.model_bridge import TransformerBridge

import mesa
from mesa.engine.attention import EXECUTORS
from mesa.models import load
from mesa.support import is_rotary

LOWEST = torch.finfo(torch.float32).min
ORIGIN = mesa.Origin(trained_length=cases.TRAINED)


@pytest.fixture(scope="module")
def tokenizer():
    return load().tokenizer


@pytest.fixture
def model():
    return tiny.model()


tokens = partial(tiny.tokens, length=40)


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
    with torch.no_grad():
        logits, cache = cached(bridge, method, executor=executor)  # every hook listens: dense in either case
    torch.testing.assert_close(logits, expected.logits, atol=1e-5, rtol=0)
    assert name("pattern") in cache
    logits, cache = cached(
        bridge, method, executor=executor, names_filter=lambda hook: hook.endswith(("hook_resid_post", "attn.hook_z"))
    )
    assert torch.equal(logits, expected.logits)
    for layer in (0, 1):
        assert torch.equal(cache["resid_post", layer], expected.hidden_states[layer + 1])
    part, few = cached(
        bridge, method, executor=executor, stop_at_layer=2, names_filter=lambda hook: hook.endswith("hook_resid_post")
    )
    assert list(few) == ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    assert torch.equal(part, expected.hidden_states[2])


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
    inside = {
        "return_type": "loss",
        "incl_bwd": True,
        "names_filter": lambda hook: hook.endswith(("hook_pattern", "hook_attn_scores")),
    }
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


HOOKED = "llama,qwen3,gpt_neox,phi3,stablelm parallel,gemma3_text,gemma4_text,gemma4_text shared,olmo2,mpt,bloom"
SWITCHES = ((), ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in"), ("use_attn_in",))
SWITCHED = {SWITCHES[1]: "llama,gpt_neox,gemma4_text,mpt".split(","), SWITCHES[2]: ["phi3"]}
"""The families in which switches are tried in the quick suite: projections apart and joint, refused, ALiBi."""


def switched():
    for family, switches in itertools.product(HOOKED.split(","), SWITCHES):
        marks = () if family in SWITCHED.get(switches, HOOKED) else pytest.mark.slow
        yield pytest.param(family, switches, marks=marks, id=f"{family}-{'-'.join(switches) or 'none'}")


@pytest.mark.quick_cases(8)
@torch.no_grad()
@pytest.mark.parametrize(("family", "switches"), list(switched()))
def test_every_hook_is_stocks(family, switches, tokenizer):
    """Without a method, and under Origin, every hook that fires on the stock bridge fires with its value."""
    model = families.build(family)
    model.config.architectures = [type(model).__name__]
    stock = TransformerBridge.boot_transformers(type(model).__name__, hf_model=model, tokenizer=tokenizer, device="cpu")
    ours = mesa.bridge(families.build(family), tokenizer)
    gemma4 = model.config.model_type == "gemma4_text"
    for switch, built in itertools.product(switches, (stock, ours)):
        refusal = gemma4 and switch != "use_hook_mlp_in"
        with pytest.raises(NotImplementedError, match=switch) if refusal else contextlib.nullcontext():
            getattr(built, f"set_{switch}")(True)
    logits, expected = stock.run_with_cache(tokens(2, length=12))
    assert set(ours.hook_dict) == set(stock.hook_dict)
    for executor in (None, "dense", "fused"):
        with contextlib.ExitStack() as stack:
            if executor:
                stack.enter_context(mesa.applied(ours.original_model, ORIGIN, executor=executor))
            said, cache = ours.run_with_cache(tokens(2, length=12))
        torch.testing.assert_close(said, logits, atol=1e-4, rtol=1e-4)
        assert executor or set(cache) == set(expected)
        for hook, states in expected.items():
            if executor and (gemma4 or not is_rotary(model.config.model_type)) and hook.endswith("hook_attn_scores"):
                continue  # stock's are the weights, or differ by a number for each query: counted from the last one
            torch.testing.assert_close(cache[hook], states, atol=1e-4, rtol=1e-4, msg=lambda text: f"{hook}: {text}")  # noqa: B023


PATTERNS = [
    pytest.param(family, {}, marks=() if family in HOOKED.split(",") else pytest.mark.slow)
    for family in families.FAMILIES
]
OF_HEADS = [(family, {"heads": {0: (1, 2)}}) for family in "llama,phi3,gemma3_text,gemma4_text shared,mpt".split(",")]


@pytest.mark.quick_cases(5)
@torch.no_grad()
@pytest.mark.parametrize(("family", "parameters"), [*PATTERNS, *OF_HEADS])
def test_patterns_are_the_weights_of_scores_in_every_family(family, parameters, tokenizer):
    model, method, (ids, mask) = (
        families.build(family),
        cases.method("rerope", **parameters),
        tiny.padded(9, 0, length=50),
    )
    with mesa.applied(model, method, executor="dense"):
        expected = model(ids, attention_mask=mask, output_attentions=True)
    bridge = mesa.bridge(model, tokenizer)
    logits, cache = cached(bridge, method, ids, attention_mask=mask)
    torch.testing.assert_close(logits[mask.bool()], expected.logits[mask.bool()], atol=3e-5, rtol=0)
    for layer in range(3):
        scores, pattern = cache[name("attn_scores", layer)], cache[name("pattern", layer)]
        torch.testing.assert_close(pattern, expected.attentions[layer], atol=1e-5, rtol=0)
        torch.testing.assert_close(scores.softmax(-1)[1], pattern[1], atol=1e-6, rtol=0)
        assert (pattern[0, :, :9] == 0).all()


@pytest.mark.parametrize("family", ["deepseek_v2", "gpt_oss", "modernbert_decoder", "qwen3_next", "zamba2"])
def test_families_of_other_structures(family, tokenizer):
    """Complex rotary, sinks, a decoder under another name, linear layers, no attention of TransformerLens' own."""
    held_to_the_model(family, tokenizer)


@torch.no_grad()
def test_a_joint_projection_is_put_together_as_its_module_has_it(tokenizer):
    """CodeGen's holds q, v and k four times; stock's attention, which runs where something listens, knows it."""
    ids = tiny.tokens(1, 9)
    got, wanted = mesa.bridge(build("codegen"), tokenizer)(ids), build("codegen")(ids, use_cache=False).logits
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@torch.no_grad()
def test_only_the_layers_that_are_listened_to_are_computed_densely(model, tokenizer, monkeypatch):
    bridge, method, calls = mesa.bridge(model, tokenizer), cases.method("rerope"), []
    fused = EXECUTORS["fused"]
    monkeypatch.setitem(EXECUTORS, "fused", lambda *given: calls.append(given[0]) or fused(*given))
    plain, seen = cached(bridge, method, executor="fused", names_filter=[name("pattern", 1)])
    assert len(calls) == 2
    torch.testing.assert_close(seen[name("pattern", 1)], cached(bridge, method)[1][name("pattern", 1)])
    torch.testing.assert_close(plain, cached(bridge, method)[0], atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def shared(tokenizer):
    """A bridge that no test changes."""
    return mesa.bridge(tiny.model(), tokenizer)


@torch.no_grad()
@pytest.mark.parametrize("case", cases.CASES)
def test_listeners_change_no_number_of_a_short_padded_batch(case, shared):
    ids, mask = tiny.padded(5, 0, length=40)
    with mesa.applied(shared.original_model, cases.method(case)):
        logits = shared(ids, attention_mask=mask)
        assert torch.equal(shared.run_with_cache(ids, attention_mask=mask)[0], logits)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
def test_a_token_after_padding_is_the_models_where_values_are_narrower(tokenizer):
    ids, mask = tiny.padded(5, 0, length=24)
    models = [build("deepseek_v3", v_head_dim=8) for _ in range(2)]
    mesa.bridge(models[1], tokenizer)
    logits = []
    for model in models:
        with mesa.applied(model, cases.method("rerope")):
            cache = model(ids, attention_mask=mask).past_key_values
            longer = torch.cat([mask, mask[:, -1:]], 1)
            logits.append(model(ids[:, -1:], attention_mask=longer, past_key_values=cache).logits)
    torch.testing.assert_close(*logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_losses_and_gradients_under_fused_are_denses(family, tokenizer):
    bridge, method = mesa.bridge(families.build(family), tokenizer), cases.method("rerope")
    query, gradients = bridge.blocks[0].attn.q.original_component.weight, []
    for executor in ("dense", "fused"):
        message = r"gradients are on, .* rerope runs the dense one, with O\(T\^2\) memory"
        warned = pytest.warns(UserWarning, match=message)
        with mesa.applied(bridge.original_model, method, executor=executor):
            with warned if executor == "fused" else contextlib.nullcontext():
                loss = bridge(tokens(), return_type="loss")
            # the warning comes once
            bridge.run_with_cache(tokens(), return_type="loss", incl_bwd=True, names_filter=[name("pattern")])
        gradients.append(torch.autograd.grad(loss, query)[0])
        bridge.zero_grad()
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 1e-6
    assert not [point.name for point in bridge.hook_points() if point.has_hooks(dir="both")]


TEXTS = ("import os\n" * 30, "def f(x):\n    return x", "for")
METHODS = (None, "dynamic-ntk", "mesa")


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
        cached = bridge.run_with_cache(text, names_filter="blocks.0.attn.hook_z")[0]
        for logits in (bridge(text), bridge([text]), bridge((text,)), cached, bridge.run_with_hooks(text)):
            assert torch.equal(logits, expected)
        greedy = {"max_new_tokens": 3, "do_sample": False}
        said = bridge.generate(text, **greedy, stop_at_eos=False, verbose=False, return_type="tokens")
        torch.testing.assert_close(said, wide.generate(ids, **greedy))
    assert bridge.to_tokens(text, truncate=True).shape[1] == bridge.cfg.n_ctx


@pytest.mark.quick_cases(3)
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
        assert torch.equal(bridge.run_with_cache(list(TEXTS), names_filter="blocks.0.attn.hook_z")[0], many)
        assert torch.equal(bridge(TEXTS), many)
        assert torch.equal(bridge.run_with_hooks(list(TEXTS)), many)
    for row, logits in zip(rows, many, strict=True):
        there = logits[-len(row) :] if side == "left" else logits[: len(row)]
        torch.testing.assert_close(there, row, atol=1e-5, rtol=1e-5)
    following = torch.cat([bridge.to_tokens(text)[0, 1:] for text in TEXTS])
    loss = torch.nn.functional.cross_entropy(torch.cat([row[:-1] for row in rows]), following)
    torch.testing.assert_close(by_token, loss, atol=1e-5, rtol=1e-5)


ROTARY = ("rotary_emb.hook_cos", "rotary_emb.hook_sin")


@torch.no_grad()
def test_edits_of_gemma4s_weights_count_under_a_method_alone(tokenizer):
    """Without one they are computed by Hugging Face's module, which the stock bridge only reads."""
    bridge = mesa.bridge(families.build("gemma4_text"), tokenizer)
    logits, edit = bridge(tokens()), [(name("pattern", 1), lambda pattern, hook: torch.zeros_like(pattern))]
    with pytest.warns(UserWarning, match="edit is discarded"):
        assert torch.equal(bridge.run_with_hooks(tokens(), fwd_hooks=edit), logits)
    with mesa.applied(bridge.original_model, ORIGIN):
        assert (bridge.run_with_hooks(tokens(), fwd_hooks=edit) - logits).abs().max() > 1e-3


def test_rotary_hooks_see_the_positions_that_keys_are_cached_at(model, tokenizer):
    """One position a token, whatever the plan makes of it; edited, they count."""
    bridge, hooks = mesa.bridge(model, tokenizer), ["rotary_emb.hook_in", "rotary_emb.hook_cos", name("cos", 1)]
    for method in (cases.method("stair"), cases.method("nope")):
        cache = cached(bridge, method, executor="fused", names_filter=[*hooks, name("rot_k", 1), name("k", 1)])[1]
        place = torch.as_tensor(method.cached_position(np.arange(40)), dtype=torch.float32)
        angles = place[:, None] * model.model.rotary_emb.inv_freq
        for hook in hooks[1:]:
            torch.testing.assert_close(cache[hook][0], angles.cos().repeat(1, 2), atol=1e-5, rtol=0)
        turned = cache[name("rot_k", 1)]
        torch.testing.assert_close(turned.norm(dim=-1), cache[name("k", 1)].norm(dim=-1))
    flat = [(hook, lambda states, hook: torch.full_like(states, float("cos" in hook.name))) for hook in ROTARY]
    with torch.no_grad(), mesa.applied(model, ORIGIN), bridge.hooks(flat):
        edited = bridge(tokens())
    with torch.no_grad(), mesa.applied(model, cases.method("nope")):
        torch.testing.assert_close(edited, bridge(tokens()), atol=1e-5, rtol=0)


def test_what_a_cache_lacks_is_explained(model, tokenizer):
    bridge = mesa.bridge(model, tokenizer)
    few = cached(bridge, cases.method("rerope"), stop_at_layer=2, names_filter=lambda hook: "pattern" in hook)[1]
    for cache in (few, few.to("cpu"), few.remove_batch_dim()):
        for key, reason in (
            (("result", 0, "attn"), r"call set_use_attn_result\(True\)"),
            (("resid_post", 9), "not a hook of this model"),
            (("pattern", 2), "names_filter or stop_at_layer left it out"),
        ):
            with pytest.raises(KeyError, match=reason):
                cache[key]
    assert few["pattern", 1].shape == (4, 40, 40)
