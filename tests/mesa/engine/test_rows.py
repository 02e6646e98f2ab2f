"""Rows of a few queries against the dense executor's whole matrix; a window off by one moves them by more than 1e-3."""

import cases
import pytest
import tiny
import torch
from families import build
from tiny import tokens
from transformers import DynamicCache

import mesa
from mesa.engine.attention import EXECUTORS, rows
from mesa.engine.schedule import Schedule, Span
from mesa.plan import Plan, Region, distances, token_index
from mesa.support import missing

CHOSEN = [0, 3, 23, 24, 40, 60]


MODELS = ("llama", "mpt", "mistral sliding")


@torch.no_grad()
def whole(model, method, ids):
    with mesa.applied(model, method, executor="dense"):
        return model(ids, output_attentions=True, use_cache=False).attentions


@torch.no_grad()
def observed(model, method, ids, chosen, past=0):
    """Rows by layer under the fused executor, of the pass after the first `past` tokens."""
    seen, cache = {}, DynamicCache()

    def look(layer, heads, schedule, query, key, scale):
        whole = seen.setdefault(layer, query.new_full((1, 4, len(chosen), key.shape[2]), float("nan")))
        whole[:, list(heads)] = rows(schedule, query, key, scale, chosen)

    with mesa.applied(model, method, prompt_length=ids.shape[1]) as attachment:
        if past:
            model(ids[:, :past], past_key_values=cache)
        attachment.observer = look
        model(ids[:, past:], past_key_values=cache)
    return seen


ROWS = [
    pytest.param(family, *name.values, {}, 0, marks=() if family == "llama" else name.marks)
    for family in MODELS
    for name in cases.names()
    if not missing(family.split()[0], mesa.METHODS[name.values[0]])
]
ROWS += [("llama", name, {}, 60) for name in ("origin", "rerope", "dynamic-ntk", "mesa")]
ROWS += [(family, "rerope", {"heads": {0: (1, 2, 3), 2: (0,)}}, 0) for family in MODELS]


@pytest.mark.parametrize(("family", "name", "changes", "past"), ROWS)
def test_rows_are_those_of_the_dense_executor(family, name, changes, past):
    """Also in a pass that goes on from a cache, and where some heads have a plan of their own."""
    model, method, ids = build(family).double(), cases.method(name, **changes), tokens(1, 61)
    chosen = [60] if past else CHOSEN
    expected, seen = whole(model, method, ids), observed(model, method, ids, chosen, past)
    assert sorted(seen) == [0, 1, 2]
    for layer, weights in seen.items():
        torch.testing.assert_close(weights, expected[layer][:, :, chosen], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [None, 20.0])
def test_rows_of_half_precision_are_summed_in_float32(dtype, softcap):
    """Compared with the same numbers in float64; weights of half precision are off by 1e-3."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, 40, 16, generator=generator).mul(4).to(dtype) for heads in (4, 2))
    schedule = Schedule(Plan(40, (Region((0, 40), (0, 40)),)), 0, token_index, softcap=softcap)
    weights = rows(schedule, query, key, 0.5, [20, 39])
    assert weights.dtype == torch.float32
    exact = rows(schedule, query.double(), key.double(), 0.5, [20, 39])
    torch.testing.assert_close(weights.double(), exact, atol=2e-5, rtol=1e-4)


def test_a_query_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no query of token 3 is in this pass; it has those of 60 to 60"):
        observed(tiny.model(), cases.method("rerope"), tokens(1, 61), [3], past=60)
    with pytest.raises(ValueError, match="no query of token 61 is in this pass; it has those of 0 to 60"):
        observed(tiny.model(), cases.method("rerope"), tokens(1, 61), [61])


def test_rows_where_the_first_keys_are_gone():
    """As under a sliding window: keys from token 10 on, queries from token 20 on."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, count, 4, generator=generator) for count in (20, 30, 30))
    schedule = Schedule(Plan(40, (Region((0, 40), (0, 40)),)), 20, token_index, first_key=10)
    expected = EXECUTORS["dense"](schedule, query, key, value, 0.5)[1]
    torch.testing.assert_close(rows(schedule, query, key, 0.5, [20, 33]), expected[:, :, [0, 13]])


def test_a_sliding_window_cuts_a_region_that_begins_at_its_edge():
    """The far part's nearest pairs, 2 tokens apart, are the farthest that a window of 3 shows."""
    plan = Plan(5, (Region((0, 5), (0, 5), farthest=1), Region((0, 5), (0, 5), nearest=2)))
    within = Schedule(plan, 0, token_index).seeing(Span(3), 0).plan
    assert distances(within).tolist() == [
        [0, -1, -1, -1, -1],
        [1, 0, -1, -1, -1],
        [2, 1, 0, -1, -1],
        [-1, 2, 1, 0, -1],
        [-1, -1, 2, 1, 0],
    ]
