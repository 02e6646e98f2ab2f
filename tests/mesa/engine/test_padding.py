"""Padding on the right or in between: every row is what it is alone; a lost mask moves logits by more than 0.1."""

import cases
import matrix
import numpy as np
import pytest
import tiny
import torch
from attended import PROMPT, STEPS, attended, by_formula
from families import shared
from tiny import logits, tokens
from transformers import DynamicCache, EncoderDecoderCache

import mesa
from mesa.engine import passes

PADS = {0: (), 1: (*range(49, 58),), 2: (*range(5), *range(40, 43), 57)}
"""Slots of padding in each row of a prompt."""


@pytest.fixture(scope="module")
def model():
    return tiny.model()


def masked(length=PROMPT):
    mask = torch.ones(3, length, dtype=torch.long)
    for row, pads in PADS.items():
        mask[row, list(pads)] = 0
    return mask


@pytest.mark.parametrize("name", cases.names())
def test_every_row_equals_the_formula(name):
    model, expected = tiny.model().double(), {}
    for executor in ("dense", "fused"):
        states = attended(model, cases.method(name), executor, masked(PROMPT + STEPS))
        for row, pads in PADS.items():
            real = [slot for slot in range(PROMPT + STEPS) if slot not in pads]
            if row not in expected:
                alone = [states["q"][row, 1][real], *(states[part][row, 0][real] for part in "kv")]
                expected[row] = by_formula(name, alone, PROMPT - len(pads))
            error = f"{executor}, row {row}"
            np.testing.assert_allclose(states["o"][row, 1][real], expected[row], atol=5e-5, rtol=5e-5, err_msg=error)
            assert (states["o"][row][:, list(pads)] == 0).all()


@pytest.mark.quick_cases(14)
@pytest.mark.parametrize("executor", ["dense", "fused"])
@pytest.mark.parametrize(
    ("family", "name"), [*(("llama", name) for name in cases.CASES), ("mistral sliding", "rerope")]
)
def test_logits_and_losses_are_those_of_the_row_alone(family, name, executor):
    model, ids, mask = shared(family), tokens(3, PROMPT), masked()
    labels = ids.masked_fill(mask == 0, -100)
    with mesa.applied(model, cases.method(name), executor=executor), torch.no_grad():
        batch = model(ids, attention_mask=mask)
        for row in PADS:
            alone = logits(model, ids[row : row + 1, mask[row].bool()])
            torch.testing.assert_close(batch.logits[row, mask[row].bool()], alone[0], atol=2e-5, rtol=0)
        right = model(ids[1:2], attention_mask=mask[1:2], labels=labels[1:2]).loss
        alone = model(ids[1:2, :49], labels=ids[1:2, :49]).loss
    torch.testing.assert_close(right, alone, atol=2e-6, rtol=0)


@pytest.mark.parametrize("executor", ["dense", "fused"])
def test_origin_equals_the_stock_model_as_it_goes_on(model, executor):
    """transformers' own positions count tokens of padding unless they are given, as `generate` gives them."""
    ids, mask, steps = tokens(3, PROMPT), masked(PROMPT + 20), tokens(3, 20, seed=1)
    index = (mask.cumsum(1) - 1).clamp(min=0)

    def run(**positions):
        cache, parts, end = DynamicCache(), [], 0
        for part in (ids, *steps.split([1, 3, 16], 1)):
            begin, end = end, end + part.shape[1]
            given = {"position_ids": index[:, begin:end]} if positions else {}
            parts.append(logits(model, part, attention_mask=mask[:, :end], past_key_values=cache, **given))
        return torch.cat(parts, 1)

    stock = run(given=True)
    with mesa.applied(model, mesa.Origin(trained_length=cases.TRAINED), executor=executor):
        torch.testing.assert_close(run()[mask.bool()], stock[mask.bool()], atol=2e-6, rtol=0)
        torch.testing.assert_close(run(given=True)[mask.bool()], stock[mask.bool()], atol=2e-6, rtol=0)
    assert (run() - stock)[1, PROMPT:].abs().max() > 0.1


def test_a_turn_without_a_row(model):
    """What is given after the prompt may be padding for a row, which then goes on as if it had not been."""
    ids, turn, last = tokens(2, 40), tokens(2, 8, seed=1), tokens(2, 2, seed=2)
    mask = torch.ones(2, 50, dtype=torch.long)
    mask[1, 40:48] = 0
    with mesa.applied(model, cases.method("mesa")):
        cache, alone = DynamicCache(), DynamicCache()
        parts = [
            logits(model, part, attention_mask=mask[:, :end], past_key_values=cache)
            for part, end in ((ids, 40), (turn, 48), (last, 50))
        ]
        expected = [logits(model, part[1:], past_key_values=alone) for part in (ids, last)]
    torch.testing.assert_close(parts[0][1:], expected[0], atol=2e-5, rtol=0)
    torch.testing.assert_close(parts[2][1:], expected[1], atol=2e-5, rtol=0)


def test_a_prompt_in_pieces_is_not_padded_on_the_right(model):
    """Mesa's chunks would have been laid out for more tokens than there are."""
    ids, mask, cache = tokens(3, PROMPT), masked(), DynamicCache()
    with mesa.applied(model, cases.method("mesa"), prompt_length=PROMPT):
        logits(model, ids[:, :45], attention_mask=mask[:, :45], past_key_values=cache)
        message = r"row 1 ends before the prompt of 58 tokens, .* set tokenizer\.padding_side='left'"
        with pytest.raises(ValueError, match=message):
            logits(model, ids[:, 45:], attention_mask=mask, past_key_values=cache)


def test_generate_needs_padding_on_the_left(model):
    """transformers warns of it, picks the first token by a token of padding, and places the others wrongly."""
    ids, mask = tokens(1, 40), torch.ones(1, 40, dtype=torch.long)
    mask[:, 33:] = 0
    message = "position_ids differ from the tokens' places, .* set tokenizer.padding_side='left'"
    with mesa.applied(model, cases.method("rerope")), pytest.raises(ValueError, match=message):
        model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False)


def test_a_sliding_layer_goes_on_only_where_all_that_is_held_is_real():
    """Its cache drops keys by their slots, which padding in between pushes out early."""
    model, ids, mask = shared("mistral sliding"), tokens(2, 30), torch.ones(2, 31, dtype=torch.long)
    mask[1, 24:30] = 0
    cache = DynamicCache(config=model.config)
    with mesa.applied(model, cases.method("rerope")):
        logits(model, ids, attention_mask=mask[:, :30], past_key_values=cache)
        with pytest.raises(ValueError, match=r"sliding layer's cache has dropped .*tokenizer\.padding_side='left'"):
            logits(model, ids[:, :1], attention_mask=mask, past_key_values=cache)


PACKED = torch.ones(1, 20, dtype=torch.long)
PACKED[:, 12:] = 2
EMPTY = torch.ones(2, 20, dtype=torch.long)
EMPTY[1] = 0
REFUSED = {
    "a mask of pairs": (
        2, 20, {"attention_mask": torch.ones(2, 1, 20, 20).tril()},
        r"attention_mask has shape \(2, 1, 20, 20\): .*the method's plan; give .*\(2, 20\).*rows of their own"),
    "masks by layer": (2, 20, {"attention_mask": {"full_attention": None}}, "is a dict: .*the method's plan"),
    "a mask for another batch": (2, 20, {"attention_mask": torch.ones(1, 20).long()}, r"shape \(1, 20\); needed"),
    "a mask one token short": (
        1, 20, {"attention_mask": torch.ones(1, 19).long()}, r"shape \(1, 19\); .* \(1, 20\) of all tokens so far"),
    "a mask that numbers packed texts": (
        1, 20, {"attention_mask": PACKED}, "attention_mask holds 2, neither 0 nor 1.*rows of their own"),
    "packed texts": (
        1, 20, {"position_ids": torch.cat([torch.arange(12), torch.arange(8)])[None]},
        "position_ids begin again at token 12 of row 0: .* packed .* rows of their own, padded"),
    "packed texts of one token": (
        1, 2, {"position_ids": torch.zeros(1, 2).long()}, "position_ids begin again at token 1 of row 0"),
    "a first position": (1, 1, {"position_ids": torch.tensor([[3]])}, "position_ids differ from the tokens' places"),
    "positions without rows": (
        2, 20, {"position_ids": torch.arange(20)}, r"is a Tensor of shape \(20,\); needed is \(2, 20\)"),
    "positions of fewer tokens": (
        1, 20, {"position_ids": torch.arange(9)[None]}, r"shape \(1, 9\); needed is \(1, 20\)"),
    "a list of positions": (1, 20, {"position_ids": [0] * 20}, "position_ids is a list of shape"),
    "no row": (0, 20, {}, r"shape \(0, 20\): a pass needs \(row, token\), one of each at least"),
    "no token": (2, 0, {}, r"shape \(2, 0\): a pass needs"),
}  # fmt: skip
"""By what is given: rows and tokens, arguments, message."""


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_no_plan_is_for_is_refused_with_the_way_round(model, case):
    rows, length, given, message = REFUSED[case]
    with mesa.applied(model, cases.method("rerope")), pytest.raises(ValueError, match=message):
        logits(model, tokens(rows, length), **given)


def test_a_prefix_that_sees_ahead_is_refused():
    """Its mask function reads types by token, and is asked about one far beyond them."""
    ids, message = tokens(1, 20), "a layer sees other tokens than the past"
    model = matrix.build("hrm_text")
    with mesa.applied(model, cases.method("rerope")), pytest.raises(ValueError, match=message):
        logits(model, ids, token_type_ids=torch.ones_like(ids))


class Elsewhere(torch.Tensor):
    """A tensor that says it is on another device."""

    device = torch.device("cuda")


def test_masks_come_to_the_cpu_as_they_are():
    half, ids = torch.full((1, 4), 0.5).as_subclass(Elsewhere), torch.arange(4)[None].as_subclass(Elsewhere)
    for tensors in ((half, ids), (ids, ids + 1), (None, ids)):
        for one, other in zip(passes.on_cpu(*tensors), tensors, strict=True):
            assert one is other is None or (one.dtype == other.dtype and one.tolist() == other.tolist())


def test_no_input_is_left_to_the_model(model):
    with mesa.applied(model, cases.method("rerope")), pytest.raises(ValueError, match="exactly one of input_ids"):
        model()


@torch.no_grad()
def test_padding_of_cached_tokens_cannot_change(model):
    """It did: keys stayed where they were, and queries counted another padding."""
    ids, mask = tiny.padded(9, 0, length=40)
    more = torch.cat([mask, torch.ones(2, 1).long()], 1)
    with mesa.applied(model, cases.method("rerope")):
        for first, later, where in (
            (mask, None, "a token, which was cached as padding"),
            (None, more, "padding, which was cached as a token"),
        ):
            cache = model(ids, attention_mask=first).past_key_values
            with pytest.raises(ValueError, match=f"position 0 of row 0 {where}; .* pass the same mask"):
                model(ids[:, :1], attention_mask=later, past_key_values=cache)
        expected = model(torch.cat([ids, ids[:, :1]], 1), attention_mask=more).logits[:, -1:]
        cache, rows = model(ids, attention_mask=mask).past_key_values, torch.tensor([1, 0])
        cache.reorder_cache(rows)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([0, 2, 3]))  # the row without padding, and the other twice
        got = model(ids[[1, 0, 0], :1], attention_mask=more[[1, 0, 0]], past_key_values=cache).logits
    torch.testing.assert_close(got, expected[[1, 0, 0]], atol=2e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", cases.CASES)
@pytest.mark.parametrize("executor", ["fused", "dense"])
def test_a_row_of_padding_changes_no_other_row(model, executor, name):
    ids, message = tokens(2, 20), "row 1 of attention_mask is all padding; drop it"
    with mesa.applied(model, cases.method(name), executor=executor):
        with pytest.warns(UserWarning, match=message):
            both = model(ids, attention_mask=EMPTY).logits
        torch.testing.assert_close(both[:1], model(ids[:1]).logits, atol=1e-5, rtol=0)
        assert both.isfinite().all()
        with pytest.raises(ValueError, match=message):
            model.generate(ids, attention_mask=EMPTY, max_new_tokens=1)


def test_other_caches_are_refused(model):
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    message = "a EncoderDecoderCache is not supported; pass a DynamicCache, QuantizedCache, StaticCache, or cache_"
    with mesa.applied(model, cases.method("rerope")), pytest.raises(ValueError, match=message):
        logits(model, tokens(2, 20), past_key_values=cache)


def test_generate_reads_its_mask_once(model, monkeypatch):
    """On a GPU each reading waits for the device."""
    ids, mask, read = tokens(2, 20), torch.ones(2, 20, dtype=torch.long), []
    mask[1, :7] = 0
    monkeypatch.setattr(passes, "on_cpu", lambda *tensors: read.append(tensors) or list(tensors))
    with mesa.applied(model, cases.method("rerope")):
        model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=1)
    assert len(read) == 1


@pytest.mark.parametrize("rows", [slice(1, 3), torch.tensor([0, 2])])
@pytest.mark.parametrize("tokens", [slice(1, 4), torch.tensor([0, 3, 4])])
def test_rows_and_tokens_are_taken_and_put_as_one_by_one(rows, tokens):
    states = torch.randn(3, 2, 5, 4)
    places = [
        range(*part.indices(size)) if isinstance(part, slice) else part.tolist()
        for part, size in ((rows, 3), (tokens, 5))
    ]
    one_by_one = torch.stack([torch.stack([states[row, :, token] for token in places[1]], 1) for row in places[0]])
    torch.testing.assert_close(passes.gather_rows(states, rows, tokens), one_by_one, rtol=0, atol=0)
    empty = torch.zeros_like(states)
    passes.scatter_rows(empty, rows, tokens, one_by_one)
    kept = torch.zeros(3, 5, dtype=torch.bool)
    kept[[[row] for row in places[0]], list(places[1])] = True
    torch.testing.assert_close(empty, states * kept[:, None, :, None], rtol=0, atol=0)
