"""What is compiled on devices other than CPUs: Triton's kernels by its interpreter, flex_attention's masks on a CPU."""

import os
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import cases
import pytest
import tiny
import torch
from torch.nn.attention import flex_attention as flex

import mesa
from mesa.engine import compiled as compiled_module, rope
from mesa.engine.gpu import kernels
from mesa.methods import make

GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape):
    return torch.randn(shape, generator=GENERATOR)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_masks_and_soft_caps_compile_once_for_all_sizes():
    """Numbers that a mask captures would be refused by the compiler, or compiled in."""
    compiled, counted = torch.compile(flex.flex_attention, dynamic=True), torch._dynamo.utils.counters["stats"]
    before = counted["unique_graphs"]
    for width, softcap, length in product((3, 5), (None, 2.0), (300, 450, 611)):
        plan = make("stair", 64, width=width).plan(length)
        spans = [region for region in plan.regions if region.holds]
        for region in spans:
            span = kernels.PairSpan((20, length), (0, length - 20), region.nearest, None, region.holds)
            states = [drawn(1, heads, length - 20, 32) for heads in (4, 2, 2)]
            cap = None if softcap is None else kernels.captured(softcap, torch.device("cpu"), torch.float32)
            scoring = kernels.Scoring(32**-0.5, cap)
            with torch.no_grad():
                output = compiled(
                    *states,
                    score_mod=None if softcap is None else kernels._score(scoring),
                    block_mask=kernels.blocks_of([span], torch.device("cpu")),
                    scale=scoring.scale,
                    enable_gqa=True,
                )
            wanted, _ = kernels.by_operations(*states, [span], kernels.Scoring(32**-0.5, softcap), {})
            torch.testing.assert_close(output.permute(2, 0, 1, 3), wanted, atol=1e-5, rtol=1e-5)
    assert counted["unique_graphs"] - before <= 8


def test_our_own_operations_are_compiled_more_often_than_dynamo_allows_others():
    """Its limit is the process's: it is 8 before and after, and in other threads."""
    counted, limit = torch._dynamo.utils.counters["stats"], torch._dynamo.config.recompile_limit
    before = counted["unique_graphs"]
    doubled = compiled_module._compiled(lambda states: states + states, partial(torch.compile, backend="eager"))
    for dims in range(1, limit + 4):
        doubled(torch.ones([2] * dims))
    assert counted["unique_graphs"] - before == limit + 3
    assert torch._dynamo.config.recompile_limit == limit


@pytest.mark.slow
def test_the_kernels_interpreted():
    """Triton's interpreter is chosen when it is imported."""
    pytest.importorskip("triton", reason="needs Triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    cases_file = Path(__file__).with_name("interpreted.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases_file)]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.slow
def test_the_kernels_compiled_for_gpus_that_are_not_here():
    """Triton's compiler needs no GPU; each kernel's shared memory is that of the device at most."""
    pytest.importorskip("triton", reason="needs Triton")
    command = [sys.executable, str(Path(__file__).with_name("compiled_ahead.py"))]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[3]), environment.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("kernels, at most") == 6


def test_kernels_that_fail_their_trial_are_not_used(monkeypatch):
    """On a device that is not there; each kind is tried once."""
    device, module, half = torch.device("cuda", 7), object(), torch.bfloat16
    monkeypatch.setattr(kernels, "triton_module", lambda: module)
    monkeypatch.setattr(kernels, "_TRIED", {})

    def refuses(error):
        raise error

    assert kernels.tried_triton("one", device, half, lambda _: None) is module
    assert kernels.tried_triton("one", device, half, refuses) is module
    with pytest.warns(UserWarning, match="no Triton kernel for another on cuda:7: off by 1;"):
        assert kernels.tried_triton("another", device, half, lambda _: "off by 1") is None
    assert kernels.tried_triton("another", device, half, refuses) is None
    with pytest.warns(UserWarning, match="no Triton kernel for a third on cuda:7: out of shared memory;"):
        assert (
            kernels.tried_triton("a third", device, half, lambda _: refuses(ValueError("out of shared memory\nby")))
            is None
        )
    assert kernels.tried_triton("a fourth", device, half, lambda _: refuses(torch.OutOfMemoryError("full"))) is None
    assert kernels.tried_triton("a fourth", device, half, lambda _: None) is module
    assert kernels.tried_triton("one", torch.device("cpu"), half, refuses) is None
    assert kernels.tried_triton("one", device, torch.float64, refuses) is None
    monkeypatch.setattr(kernels, "triton_module", lambda: None)
    assert kernels.tried_triton("one", device, half, refuses) is None


def test_gradients_on_a_device_are_those_of_a_cpu(monkeypatch):
    ids, gradients = tiny.tokens(1, 40), []
    for on_device in (False, True):
        model = tiny.model()
        if on_device:
            monkeypatch.setattr(rope, "is_accelerator", lambda _: True)
        with mesa.applied(model, cases.method("lampe"), executor="dense"):
            model(ids, labels=ids, use_cache=False).loss.backward()
        gradients.append([weight.grad for weight in model.parameters() if weight.grad is not None])
    torch.testing.assert_close(*gradients)
