"""Every method within what users put around a model: ways to generate, beams, padding, other caches, torch.compile."""

import cases
import pytest
import tiny
import torch

import mesa

pytestmark = pytest.mark.slow
WAYS = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "several samples": {"do_sample": True, "num_return_sequences": 2, "top_k": 5},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
}


@pytest.fixture(scope="module")
def padded():
    ids = torch.randint(2, 97, (2, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :15] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}


def generated(model, inputs, **kwargs):
    torch.manual_seed(0)
    return model.generate(**inputs, max_new_tokens=6, pad_token_id=1, **{"do_sample": False, **kwargs})


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("name", list(cases.CASES))
def test_generating_with_a_cache_is_generating_without(name, way, padded):
    model, expected = tiny.model(), None
    for executor, use_cache in (("dense", False), ("dense", True), ("fused", True)):
        with mesa.applied(model, cases.method(name), executor=executor):
            tokens = generated(model, padded, use_cache=use_cache, **WAYS[way])
        assert expected is None or torch.equal(tokens, expected)
        expected = tokens


@pytest.mark.parametrize("name", list(cases.CASES))
def test_a_cache_of_another_kind_is_refused_by_name(name, padded):
    model = tiny.model()
    with (
        mesa.applied(model, cases.method(name)),
        pytest.raises(ValueError, match=r"StaticCache is not .* DynamicCache"),
    ):
        generated(model, padded, cache_implementation="static")
    assert generated(model, padded).shape == (2, 46)


@torch.no_grad()
@pytest.mark.parametrize("executor", ["dense", "fused"])
@pytest.mark.parametrize("name", list(cases.CASES))
def test_a_compiled_model_computes_the_same(name, executor, padded):
    model = tiny.model()
    torch.compiler.reset()
    with mesa.applied(model, cases.method(name), executor=executor):
        expected = model(**padded).logits
        compiled = torch.compile(model, backend="eager")(**padded).logits
    torch.testing.assert_close(compiled[padded["attention_mask"].bool()], expected[padded["attention_mask"].bool()])
