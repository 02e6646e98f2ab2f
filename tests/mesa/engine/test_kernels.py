"""The kernels of `attend`: each must give what plain operations give."""

import math

import cases
import pytest
import tiny
import torch

import mesa
from mesa.engine import kernels
from mesa.engine.kernels import Mask, attend, attend_cuda, attend_plainly

CASES = ["causal", "wide", "plain", "masked"]


def inputs(case, dtype=torch.float64, device="cpu", dim=16):
    """Query, key, value, scale, causal and mask: two queries a key head, 50 queries, 50 or 40 keys."""
    generator = torch.Generator().manual_seed(0)
    keys = 50 if case == "causal" else 40
    query, key, value = (
        (2 * torch.randn(2, heads, tokens, dim, generator=generator)).to(device, dtype)
        for heads, tokens in ((4, 50), (2, keys), (2, keys))
    )
    mask = None
    if case == "masked":
        seen = torch.rand(50, keys, generator=generator) < 0.5
        seen[3] = False  # a query that sees nothing
        mask = Mask.of(seen.to(device), dtype)
    return query, key, value, 0.3, case in ("causal", "wide"), mask


def in_float64(query, key, value, scale, causal, mask):
    """Plain operations on the same numbers, of whichever dtype and device, in float64 on the CPU."""
    states = (part.cpu().double() for part in (query, key, value))
    return attend_plainly(*states, scale, causal, mask and Mask(mask.added.cpu().double(), None))


@pytest.mark.parametrize("case", CASES)
def test_plain_operations_equal_the_cpu_kernel(case, monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK", 16)
    for got, expected in zip(attend_plainly(*inputs(case)), attend(*inputs(case)), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("small", [0, 10**6])
def test_leading_keys_are_seen_by_every_query_and_the_rest_causally(small, monkeypatch):
    monkeypatch.setattr(kernels, "_SMALL", small)
    query, key, value, scale, *_ = inputs("causal")
    mask = Mask.of(torch.ones(43, 50).tril(7).bool(), torch.float64)
    expected = attend_plainly(query[:, :, :43], key, value, scale, False, mask)
    for got, part in zip(attend(query[:, :, :43], key, value, scale, True, None, 7), expected, strict=True):
        torch.testing.assert_close(got, part)


def flash(query, key, value, dropout, causal, debug, *, scale):
    """What PyTorch's CUDA flash kernel promises: half precision, grouped heads, a triangle from the bottom right."""
    assert query.dtype in (torch.float16, torch.bfloat16)
    assert query.shape[3] % 8 == 0
    assert not causal or query.shape[2] == key.shape[2]
    return *attend_plainly(query, key, value, scale, causal, None), "more"


def efficient(query, key, value, added, with_log_sum, dropout, causal, *, scale):
    """What its memory-efficient kernel promises: equal heads, aligned rows of the mask, a padded log-sum-exp."""
    assert with_log_sum
    assert query.shape[1] == key.shape[1] == value.shape[1]
    mask = None
    if added is not None:
        assert added.shape == (*query.shape[:3], key.shape[2])
        assert added.stride(2) % 16 == 0
        mask = Mask(added[0, 0], None)
    output, log_sum = attend_plainly(query, key, value, scale, causal, mask)
    padded = math.ceil(query.shape[2] / 32) * 32 - query.shape[2]
    return output, torch.nn.functional.pad(log_sum, (0, padded), value=math.nan), "seed", "offset"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "dim"), [(torch.float32, 16), (torch.bfloat16, 16), (torch.bfloat16, 12)])
def test_cuda_kernels_are_called_as_they_ask(case, dtype, dim, monkeypatch):
    aten = torch.ops.aten
    monkeypatch.setattr(aten, "_scaled_dot_product_flash_attention", flash)
    monkeypatch.setattr(aten, "_scaled_dot_product_efficient_attention", efficient)
    for got, expected in zip(
        attend_cuda(*inputs(case, dtype, dim=dim)), attend_plainly(*inputs(case, dtype, dim=dim)), strict=True
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("mistake", ["wrong", "refused"])
def test_a_kernel_that_disagrees_is_not_used(mistake, monkeypatch):
    def broken(*arguments, **options):
        if mistake == "refused":
            raise RuntimeError("no kernel for this device")
        output, *rest = efficient(*arguments, **options)
        return output + 0.1, *rest

    kernels.cuda_agrees.cache_clear()
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", efficient)
    assert kernels.cuda_agrees(torch.device("cpu"), torch.float32, 16)
    kernels.cuda_agrees.cache_clear()
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", broken)
    with pytest.warns(UserWarning, match=r"no fused attention for torch.float32, head dim 16, on cpu"):
        assert not kernels.cuda_agrees(torch.device("cpu"), torch.float32, 16)
    kernels.cuda_agrees.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cuda_gives_what_the_cpu_gives(case, dtype):
    assert kernels.cuda_agrees(torch.device("cuda"), dtype, 64)
    given = inputs(case, dtype, "cuda", 64)
    tolerance = 1e-3 if dtype == torch.float32 else 5e-2
    for got, wanted in zip(attend(*given), in_float64(*given), strict=True):
        torch.testing.assert_close(got.cpu().double(), wanted, atol=tolerance, rtol=tolerance)


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
