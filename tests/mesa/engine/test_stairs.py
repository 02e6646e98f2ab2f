"""Stair PE's far part by residues against the dense form, in float64: a residue off by one is off by 1e-3 and more."""

from dataclasses import replace

import pytest
import torch
from attended import DIM, states

from mesa.engine import attention, cpu
from mesa.engine.schedule import Schedule
from mesa.methods.woven import stair
from mesa.plan import Carry, Constant, Plan, Stepped


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Of queries and of keys, so that a few hundred tokens have many."""
    monkeypatch.setattr(cpu, "GROUP", 16)
    monkeypatch.setattr(cpu, "MIN_RESIDUE_QUERIES", 16)
    monkeypatch.setattr(cpu, "_KEYS", 97)


def rotate(states, positions, plan):
    angle = positions.double()[:, None] * 100.0 ** (-torch.arange(DIM // 2) / 4)
    one, two = states.chunk(2, -1)
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1)


def apart(regions, length, start=0, first_key=0, batch=1):
    """The largest difference of the two executors."""
    query, key, value = states(length, 4, 2, start, first_key, batch)
    schedule = Schedule(Plan(length, regions), start, Stepped(3), rotate, first_key=first_key)
    with torch.no_grad():
        expected, got = (each(schedule, query, key, value, DIM**-0.5)[0] for each in (attention.dense, attention.fused))
    sighted = ~expected.isnan()  # dense has NaN where a query sees nothing
    assert (got[~sighted] == 0).all()
    return torch.where(sighted, got - expected, 0).abs().max()


@pytest.mark.quick_cases(14)
@pytest.mark.parametrize("width", [2, 3, 7, 50, 255, 256, 257, 3000])
@pytest.mark.parametrize(
    ("length", "window", "start", "first_key", "batch"),
    [(333, 5, 0, 0, 1), (333, 65, 41, 0, 2), (613, 1, 547, 0, 1), (613, 130, 300, 77, 1), (150, 149, 0, 0, 1)],
)
def test_every_width_equals_dense(width, length, window, start, first_key, batch):
    regions = stair((0, length), length, window, width, None)
    assert len(cpu.stairs(regions)) == 1
    assert apart(regions, length, start, first_key, batch) < 1e-12


LENGTH = 301
NEAR, PLAIN, CARRIED = stair((0, LENGTH), LENGTH, 9, 7, None)
SCALED = {"query_scale": lambda t: 1 + t / 100, "key_scale": lambda i: 1 - i / 1000}
ODD = {
    "the carried one first": (1, CARRIED, NEAR, PLAIN),
    "far pairs left out": (0, NEAR, replace(PLAIN, farthest=120), replace(CARRIED, farthest=120)),
    "keys cut short": (0, NEAR, replace(PLAIN, keys=(0, 111)), replace(CARRIED, keys=(0, 111))),
    "keys that begin late": (1, NEAR, replace(PLAIN, keys=(40, LENGTH)), replace(CARRIED, keys=(40, LENGTH))),
    "queries that begin late": (1, *stair((77, LENGTH), LENGTH, 9, 7, None)),
    "queries that end early": (1, *stair((0, 222), LENGTH, 9, 7, None)),
    "no pair": (0, NEAR, PLAIN),
    "a carry alone": (0, NEAR, CARRIED),
    "unlike positions": (0, NEAR, PLAIN, replace(CARRIED, query_position=Stepped(5))),
    "one more of the key": (
        0, NEAR, PLAIN, replace(CARRIED, query_position=PLAIN.query_position, key_position=Stepped(7, 0, 1)),
    ),
    "one position": (0, NEAR, replace(PLAIN, query_position=Constant(9)), replace(CARRIED, query_position=Constant(8))),
    "no period": (1, NEAR, replace(PLAIN, period=0), replace(CARRIED, period=0)),
    "positions of another width": (1, NEAR, *(replace(each, key_position=Stepped(4)) for each in (PLAIN, CARRIED))),
    "factors": (1, NEAR, *(replace(each, **SCALED) for each in (PLAIN, CARRIED))),
    "two stairs": (2, *stair((0, 140), LENGTH, 9, 7, None), *stair((140, LENGTH), LENGTH, 20, 5, None)),
    "another carry": (1, NEAR, *(replace(each, holds=Carry(5, -13, each is CARRIED)) for each in (PLAIN, CARRIED))),
}  # fmt: skip


@pytest.mark.parametrize("odd", list(ODD))
@pytest.mark.parametrize("start", [0, 131])
def test_other_uses_of_a_carry_equal_dense(odd, start):
    pairs, *regions = ODD[odd]
    assert len(cpu.stairs(regions)) == pairs
    assert apart(tuple(regions), LENGTH, start) < 1e-12


@pytest.mark.parametrize("odd", list(ODD))
@pytest.mark.parametrize(("length", "first_key"), [(LENGTH, 0), (217, 30), (9, 0)])
def test_a_single_query_equals_dense(odd, length, first_key):
    assert apart(tuple(ODD[odd][1:]), length, length - 1, first_key, batch=2) < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_single_query_in_half_precision_is_merged_by_the_kernels(dtype, monkeypatch):
    query, key, value = (each.to(dtype) for each in states(LENGTH, 4, 2, LENGTH - 1))
    plan, ran = Plan(LENGTH, (NEAR, PLAIN, CARRIED)), []
    monkeypatch.setattr(attention, "attend", lambda *given: ran.append(1) or cpu.attend(*given))
    with torch.no_grad():
        got = attention.fused(Schedule(plan, LENGTH - 1, Stepped(7)), query, key, value, DIM**-0.5)[0]
        double = (each.double() for each in (query, key, value))
        expected = attention.dense(Schedule(plan, LENGTH - 1, Stepped(7)), *double, DIM**-0.5)[0]
    assert len(ran) == (2 if dtype == torch.bfloat16 else 0)
    assert (got.double() - expected).abs().max() < {torch.bfloat16: 0.03, torch.float32: 1e-5}[dtype]


def test_leaves_narrower_than_a_stair_have_masks_of_their_own(monkeypatch):
    """They are as large as one another and begin at other residues."""
    monkeypatch.setattr(cpu, "LEAF", 16)
    assert apart(stair((0, 256), 256, 5, 20, None), 256) < 1e-12
