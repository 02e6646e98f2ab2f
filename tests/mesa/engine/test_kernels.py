"""The kernels of `attend`: each must give what plain operations give."""

import math

import cases
import pytest
import tiny
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import mesa
from mesa.engine import kernels
from mesa.engine.kernels import Mask, attend, attend_cuda, attend_plainly
from mesa.engine.rope import RotaryLayout, Rotation
from mesa.plan import Plan

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


KERNELS = {"_scaled_dot_product_flash_attention": flash, "_scaled_dot_product_efficient_attention": efficient}
CUDA_CASES = {  # case, dtype, dim: the kernel that takes it
    ("causal", torch.bfloat16, 64): "_scaled_dot_product_flash_attention",
    ("plain", torch.float16, 64): "_scaled_dot_product_flash_attention",
    ("wide", torch.bfloat16, 64): "_scaled_dot_product_efficient_attention",
    ("causal", torch.bfloat16, 12): "_scaled_dot_product_efficient_attention",
    ("causal", torch.float32, 64): "_scaled_dot_product_efficient_attention",
    ("plain", torch.float32, 64): "_scaled_dot_product_efficient_attention",
    ("masked", torch.bfloat16, 64): "_scaled_dot_product_efficient_attention",
    ("masked", torch.float32, 64): "_scaled_dot_product_efficient_attention",
}


@pytest.mark.parametrize(("case", "dtype", "dim"), list(CUDA_CASES))
def test_every_branch_on_cuda_by_torchs_meta_functions(case, dtype, dim, monkeypatch):
    """Without a GPU: the calls are accepted, and shapes, dtypes and devices are right; so are the stand-ins'."""
    kernel, called, stood_in = CUDA_CASES[case, dtype, dim], [], []
    monkeypatch.setattr(kernels, "cuda_agrees", lambda *_: True)
    real = inputs(case, dtype, dim=dim)

    def keep(*args, **options):
        stood_in.append(KERNELS[kernel](*args, **options))
        return stood_in[0]

    with monkeypatch.context() as patched:
        patched.setattr(torch.ops.aten, kernel, keep)
        attend_cuda(*real)

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            called.extend([(function._opname, result)] if function._opname in KERNELS else [])
            return result

    def fake(states):
        return torch.empty(states.shape, dtype=states.dtype, device="cuda")

    *states, scale, causal, mask = real
    with FakeTensorMode():
        mask = None if mask is None else Mask(fake(mask.added), fake(mask.blind))
        with Look():
            output, log_sum = attend(*map(fake, states), scale, causal, mask)
    assert (output.shape, output.dtype, output.device.type) == (real[0].shape, dtype, "cuda")
    assert (log_sum.shape, log_sum.dtype, log_sum.device.type) == (real[0].shape[:3], torch.float32, "cuda")
    ((name, results),) = called
    assert name == kernel
    for promised, part in zip(results[:2], stood_in[0][:2], strict=True):
        assert (promised.shape, promised.dtype) == (part.shape, part.dtype)


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


class _Counted(TorchDispatchMode):
    """How many operations were called, views left out: on a GPU each is a launch."""

    launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.launches += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("interleaved", [False, True])
def test_on_a_gpu_states_are_turned_as_a_whole_and_a_mask_waits_for_nothing(interleaved):
    """Shapes of one layer of Llama-3-8B at 32k, without a GPU; what waits for the device is an error there."""
    plan = Plan(32768, ())
    with FakeTensorMode():
        turn = Rotation(RotaryLayout(0, 64, interleaved), torch.ones(64))
        states = torch.empty(1, 8, 32768, 128, dtype=torch.bfloat16, device="cuda")
        at = torch.arange(32768)
        turn(states, at, plan)  # its tables are shared by layers
        with _Counted() as counted:
            assert turn(states, at, plan).shape == states.shape
        assert counted.launches <= 8
        mask = Mask.of(torch.empty(128, 256, dtype=torch.bool, device="cuda"), torch.bfloat16)
        assert mask.added.shape == (128, 256)
