"""What is compiled on devices other than CPUs: Triton's kernels by its interpreter, flex_attention's masks on a CPU."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from mesa.engine import device_attention, span_kernels
from mesa.engine.rope import RotaryLayout
from mesa.methods import make

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture
def kernels():
    pytest.importorskip("triton", reason="needs Triton")
    if not INTERPRETED:
        pytest.skip("needs TRITON_INTERPRET=1: see the last test")
    from mesa.engine import triton_kernels

    return triton_kernels


def drawn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=GENERATOR).to(dtype)


def close(got, wanted, dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.float(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("by", ["rows", "one row", "a table", "one angle", None])
@pytest.mark.parametrize("layout", [(0, 8), (0, 6), (3, 5)])
def test_states_are_turned_as_by_plain_operations(layout, by, dtype, kernels):
    for interleaved, backwards, scaled, weighed in product((False, True), repeat=4):
        begin, pairs = layout
        rotary = RotaryLayout(begin, pairs, interleaved, backwards)
        states = drawn(37, 2, 3, 16, dtype=dtype).permute(1, 2, 0, 3)
        rows = {"rows": torch.arange(40).flip(0)[:37], "one row": torch.tensor([7])}.get(by)
        table = [None, None] if by is None else [drawn(1 if by == "one angle" else 40, pairs) for _ in range(2)]
        table = table if rows is not None or by in (None, "one angle") else [part[:37] for part in table]
        given = drawn(37, 1) if scaled else None, drawn(16) if weighed else None, rotary
        wanted, got = (torch.zeros(37, 2, 3, 16).permute(1, 2, 0, 3) for _ in range(2))
        device_attention._turned_plainly(wanted, rows, states.float(), *table, *given)
        kernels.turn(got, rows, states, *table, *given)
        close(got, wanted, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize("sinks", [0, 2, 4])
def test_outputs_are_merged_as_by_plain_operations(sinks, dtype, kernels):
    total, output, (log_sum, other) = drawn(37, 4, 12, dtype=dtype), drawn(37, 4, 12, dtype=dtype), drawn(2, 4, 37)
    log_sum[0, 3] = other[0, 3] = other[1, 4] = log_sum[2, 5] = -torch.inf  # keys of neither, of one, of the other
    given = drawn(sinks) if sinks else None
    wanted, sums = total.float().clone(), log_sum.clone()
    device_attention._merged_plainly(wanted, sums, output.float(), other, given)
    kernels.merge(total, log_sum, output, other.t().contiguous().t(), given)
    close(total, wanted, dtype)
    torch.testing.assert_close(log_sum, sums)


def test_the_trial_finds_the_kernels_right_and_a_wrong_one_wrong(kernels, monkeypatch):
    assert device_attention._difference(kernels, torch.device("cpu")) is None
    monkeypatch.setattr(kernels, "merge", lambda total, *given: total.add_(0.1))
    assert "off by" in device_attention._difference(kernels, torch.device("cpu"))


@pytest.mark.slow
def test_masks_and_soft_caps_compile_once_for_all_sizes():
    """Numbers that a mask captures would be refused by the compiler, or compiled in."""
    compiled, counted = torch.compile(flex.flex_attention, dynamic=True), []
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
            counted.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counted[-1] <= 8


def test_the_kernels_interpreted():
    """The tests above that need Triton's interpreter, which is chosen when it is imported."""
    pytest.importorskip("triton", reason="needs Triton")
    if INTERPRETED:
        pytest.skip("this is it")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
