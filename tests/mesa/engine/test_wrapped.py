"""Standard methods under what users put around a model, held to dense full passes of every row alone, uncached."""

from functools import cache

import cases
import pytest
import tiny
import torch
from transformers import DynamicCache, LlamaForCausalLM, cache_utils

import mesa

STEPS, PADS = 5, (15, 0, 18)  # 25, 40 and 22 real tokens: the last row passes M = 24 as it is continued
IDS = tiny.tokens(len(PADS), 40)
MASK = (torch.arange(40) >= torch.tensor(PADS)[:, None]).long()
OPTIONS = {"attention_mask": MASK, "max_new_tokens": STEPS, "do_sample": False, "pad_token_id": 1}
OPTIONS |= {"return_dict_in_generate": True, "output_scores": True}
WAYS = {
    "a dynamic cache": {},
    "no cache": {"use_cache": False},
    "prefill in pieces": {"prefill_chunk_size": 16},
    "a static cache": {"cache_implementation": "static"},
    "a quantized cache": {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}},
}


def parts(name: str) -> tuple[LlamaForCausalLM, mesa.Method]:
    """A model and the method; of one layer under Dynamic-NTK: deeper cached states keep an earlier step's base."""
    model = tiny.model()
    if name == "dynamic-ntk":
        del model.model.layers[1:]
        model.config.num_hidden_layers = 1
    return model, mesa.make(name, cases.TRAINED, **cases.CASES.get(name, {}))


@cache
def searched(name: str, row: int, beams: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The best continuations (beam, token) of a row, and the mean log-probability of their tokens."""
    (model, method), best, total = parts(name), IDS[row : row + 1, PADS[row] :], torch.zeros(1)
    with mesa.applied(model, method, executor="dense", prompt_length=best.shape[1]):
        for _ in range(STEPS):
            after = tiny.logits(model, best, use_cache=False)[:, -1].log_softmax(-1)
            total, index = (total[:, None] + after).flatten().topk(beams)
            best = torch.cat([best[index // after.shape[1]], index[:, None] % after.shape[1]], 1)
    return best[:, -STEPS:], total / STEPS


def check(name: str, way: str, beams: int) -> None:
    """AssertionError where `generate` on the left-padded batch gives other tokens or scores."""
    model, method = parts(name)
    with mesa.applied(model, method):
        out = model.generate(IDS, num_beams=beams, num_return_sequences=beams, **OPTIONS, **WAYS[way])
    greedy = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True).mean(1)
    scores = greedy if beams == 1 else out.sequences_scores
    expected, expected_scores = map(torch.cat, zip(*(searched(name, row, beams) for row in range(3)), strict=True))
    assert torch.equal(out.sequences[:, IDS.shape[1] :], expected)
    torch.testing.assert_close(scores, expected_scores, atol=2e-5, rtol=0)


def test_the_comparison_sees_beams_whose_cache_is_not_reordered(monkeypatch):
    check("rerope", "a dynamic cache", 3)
    monkeypatch.setattr(DynamicCache, "reorder_cache", lambda *_: None)
    with pytest.raises(AssertionError):
        check("rerope", "a dynamic cache", 3)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("name", list(mesa.methods.standard_methods()))
def test_generate_gives_what_full_passes_of_the_row_alone_do(name, way, beams, monkeypatch):
    layer = getattr(cache_utils, "Fp8QuantizedLayer", None)
    if layer is not None:
        monkeypatch.setattr(layer, "fp8_dtype", torch.float32)  # all of the quantized cache but its rounding
    elif way == "a quantized cache":
        pytest.skip("this transformers quantizes caches by other packages alone")
    check(name, way, beams)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("name", ["origin", "rerope", "mesa"])
def test_calls_of_what_was_compiled_before_the_block_are_refused_in_it_and_stock_after_it(name):
    torch.compiler.reset()
    model, method = parts(name)
    compiled = torch.compile(model, backend="eager")
    stock = tiny.logits(compiled, IDS)
    with mesa.applied(model, method):
        with pytest.raises(mesa.Refused, match="this pass is traced"):
            tiny.logits(compiled, IDS)
        tiny.logits(model, IDS)
    assert torch.equal(tiny.logits(compiled, IDS), stock)
