"""What is left of accuracy in half precision, under autocast, and whatever torch's default dtype is."""

import cases
import pytest
import structures
import tiny
import torch
from families import build

import mesa
from mesa.engine.attention import EXECUTORS
from mesa.engine.schedule import Schedule
from mesa.models import load
from mesa.plan import Plan, Region, token_index

LENGTH, DIM = 1024, 128
STEEPEST, GENTLE = 0.84, 0.004
"""MPT-7B's first and last slopes."""


def as_at_32k(index):
    """Positions as in a text of 32k tokens: the last key, which biases are counted from, is far from all others."""
    return index + 31 * 1024 * (index == LENGTH - 1)


def alibi(dtype, slopes):
    region = Region((0, LENGTH), (0, LENGTH), query_position=as_at_32k, key_position=as_at_32k)
    return Schedule(Plan(LENGTH, (region,)), 0, token_index, slopes=torch.tensor(slopes, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("executor", ["fused", "dense"])
def test_alibi_in_half_precision_keeps_its_accuracy_at_32k(executor, dtype):
    """An output's own rounding is 0.0016; biases in two parts make 0.04 of it, biases in bfloat16 much more."""
    slopes, generator = [STEEPEST, GENTLE], torch.Generator().manual_seed(0)
    given = [torch.randn(1, 2, LENGTH, DIM, generator=generator).bfloat16() for _ in range(3)]
    exact = EXECUTORS["dense"](alibi(torch.float64, slopes), *(part.double() for part in given), DIM**-0.5)[0]
    got = EXECUTORS[executor](alibi(torch.float32, slopes), *(part.to(dtype) for part in given), DIM**-0.5)[0]
    assert got.dtype == dtype
    assert (got.double() - exact).pow(2).mean((0, 2, 3)).sqrt().max() < 2.5e-3


def stepwise(model, method, executor):
    """Logits of a left-padded prompt, and of three tokens that follow one by one."""
    ids, mask = tiny.padded(9, 0, length=63)
    with mesa.applied(model, method, executor=executor):
        return tiny.in_pieces(model, ids, 60, 61, 62, mask=mask)[:, 9:].float()


@pytest.mark.parametrize("executor", ["fused", "dense"])
@pytest.mark.parametrize("family", ["llama", "mpt", "phi3 longrope"])
@pytest.mark.parametrize("name", ["origin", "mesa"])
def test_autocast_rounds_and_no_more(family, name, executor):
    model, method = build(family), cases.method(name)
    exact = stepwise(model, method, executor)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = stepwise(model, method, executor)
    assert 0 < (rounded - exact).pow(2).mean().sqrt() < 0.02 * exact.std()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("heads", [None, {0: (0, 2)}])
def test_values_of_fewer_dims_than_keys_decode_in_half_precision(heads, dtype):
    model, (ids, mask), method = structures.build("MLA"), structures.padded(), cases.method("rerope", heads=heads)
    results = []
    for kind in (torch.float32, dtype):
        with mesa.applied(model.to(kind), method):
            results.append(structures.run(model, ids, mask).float())
    assert (results[1] - results[0]).pow(2).mean().sqrt() < 0.05 * results[0].std()


THIRDS = [(family, "leaky-rerope") for family in ("llama", "mpt", "phi3 longrope")]


@pytest.mark.quick_cases(7)
@pytest.mark.parametrize("executor", ["fused", "dense"])
@pytest.mark.parametrize(("family", "name"), [("llama", "dynamic-ntk"), ("phi3 longrope", "mesa"), *THIRDS])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_default_dtype_has_no_influence(family, name, executor, dtype):
    model, before = build(family), torch.get_default_dtype()
    method = cases.method(name, **({"k": 3.0} if name == "leaky-rerope" else {}))  # thirds need all bits
    expected = stepwise(model, method, executor)
    torch.set_default_dtype(dtype)
    try:
        got = stepwise(model, method, executor)
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(got, expected, atol=0, rtol=0)


@torch.no_grad()
def test_alibis_scores_in_bfloat16_are_hooked_in_float32():
    model, (ids, mask) = build("mpt").bfloat16(), tiny.padded(9, 0, length=60)
    bridge = mesa.bridge(model, load().tokenizer)
    for heads in (None, {1: (0, 2)}):
        with mesa.applied(model, cases.method("rerope", heads=heads), executor="dense"):
            cache = bridge.run_with_cache(ids, attention_mask=mask)[1]
        scores, pattern = (cache[f"blocks.1.attn.hook_{name}"] for name in ("attn_scores", "pattern"))
        assert (scores.dtype, pattern.dtype) == (torch.float32, torch.bfloat16)
        torch.testing.assert_close(scores.softmax(-1)[0, :, 9:], pattern[0, :, 9:].float(), atol=4e-3, rtol=0)
