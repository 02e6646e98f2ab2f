"""The CPU's kernel must give what plain operations give; a GPU's tokens must be those of the CPU."""

import cases
import pytest
import tiny
import torch

import mesa
from mesa.engine import cpu
from mesa.engine.cpu import Mask, attend, attend_plainly

CASES = ["causal", "wide", "plain", "masked"]


def inputs(case, dtype=torch.float64, dim=16):
    """Query, key, value, scale, causal and mask: two queries a key head, 50 queries, 50 or 40 keys."""
    generator = torch.Generator().manual_seed(0)
    keys = 50 if case == "causal" else 40
    query, key, value = (
        (2 * torch.randn(2, heads, tokens, dim, generator=generator)).to(dtype)
        for heads, tokens in ((4, 50), (2, keys), (2, keys))
    )
    mask = None
    if case == "masked":
        seen = torch.rand(50, keys, generator=generator) < 0.5
        seen[3] = False  # a query that sees nothing
        mask = Mask.of(seen, dtype)
    return query, key, value, 0.3, case in ("causal", "wide"), mask


@pytest.mark.parametrize("case", CASES)
def test_plain_operations_equal_the_cpu_kernel(case, monkeypatch):
    monkeypatch.setattr(cpu, "BLOCK", 16)
    for got, expected in zip(attend_plainly(*inputs(case)), attend(*inputs(case)), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("tokens", [129, 300])
def test_small_triangles_are_done_by_rows(tokens, monkeypatch):
    query, key, value = (torch.randn(1, 2, tokens, 16, dtype=torch.float64) for _ in range(3))
    expected = attend_plainly(query, key, value, 0.3, True, None)
    for got, part in zip(attend(query, key, value, 0.3, True, None), expected, strict=True):
        torch.testing.assert_close(got, part)
    monkeypatch.setattr(cpu, "_SMALL", 0)
    for got, part in zip(attend(query, key, value, 0.3, True, None), expected, strict=True):
        torch.testing.assert_close(got, part)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(cases.CASES))
def test_methods_on_cuda_give_what_they_give_on_the_cpu(name):
    model, ids = tiny.model(), torch.randint(2, 97, (2, 61), generator=torch.Generator().manual_seed(0))
    results = []
    for device in ("cpu", "cuda"):
        model = model.to(device)
        with mesa.applied(model, cases.method(name)), torch.no_grad():
            results.append(model.generate(ids.to(device), max_new_tokens=5, do_sample=False, pad_token_id=1).cpu())
            results.append(model(ids.to(device)).logits.float().cpu())
    assert torch.equal(results[0], results[2])
    torch.testing.assert_close(results[1], results[3], atol=2e-3, rtol=0)
