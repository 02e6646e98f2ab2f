"""Triton's kernels by its interpreter: run by test_compiled.py, which sets TRITON_INTERPRET=1."""

from itertools import product

import pytest
import torch

from mesa.engine import launches, triton_kernels
from mesa.engine.layout import RotaryLayout

GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=GENERATOR).to(dtype)


def close(got, wanted, dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.float(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("by", ["rows", "one row", "a table", "one angle", None])
@pytest.mark.parametrize("layout", [(0, 8), (0, 6), (3, 5)])
def test_states_are_turned_as_by_plain_operations(layout, by, dtype):
    for interleaved, backwards, scaled, weighed in product((False, True), repeat=4):
        begin, pairs = layout
        rotary = RotaryLayout(begin, pairs, interleaved, backwards)
        states = drawn(37, 2, 3, 16, dtype=dtype).permute(1, 2, 0, 3)
        rows = {"rows": torch.arange(40).flip(0)[:37], "one row": torch.tensor([7])}.get(by)
        table = [None, None] if by is None else [drawn(1 if by == "one angle" else 40, pairs) for _ in range(2)]
        table = table if rows is not None or by in (None, "one angle") else [part[:37] for part in table]
        given = drawn(37, 1) if scaled else None, drawn(16) if weighed else None, rotary
        wanted, got = (torch.zeros(37, 2, 3, 16).permute(1, 2, 0, 3) for _ in range(2))
        launches._turned_plainly(wanted, rows, states.float(), *table, *given)
        triton_kernels.turn(got, rows, states, *table, *given)
        close(got, wanted, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize("sinks", [0, 2, 4])
def test_outputs_are_merged_as_by_plain_operations(sinks, dtype):
    total, output, (log_sum, other) = drawn(37, 4, 12, dtype=dtype), drawn(37, 4, 12, dtype=dtype), drawn(2, 4, 37)
    log_sum[0, 3] = other[0, 3] = other[1, 4] = log_sum[2, 5] = -torch.inf  # keys of neither, of one, of the other
    given = drawn(sinks) if sinks else None
    wanted, sums = total.float().clone(), log_sum.clone()
    launches._merged_plainly(wanted, sums, output.float(), other, given)
    triton_kernels.merge(total, log_sum, output, other.t().contiguous().t(), given)
    close(total, wanted, dtype)
    torch.testing.assert_close(log_sum, sums)


def test_the_trial_finds_the_kernels_right_and_a_wrong_one_wrong(monkeypatch):
    assert launches._difference(triton_kernels, torch.device("cpu")) is None
    monkeypatch.setattr(triton_kernels, "merge", lambda total, *given: total.add_(0.1))
    assert "off by" in launches._difference(triton_kernels, torch.device("cpu"))
