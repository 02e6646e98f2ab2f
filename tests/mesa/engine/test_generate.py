"""`generate` with and without a cache, in pieces, and from a cached prefix."""

import contextlib
import copy
import logging
import pickle
from functools import partial

import cases
import pytest
import tiny
import torch
from families import build, shared
from tiny import tokens
from transformers import DynamicCache, QuantizedCache, StaticCache
from transformers.generation import stopping_criteria

import mesa
from mesa.engine import rope

PROMPT = 61


scores = partial(tiny.step_logits, new=5)


@pytest.mark.parametrize("name", ["mesa", "rerope"])
@pytest.mark.parametrize("family", ["llama", "mpt", "phi3 longrope"])
def test_without_a_cache_every_step_keeps_the_prompts_length(family, name):
    """61 tokens are split into chunks of 17, 64 would be into chunks of 18: the last steps are of 64 and 65."""
    model, method = build(family), cases.method(name)
    with mesa.applied(model, method):
        cached, again = (scores(model, tokens(1, PROMPT), use_cache=use_cache) for use_cache in (True, False))
    torch.testing.assert_close(again, cached, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["rerope", "dca"])
def test_a_step_of_very_many_rows_equals_one_pass(name, monkeypatch):
    """Their states are more than are turned at a time, which splits tokens alone; a query has several positions."""
    monkeypatch.setattr(rope, "_CACHED_NUMBERS", 64)
    model, method, ids = tiny.model(), cases.method(name), tokens(3, 40)
    with mesa.applied(model, method, prompt_length=39):
        step, whole = tiny.in_pieces(model, ids, 39), tiny.logits(model, ids)
    torch.testing.assert_close(step, whole, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["rerope", "self-extend", "dca", "mesa"])
def test_steps_across_the_tables_kept_for_128_tokens_equal_one_pass(name):
    model, method, (ids, mask) = tiny.model(), cases.method(name, log_n=True), tiny.padded(0, 5, length=137)
    with mesa.applied(model, method, prompt_length=124):
        steps = tiny.in_pieces(model, ids, *range(124, 137), mask=mask)
    with mesa.applied(model, method, executor="dense", prompt_length=124), torch.no_grad():
        whole = model(ids, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(steps[mask.bool()], whole[mask.bool()], atol=3e-5, rtol=0)


def test_a_stated_prompt_length_stands_before_that_of_what_generate_is_given():
    model, ids = tiny.model(), tokens(1, PROMPT)
    with mesa.applied(model, cases.method("mesa"), prompt_length=2 * PROMPT), torch.no_grad():
        torch.testing.assert_close(scores(model, ids)[:, 0], model(ids).logits[:, -1], atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "stated"),
    [("mesa", PROMPT), *(pytest.param(*each.values, None, marks=each.marks) for each in cases.names())],
)
def test_a_prompt_prefilled_in_pieces_with_rows_that_are_padding_at_first(name, stated):
    ids, mask = tiny.padded(37, 20, 0, length=PROMPT)  # all padding in the first two pieces, and in the first
    model = tiny.model()
    with mesa.applied(model, cases.method(name), prompt_length=stated):
        whole = scores(model, ids, attention_mask=mask)
        pieces = scores(model, ids, attention_mask=mask, prefill_chunk_size=16)
        every_row_padded = scores(model, ids[:2], attention_mask=mask[:2], prefill_chunk_size=16)
    torch.testing.assert_close(pieces, whole, atol=3e-5, rtol=0)
    torch.testing.assert_close(every_row_padded, whole[:2], atol=3e-5, rtol=0)


STATIC = [pytest.param("llama", *each.values, marks=each.marks) for each in cases.names()]
STATIC += [(family, "rerope") for family in ("mistral sliding", "gemma3_text", "gemma4_text shared")]


@pytest.mark.parametrize(("family", "name"), STATIC)
def test_a_static_cache_gives_what_a_dynamic_one_and_decoding_by_hand_do(family, name):
    """Its empty places are not seen, also in padded batches, chunked prefill, and where it slides or is too long."""
    model, (ids, mask) = shared(family), tiny.padded(37, 0, length=PROMPT)
    with mesa.applied(model, cases.method(name)):
        dynamic = scores(model, ids, attention_mask=mask)
        whole = torch.cat([ids, dynamic[:, :-1].argmax(-1)], 1)
        mask_of_whole = torch.cat([mask, torch.ones_like(whole[:, PROMPT:])], 1)
        by_step = tiny.in_pieces(model, whole, *range(PROMPT, PROMPT + 4), mask=mask_of_whole)[:, PROMPT - 1 :]
        torch.testing.assert_close(dynamic, by_step, atol=3e-5, rtol=0)
        for options in ({}, {"prefill_chunk_size": 16}, {"max_cache_len": 200}):
            static = scores(model, ids, attention_mask=mask, cache_implementation="static", **options)
            torch.testing.assert_close(static, dynamic, atol=3e-5, rtol=0)
    assert not {"generate", "create_masks_for_generate"} & set(model.__dict__)


def test_a_static_cache_of_ones_own_serves_only_in_the_block_and_stock_ones_are_as_before():
    model, ids = tiny.model(), tokens(1, PROMPT)
    stock = scores(model, ids, cache_implementation="static")
    cache = StaticCache(config=model.config, max_cache_len=90)
    with torch.no_grad():
        with mesa.applied(model, cases.method("rerope")):
            expected = model(ids).logits
            parts = [model(part, past_key_values=cache).logits for part in (ids[:, :50], ids[:, 50:])]
            torch.testing.assert_close(torch.cat(parts, 1), expected, atol=2e-5, rtol=0)
        with pytest.raises(RuntimeError, match="block in which this cache of 61 tokens was filled"):
            model(ids[:, :1], past_key_values=cache)
    assert torch.equal(scores(model, ids, cache_implementation="static"), stock)


def test_a_quantized_cache_is_filled_at_the_methods_positions():
    """The first part is exact; what 8 bits take from the rest is a fraction of what another window changes."""
    model, ids = tiny.model(), tokens(1, PROMPT)
    try:
        QuantizedCache("fp8", model.config)
    except ValueError:
        pytest.skip("a cache in fp8 came with a later transformers")
    with torch.no_grad(), mesa.applied(model, cases.method("rerope", window=4)):
        other = model(ids).logits
    with torch.no_grad(), mesa.applied(model, cases.method("rerope")):
        exact, cache = model(ids).logits, QuantizedCache("fp8", model.config)
        parts = [model(part, past_key_values=cache).logits for part in (ids[:, :40], ids[:, 40:])]
    torch.testing.assert_close(parts[0], exact[:, :40], atol=2e-5, rtol=0)
    assert (parts[1] - exact[:, 40:]).abs().mean() < (other - exact)[:, 40:].abs().mean() / 3


@torch.no_grad()
def test_a_copied_cache_goes_on_where_it_was_copied():
    model, ids, cache = tiny.model(), tokens(1, PROMPT), DynamicCache()
    with mesa.applied(model, cases.method("mesa"), prompt_length=PROMPT):
        expected = model(ids).logits[:, 40:]
        model(ids[:, :40], past_key_values=cache)
        for _ in range(2):
            got = model(ids[:, 40:], past_key_values=copy.deepcopy(cache)).logits
            torch.testing.assert_close(got, expected, atol=2e-5, rtol=0)
        assert cache.get_seq_length() == 40
        generated = scores(model, ids, past_key_values=copy.deepcopy(cache))
        torch.testing.assert_close(generated, scores(model, ids), atol=2e-5, rtol=0)


def test_a_cache_and_its_copies_serve_only_in_the_block():
    model, cache = tiny.model(), DynamicCache()
    with torch.no_grad(), mesa.applied(model, cases.method("rerope")):
        model(tokens(1, PROMPT), past_key_values=cache)
        copied, pickled = copy.deepcopy(cache), pickle.dumps(cache)
        with pytest.raises(mesa.Refused, match="was not filled under rerope"):  # nor does what was pickled
            model(tokens(length=1), past_key_values=pickle.loads(pickled))
    for other in (cache, copied, copy.deepcopy(cache), pickle.loads(pickled), pickle.loads(pickle.dumps(cache))):
        with (
            torch.no_grad(),
            pytest.raises(RuntimeError, match="in which this cache of 61 tokens was filled has ended"),
        ):
            model(tokens(length=1), past_key_values=other)
        refused = pytest.raises(
            ValueError, match="the cache of 61 tokens was not filled under rerope; start with a new one"
        )
        with mesa.applied(model, cases.method("rerope")), refused:
            model(tokens(length=1), past_key_values=other)


@pytest.mark.parametrize(("name", "said"), [("origin", True), ("rerope", False)])
def test_only_the_unmodified_model_warns_of_a_text_beyond_its_window(name, said, monkeypatch):
    records = list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger(stopping_criteria.__name__)
    monkeypatch.setattr(stopping_criteria.logger, "warning_once", logger.warning)  # else silent the second time
    monkeypatch.setattr(logger, "handlers", [handler])
    logger.setLevel(logging.WARNING)
    model = tiny.model()
    with mesa.applied(model, cases.method(name)):
        scores(model, tokens(1, 2 * tiny.TRAINED))
    warned = any("predefined maximum length" in record.getMessage() for record in records)
    logger.setLevel(logging.NOTSET)
    assert warned == said
    assert not logger.filters


@pytest.mark.parametrize("call", ["generate_batch", "init_continuous_batching", "continuous_batching_context_manager"])
def test_continuous_batching_is_refused_by_its_own_name(call):
    model = tiny.model()
    ids = [[[5, 6, 7]]] if call == "generate_batch" else []
    with (
        mesa.applied(model, cases.method("rerope")),
        pytest.raises(mesa.Refused, match=r"generate_batch.*call generate"),
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(getattr(model, call)(*ids))
    assert "init_continuous_batching" not in vars(model)
