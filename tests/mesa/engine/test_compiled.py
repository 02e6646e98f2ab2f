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
from mesa.engine import compiled as compiled_module
from mesa.engine import kernels as launches
from mesa.engine import rope, span_kernels
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
            span = span_kernels.PairSpan((20, length), (0, length - 20), region.nearest, None, region.holds)
            states = [drawn(1, heads, length - 20, 32) for heads in (4, 2, 2)]
            cap = None if softcap is None else span_kernels.captured(softcap, torch.device("cpu"), torch.float32)
            scoring = span_kernels.Scoring(32**-0.5, cap)
            with torch.no_grad():
                output = compiled(
                    *states,
                    score_mod=None if softcap is None else span_kernels._score(scoring),
                    block_mask=span_kernels.blocks_of([span], torch.device("cpu")),
                    scale=scoring.scale,
                    enable_gqa=True,
                )
            wanted, _ = span_kernels.by_operations(*states, [span], span_kernels.Scoring(32**-0.5, softcap), {})
            torch.testing.assert_close(output.permute(2, 0, 1, 3).flatten(1, 2), wanted, atol=1e-5, rtol=1e-5)
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
    assert "81 passed" in done.stdout


@pytest.mark.slow
def test_the_kernels_compiled_for_gpus_that_are_not_here():
    """Triton's compiler needs no GPU; each kernel's shared memory is that of the device at most."""
    pytest.importorskip("triton", reason="needs Triton")
    command = [sys.executable, str(Path(__file__).with_name("compiled_ahead.py"))]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[3]), environment.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("kernels, at most") == 4


def test_kernels_that_fail_their_trial_are_not_used(monkeypatch):
    device, module = torch.device("cpu"), object()
    monkeypatch.setattr(launches.importlib, "import_module", lambda name: module)
    assert launches.tried_kernels("triton_decode", lambda kernels: None, device) is module
    with pytest.warns(UserWarning, match="no triton_decode on cpu: off by 1"):
        assert launches.tried_kernels("triton_decode", lambda kernels: "off by 1", device) is None

    def refuses(error):
        raise error

    with pytest.warns(UserWarning, match="no triton_decode on cpu: out of shared memory;"):
        assert (
            launches.tried_kernels("triton_decode", lambda _: refuses(ValueError("out of shared memory\nby")), device)
            is None
        )
    with pytest.raises(torch.OutOfMemoryError):
        launches.tried_kernels("triton_decode", lambda _: refuses(torch.OutOfMemoryError("full")), device)
    monkeypatch.setattr(launches.importlib, "import_module", lambda name: refuses(ImportError(name)))
    assert launches.tried_kernels("triton_decode", lambda _: "not called", device) is None


def test_gradients_go_through_operations_not_through_kernels(monkeypatch):
    """On a device whose kernels have no gradients, a training step's gradients are the CPU's."""
    ids, gradients = tiny.tokens(1, 40), []
    for by_kernels in (False, True):
        model = tiny.model()
        if by_kernels:
            monkeypatch.setattr(rope, "by_launches", lambda _: True)
            monkeypatch.setattr(launches, "turn", lambda into, *given: into.zero_())
        with mesa.applied(model, cases.method("lampe"), executor="dense"):
            model(ids, labels=ids, use_cache=False).loss.backward()
        gradients.append([weight.grad for weight in model.parameters() if weight.grad is not None])
    torch.testing.assert_close(*gradients)
    with torch.no_grad(), mesa.applied(model, cases.method("lampe"), executor="dense"):
        wrong = model(ids).logits  # without gradients it is the kernel that turns
    monkeypatch.undo()
    with torch.no_grad(), mesa.applied(model, cases.method("lampe"), executor="dense"):
        assert (model(ids).logits - wrong).abs().max() > 0.1
