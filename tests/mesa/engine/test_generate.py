"""`generate` with and without a cache, in pieces, and from a cached prefix."""

import copy
import pickle

import cases
import pytest
import tiny
import torch
from families import build
from tiny import tokens
from transformers import DynamicCache

import mesa

PROMPT = 61


def scores(model, ids, **kwargs):
    """The logits of every step of a greedy `generate`."""
    steps = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 1}
    return torch.stack(
        model.generate(ids, **steps, **kwargs, return_dict_in_generate=True, output_logits=True).logits, 1
    )


@pytest.mark.parametrize("name", ["mesa", "rerope"])
@pytest.mark.parametrize("family", ["llama", "mpt", "phi3 longrope"])
def test_without_a_cache_every_step_keeps_the_prompts_length(family, name):
    """61 tokens are split into chunks of 17, 64 would be into chunks of 18."""
    model, method = build(family), cases.method(name)
    with mesa.applied(model, method):
        cached, anew = (scores(model, tokens(1, PROMPT), use_cache=use_cache) for use_cache in (True, False))
    torch.testing.assert_close(anew, cached, atol=2e-5, rtol=0)


def test_a_stated_prompt_length_stands_before_that_of_what_generate_is_given():
    model, ids = tiny.model(), tokens(1, PROMPT)
    with mesa.applied(model, cases.method("mesa"), prompt_length=2 * PROMPT), torch.no_grad():
        torch.testing.assert_close(scores(model, ids)[:, 0], model(ids).logits[:, -1], atol=2e-5, rtol=0)


def test_the_prompts_length_is_forgotten_after_generate():
    model, method = tiny.model(), cases.method("mesa")
    with mesa.applied(model, method), torch.no_grad():
        before = model(tokens(1, PROMPT)).logits
        scores(model, tokens(length=40))
        assert torch.equal(model(tokens(1, PROMPT)).logits, before)
    assert "generate" not in model.__dict__


@pytest.mark.parametrize(("name", "stated"), [("mesa", PROMPT), *((name, None) for name in cases.CASES)])
def test_a_prompt_prefilled_in_pieces_with_rows_that_are_padding_at_first(name, stated):
    model, ids = tiny.model(), tokens(3, PROMPT)
    mask = torch.ones_like(ids)
    mask[0, :37] = mask[1, :20] = 0  # all padding in the first two pieces, and in the first
    with mesa.applied(model, cases.method(name), prompt_length=stated):
        whole = scores(model, ids, attention_mask=mask)
        pieces = scores(model, ids, attention_mask=mask, prefill_chunk_size=16)
        every_row_padded = scores(model, ids[:2], attention_mask=mask[:2], prefill_chunk_size=16)
    torch.testing.assert_close(pieces, whole, atol=3e-5, rtol=0)
    torch.testing.assert_close(every_row_padded, whole[:2], atol=3e-5, rtol=0)


@pytest.fixture
def prefix():
    """A model under a method, a cache of 40 tokens, and the whole prompt's logits from there on."""
    model, ids, cache = tiny.model(), tokens(1, PROMPT), DynamicCache()
    with torch.no_grad(), mesa.applied(model, cases.method("mesa"), prompt_length=PROMPT):
        expected = model(ids).logits[:, 40:]
        model(ids[:, :40], past_key_values=cache)
        yield model, ids, cache, expected


def test_a_copied_cache_goes_on_where_it_was_copied(prefix):
    model, ids, cache, expected = prefix
    for _ in range(2):
        got = model(ids[:, 40:], past_key_values=copy.deepcopy(cache)).logits
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=0)
    assert cache.get_seq_length() == 40
    torch.testing.assert_close(
        scores(model, ids, past_key_values=copy.deepcopy(cache)), scores(model, ids), atol=2e-5, rtol=0
    )


def test_a_copy_of_a_cache_serves_only_in_the_block():
    model, cache = tiny.model(), DynamicCache()
    with torch.no_grad(), mesa.applied(model, cases.method("rerope")):
        model(tokens(1, PROMPT), past_key_values=cache)
        copied = copy.deepcopy(cache)
    again = copy.deepcopy(cache)
    for other in (copied, again, pickle.loads(pickle.dumps(cache))):
        with torch.no_grad(), pytest.raises(RuntimeError, match="block in which this cache of 61 tokens was filled"):
            model(tokens(length=1), past_key_values=other)
        with (
            mesa.applied(model, cases.method("rerope")),
            pytest.raises(ValueError, match="was not filled under rerope"),
        ):
            model(tokens(length=1), past_key_values=other)
