"""Losses by slices of logits: those of all logits at once, with the decoder run once and few logits held."""

import pytest
import tiny
import torch
from matrix import build

import mesa
from probe.eval_tasks import score

LAST, SLICE = 40, 7
IDS = tiny.tokens(1, 60)


@torch.no_grad()
def at_once(model):
    logits = model(IDS, use_cache=False).logits[0, -LAST - 1 : -1]
    return torch.nn.functional.cross_entropy(logits, IDS[0, -LAST:], reduction="none")


@pytest.fixture
def sliced(monkeypatch):
    """Few logits at a time; the tokens of each call of the head."""
    rows = []

    def few(model):
        monkeypatch.setattr(score, "LOGITS", (SLICE + 1) * model.config.vocab_size - 1)
        model.get_output_embeddings().register_forward_hook(lambda head, args, output: rows.append(output.shape[1]))
        return rows

    return few


FAMILIES = {
    "gemma2": {}, "cohere": {}, "granite": {"logits_scaling": 8.0}, "falcon_h1": {"lm_head_multiplier": 0.1},
    "llama": {}, "gpt_neox": {}, "bloom": {}, "mpt": {},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_by_slices_are_those_of_all_logits(sliced, family):
    """Those of the first four depend on a soft cap or a multiplier of logits, by .2 and more."""
    model = build(family, **FAMILIES[family])
    with mesa.applied(model, mesa.Origin(trained_length=24)) as attachment:
        expected, rows = at_once(model), sliced(model)
        attachment.calls.clear()
        with torch.no_grad():
            got = score.token_losses(model, IDS, LAST)
        assert set(attachment.calls.values()) == {1}
        assert rows == [SLICE] * 5 + [6]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(score.nll(model, IDS[0].numpy(), LAST, reduction="mean"), expected.mean())
    rows.clear()
    score.LOGITS = 2**27
    with torch.no_grad():
        assert torch.equal(score.token_losses(model, IDS, LAST), at_once(model))
    assert rows[0] == LAST + 1


@pytest.mark.parametrize("size", [LAST, LAST // 5, LAST - 1])
@torch.no_grad()
def test_slices_that_end_with_the_scored_tokens_have_none_after_them(monkeypatch, size):
    model, rows = tiny.model(), []
    expected = at_once(model)
    monkeypatch.setattr(score, "LOGITS", size * model.config.vocab_size)
    model.lm_head.register_forward_hook(lambda head, args, output: rows.append(output.shape[1]))
    torch.testing.assert_close(score.token_losses(model, IDS, LAST), expected, atol=1e-5, rtol=0)
    assert rows == {LAST: [LAST], LAST // 5: [LAST // 5] * 5, LAST - 1: [LAST - 1, 2]}[size]
    torch.testing.assert_close(score.token_losses(model, IDS, LAST, reduction="mean"), expected.mean())


def test_a_forward_without_logits_to_keep_and_a_head_of_its_own_have_their_losses(sliced):
    model = tiny.model()
    expected, inner, rows = at_once(model), model.forward, sliced(model)
    model.forward = lambda input_ids, use_cache: inner(input_ids, use_cache=use_cache)
    with torch.no_grad():
        torch.testing.assert_close(score.token_losses(model, IDS, LAST), expected, atol=1e-5, rtol=0)
        assert max(rows) == SLICE
        decoder = type(model.model).forward
        model.forward = lambda input_ids, use_cache: type(inner(input_ids, logits_to_keep=1))(
            logits=model.lm_head(decoder(model.model, input_ids)[0])
        )
        torch.testing.assert_close(score.token_losses(model, IDS, LAST), expected, atol=1e-5, rtol=0)


def test_gradients_by_slices_are_those_of_all_logits(sliced):
    model, gradients = tiny.model(), []
    for _ in range(2):
        score.token_losses(model, IDS, LAST).sum().backward()
        gradients.append(model.model.embed_tokens.weight.grad.clone())
        model.zero_grad()
        sliced(model)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5, rtol=1e-4)


def test_memory_is_that_of_a_slice():
    assert score.logits_bytes(262144, 8192, 2) == 512 * 262144 * 10
    assert score.logits_bytes(1000, 64, 4) == 64 * 1000 * 12
