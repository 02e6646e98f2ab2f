"""Executors against the pair-by-pair oracle; a window off by one moves these outputs by more than 1e-3."""

import itertools

import cases
import numpy as np
import pytest
import torch
from attended import DIM, OF_OTHERS, given, heads_by_formula, rotate, states

from mesa.engine import attention, cpu, rope
from mesa.engine.cpu import AttendedBlock, calls, mask_of
from mesa.engine.schedule import Schedule
from mesa.engine.spans import span_of
from mesa.methods.chunked import WEAVES, MesaExtrapolation
from mesa.plan import Constant, Plan, Region, token_index


@torch.no_grad()
def run(executor, *parts):
    return attention.EXECUTORS[executor](*given(*parts))[0]


def agree(name, length, prompt, slopes, **changes):
    """Both executors, from the first, the first decoded and the last query on, against the formula; its output."""
    tensors, method = states(length), cases.method(name, **changes)
    expected = heads_by_formula(name, length, prompt, slopes, **changes)
    for executor in ("dense", "fused"):
        for start in {0, min(prompt, length - 1), length - 1}:
            got = run(executor, method, tensors, start, prompt, slopes)[0].numpy()
            # rotary tables are float32, as in transformers: 2e-5 on outputs of size 2
            tolerance = 1e-9 if slopes else 5e-5
            np.testing.assert_allclose(got, expected[:, start:], atol=tolerance, err_msg=f"{executor} from {start}")
    return expected


ALIBI = (0.7, 0.05)


PROMPTS = [(20, 20, None), (61, 61, None), (61, 55, None), (30, 20, None), (20, 20, ALIBI), (61, 55, ALIBI)]
LONG = [(61, 55, None), (61, 55, ALIBI)]


def pairs():
    """Every case beyond its prompt; within it, and without a prompt, in the quick suite those whose plans differ."""
    for log_n, prompt, name in itertools.product((True, False), PROMPTS, cases.CASES):
        is_quick = prompt in LONG[: 1 + log_n] or (log_n and name in cases.DIFFERENT)
        yield pytest.param(name, *prompt, log_n, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.quick_cases(30)
@pytest.mark.parametrize(("name", "length", "prompt", "slopes", "log_n"), list(pairs()))
def test_executors_equal_the_formula_pair_by_pair(name, length, prompt, slopes, log_n):
    agree(name, length, prompt, slopes, log_n=log_n)


@pytest.mark.parametrize("weave", WEAVES)
@pytest.mark.parametrize("slopes", [None, (0.7, 0.7)])
def test_woven_middle_chunks_equal_the_formula_pair_by_pair(weave, slopes):
    woven, local = (
        agree("mesa", 61, 55, slopes, log_n=True, weave=weave, middle=middle) for middle in ("woven", "local")
    )
    assert np.abs(local - woven).max() > 1e-2


@pytest.mark.parametrize("name", list(cases.CASES))
@pytest.mark.parametrize("start", [0, 13, 40])
def test_calls_cover_every_pair_of_every_region_once(name, start, monkeypatch):
    monkeypatch.setattr("mesa.engine.cpu.BLOCK", 7)
    plan = cases.method(name).plan(61, 55)
    tokens = np.arange(61)
    for region in plan.regions:
        covered = np.zeros((61, 61), int)
        for call in calls(region, start, 61):
            rows, columns = slice(*call.queries), slice(*call.keys)
            block = np.ones((call.queries[1] - call.queries[0], call.keys[1] - call.keys[0]), bool)
            if call.causal:
                block = np.tril(block)
            if call.masked:
                block = region.contains(tokens[rows, None], tokens[None, columns])
            covered[rows, columns] += block
        expected = region.contains(tokens[:, None], tokens[None, :])
        expected[:start] = False
        assert (covered == expected).all()


@pytest.mark.parametrize("name", list(OF_OTHERS))
@pytest.mark.parametrize("start", [0, 20, 24, 38, 39])
def test_executors_agree_on_plans_of_others(name, start):
    """A pair left out, or a key at another region's position, moves these outputs by more than 1e-3."""
    query, key, value = states(40)
    parts = query[:, :, start:], key, value, 0.5
    dense, fused = (
        execute(Schedule(Plan(40, OF_OTHERS[name]), start, token_index, rotate()), *parts)[0]
        for execute in (attention.dense, attention.fused)
    )
    torch.testing.assert_close(fused, dense, atol=1e-3, rtol=0)


@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("slopes", [None, ALIBI])
@pytest.mark.parametrize("name", [*cases.CASES, *OF_OTHERS])
def test_many_calls_equal_dense(name, slopes, batch, monkeypatch):
    """Small blocks, so that a region has many calls; one at another's place moves outputs by more than 1e-3."""
    monkeypatch.setattr("mesa.engine.cpu.BLOCK", 6)
    plan = Plan(40, OF_OTHERS[name]) if name in OF_OTHERS else cases.method(name).plan(83, 80)
    parts = *states(plan.length, batch=batch), DIM**-0.5
    slopes = torch.tensor(slopes, dtype=torch.float64) if slopes else None
    dense, fused = (
        execute(Schedule(plan, 0, token_index, None if slopes is not None else rotate(), slopes=slopes), *parts)[0]
        for execute in (attention.dense, attention.fused)
    )
    torch.testing.assert_close(fused, dense, atol=2e-4, rtol=0)


def test_mesas_chunks_read_the_first_keys_in_their_own_call():
    schedule = Schedule(MesaExtrapolation(trained_length=512).plan(8192), 0, token_index)
    _, groups = cpu._planned(schedule)
    blocks = [block for _, group in groups for _, blocks in group for block in blocks]
    chunks = [lead for _, block, lead in blocks if block.causal and 12 <= block.queries[0] < 8121]
    assert len(chunks) == 17
    assert all(lead.keys == (0, 12) for lead in chunks)
    assert len(blocks) < 24


def test_a_bands_mask_is_computed_once():
    band = Region((0, 1000), (0, 1000), farthest=5)
    schedule, span = Schedule(Plan(1000, (band,)), 0, token_index), span_of(band, 0, 1000, 0)
    first, second, wider = (
        mask_of(schedule, span, AttendedBlock(queries, keys, masked=True), torch.float32)
        for queries, keys in (((10, 20), (5, 20)), ((30, 40), (25, 40)), ((30, 40), (20, 35)))
    )
    assert first is second
    assert wider is not first


def test_a_far_part_is_one_causal_call():
    far = Region((0, 100), (0, 100), nearest=11)
    assert list(calls(far, 0, 100)) == [AttendedBlock((11, 100), (0, 89), causal=True)]
    assert list(calls(far, 99, 100)) == [AttendedBlock((99, 100), (0, 89))]


def test_fused_refuses_gradients_rather_than_returning_wrong_ones():
    query, key, value = states(30)
    schedule = Schedule(cases.method("rerope").plan(30), 0, token_index, rotate())
    with pytest.raises(RuntimeError, match="executor='dense'"):
        attention.fused(schedule, query.requires_grad_(), key, value, 1.0)
    assert attention.dense(schedule, query, key, value, 1.0)[0].requires_grad


def test_the_last_tables_of_steps_are_kept():
    turn, places = rotate(), [(Constant(number),) for number in range(rope._TABLES + 4)]
    for at in places:
        turn.stepped(at, token_index, 130, 131, Plan(131, ()), torch.float32)
    assert [place[0] for place in turn._kept] == places[4:]
