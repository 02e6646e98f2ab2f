"""A method in some query heads: the pair-by-pair oracle of each head's own method, and whole runs as the reference."""

from itertools import combinations

import cases
import numpy as np
import pytest
import tiny
import torch
from attended import PROMPT, STEPS, attended, by_formula, states
from tiny import logits, tokens
from torch.distributed import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import mesa
from mesa.engine.attention import EXECUTORS, by_head
from mesa.engine.schedule import Schedule
from mesa.errors import Refused
from mesa.plan import token_index
from mesa.support import check_method

PAD = 9


@pytest.fixture(scope="module")
def model():
    return tiny.model().double()


@pytest.mark.parametrize("name", cases.names())
@pytest.mark.parametrize("chosen", [(0, 1, 3), pytest.param((1, 2), marks=pytest.mark.slow)])
def test_each_head_equals_the_formula_of_its_own_method(model, name, chosen):
    method = cases.method(name, heads={0: chosen, 2: (3,)})
    expected: dict = {}
    mask = tiny.padded(0, PAD, length=PROMPT + STEPS)[1]
    for executor in ("dense", "fused"):
        result = attended(model, method, executor, mask)
        for row, pad in ((0, 0), (1, PAD)):
            for head in range(4):
                own = name if head in chosen else "origin"
                alone = [result["q"][row, head, pad:], *(result[part][row, head // 2, pad:] for part in "kv")]
                if (row, head) not in expected:
                    expected[row, head] = by_formula(own, alone, PROMPT - pad)
                error = f"{executor}, row {row}, head {head}"
                np.testing.assert_allclose(
                    result["o"][row, head, pad:], expected[row, head], atol=5e-5, rtol=5e-5, err_msg=error
                )
    if name != "origin":
        wrong = by_formula("origin", [result["q"][0, 1], result["k"][0, 0], result["v"][0, 0]], PROMPT)
        assert np.abs(wrong - expected[0, 1]).max() > 1e-2


def schedules(length, slopes=None, start=0):
    """A masking method's and Origin's: they differ without rotation."""
    plans = (cases.method(name).plan(length) for name in ("lm-infinite", "origin"))
    return [Schedule(plan, start, token_index, slopes=slopes) for plan in plans]


def heads_first(execute):
    """The executor as `by_head` calls it, heads first."""
    return lambda heads, *given: execute(*given)


SOME = [(heads, group, chosen) for heads, group in ((4, 2), (6, 3)) for n in range(1, heads)
        for chosen in combinations(range(heads), n)] + [(8, 2, (0, 2, 6)), (4, 1, (0, 1, 3)), (4, 4, (2,))]  # fmt: skip


@pytest.mark.parametrize("executor", ["dense", "fused"])
def test_any_heads_are_those_of_the_whole_runs(executor):
    for heads, group, chosen in SOME:
        query, key, value = states(50, heads, heads // group, batch=2)
        slopes = torch.linspace(0.1, 0.9, heads, dtype=torch.float64) if group == 1 else None
        execute = EXECUTORS[executor]
        for start in (0, 49):
            both, parts = schedules(50, slopes, start), (query[:, :, start:], key, value)
            got, weights = by_head(heads_first(execute), *both, chosen, *parts, 0.3)
            (woven, woven_weights), (origin, origin_weights) = (execute(each, *parts, 0.3) for each in both)
            mine = torch.tensor([head in chosen for head in range(heads)])[:, None, None]
            torch.testing.assert_close(got, torch.where(mine, woven, origin), msg=f"{chosen} of {heads}, {group}")
            assert (woven - origin).abs().amax((0, 2, 3)).min() > 1e-3
            if executor == "dense":
                torch.testing.assert_close(weights, torch.where(mine, woven_weights, origin_weights))
            else:
                assert weights is None


def test_gradients_are_those_of_the_whole_runs():
    given, chosen = [each.requires_grad_() for each in states(50, 6, 2, batch=2)], (0, 1, 2, 4)
    both, mine = schedules(50), torch.tensor([head in chosen for head in range(6)])[:, None, None]
    execute = EXECUTORS["dense"]
    got = by_head(heads_first(execute), *both, chosen, *given, 0.3)[0]
    woven, origin = (execute(each, *given, 0.3)[0] for each in both)
    weight = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = torch.autograd.grad((torch.where(mine, woven, origin) * weight).sum(), given, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad((got * weight).sum(), given), wanted)
    other = torch.autograd.grad((woven * weight).sum(), given)
    assert all((one - two).abs().max() > 1e-2 for one, two in zip(wanted, other, strict=True))


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("executor", ["dense", "fused"])
@pytest.mark.parametrize("name", list(cases.CASES))
def test_all_heads_of_layers_are_the_layers(model, name, executor):
    ids, results = tokens(1, 60), []
    chosen = ({"heads": {1: range(4), 2: range(4)}}, {"layers": (1, 2)}, {"heads": "0:0-3;1:0-3;2:3,2,1,0"}, {})
    for changes in chosen:
        with mesa.applied(model, cases.method(name, **changes), executor=executor):
            results.append(logits(model, ids))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[2], results[3])
    if name != "origin":
        assert (results[0] - results[2]).abs().max() > 1e-3


@pytest.fixture
def ranks():
    """Has the process be a rank of two, whose sums with the other leave out the other's part."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def become(rank):
        init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        return init_device_mesh("cpu", (2,))

    yield become, destroy_process_group
    if torch.distributed.is_initialized():
        destroy_process_group()


@pytest.mark.parametrize("executor", ["dense", "fused"])
@pytest.mark.parametrize("heads", ["0:0", "0:3", "0:0,3", "0:1,2;1:3"])
def test_ranks_of_a_tensor_parallel_model_have_heads_of_their_own(ranks, heads, executor):
    become, leave = ranks
    method, results, chosen, shown = cases.method("rerope", heads=heads), [], [], []
    for rank in (None, 0, 1):
        model = tiny.model()
        if rank is not None:
            mesh, plan = become(rank), dict.fromkeys(("q_proj", "k_proj", "v_proj"), ColwiseParallel())
            for layer in model.model.layers:
                parallelize_module(layer.self_attn, mesh, {**plan, "o_proj": RowwiseParallel()}, src_data_rank=None)
        with mesa.applied(model, method, executor=executor) as attachment:
            attachment.observer = lambda layer, heads, *_: shown.extend([] if layer else heads)
            model.model.layers[0].self_attn.register_forward_hook(
                lambda module, args, output: results.append(output[0])
            )
            logits(model, tokens(1, 60))
        chosen.append(attachment.heads[0])
        if rank is not None:
            leave()
    torch.testing.assert_close(results[1] + results[2], results[0], atol=2e-6, rtol=0)  # heads of each rank: .02
    assert chosen[1] + chosen[2] == chosen[0] == method.heads_in(0)
    assert sorted(shown[:4]) == sorted(shown[4:]) == [0, 1, 2, 3]  # in one process, and in both ranks


def test_heads_on_unknown_ranks_are_refused(model):
    """As where weights are parted, and do not say how."""
    model.config.num_attention_heads = 8
    try:
        with mesa.applied(model, cases.method("rerope", heads="1:5")), pytest.raises(Refused, match="has 4 heads here"):
            logits(model, tokens(1, 60))
    finally:
        model.config.num_attention_heads = 4


def test_heads_of_layers_that_have_fewer_are_refused():
    model = tiny.model()
    model.config.num_attention_heads_per_layer = [4, 2, 4]
    with pytest.raises(Refused, match="head 3 of layer 1 is out of range; the model has heads 0-1"):
        check_method(model.config, cases.method("rerope", heads="1:3"))
    check_method(model.config, cases.method("rerope", heads="0:3"))
