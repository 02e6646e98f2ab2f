"""The executor of devices other than CPUs, on a CPU: by stand-ins of its kernels, against the pair-by-pair oracle.

A window off by one moves these outputs by more than 1e-3.
"""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import cases
import numpy as np
import pytest
import tiny
import torch
from attended import OF_OTHERS, given, heads_by_formula, rotate, states

import mesa
from mesa.engine import attention, key_ranges, plug, rope
from mesa.engine.gpu import decode, kernels, prefill
from mesa.engine.schedule import Schedule, Span
from mesa.engine.spans import PairSpan, parts, sides_of, tiles_of
from mesa.methods.chunked import MesaExtrapolation
from mesa.plan import Carry, Plan, token_index


def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux, scale, window_size, enable_gqa):
    """What PyTorch's promises, text by text, slowly: windows from the bottom right, key heads for several queries.

    As flash attention does, it takes a window as wide as `max_k` for none, and no window on one side for one so wide.
    """
    assert return_aux.lse
    assert enable_gqa
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert all(part.dim() == 3 and part.stride(-1) == 1 for part in (query, key, value))
    assert (len(query), len(key)) == (cu_seq_q[-1], cu_seq_k[-1])
    assert max_q == cu_seq_q.diff().max()
    assert max_k >= cu_seq_k.diff().max()
    left, right = (-1 if width >= max_k else width for width in window_size)
    if (left < 0) != (right < 0):
        left, right = (max_k if width < 0 else width for width in (left, right))
    group, results = query.shape[1] // key.shape[1], []
    for (begin, end), (low, high) in zip(
        cu_seq_q.unfold(0, 2, 1).tolist(), cu_seq_k.unfold(0, 2, 1).tolist(), strict=True
    ):
        keys, values = (part[low:high].repeat_interleave(group, 1).double() for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[begin:end].double(), keys) * scale
        own = torch.arange(end - begin)[:, None] + (high - low) - (end - begin)
        seen = torch.ones(end - begin, high - low, dtype=torch.bool)
        if left >= 0:
            seen &= torch.arange(high - low) >= own - left
        if right >= 0:
            seen &= torch.arange(high - low) <= own + right
        assert seen.any(1).all()
        scores = scores.masked_fill(~seen, -torch.inf)
        results.append((torch.einsum("hqk,khd->qhd", scores.softmax(-1), values), scores.logsumexp(-1)))
    outputs, log_sums = zip(*results, strict=True)
    return torch.cat(outputs).to(query.dtype), torch.cat(log_sums, 1).to(
        torch.promote_types(query.dtype, torch.float32)
    )


def varlen_attn_out(out, *args, **kwargs):
    output, log_sum = varlen_attn(*args, **kwargs)
    return out.copy_(output), log_sum


def attend(query, carry_query, key, value, spans, scale, softcap, known, into, log_sum, added, chosen=None):
    """What our own kernel promises, in float64: both sides of a carry, and adding to what is there.

    Also spans of single rows of a batch, whose tokens begin after padding, and some heads only.
    """
    scoring, ((first, _), (low, _)) = kernels.Scoring(scale, softcap), sides_of(spans)
    assert len({span.holds for span in spans}) == 1
    assert (carry_query is None) == (spans[0].holds is None)
    (batch, heads), group = query.shape[:2], query.shape[1] // key.shape[1]
    chosen = range(heads) if chosen is None else chosen.tolist()
    for row, head in itertools.product(range(batch), chosen):
        at = row * heads + head
        own, log = into[:, row : row + 1, head : head + 1], log_sum[at : at + 1]
        if not added:
            own.zero_()
            log.fill_(-math.inf)
        for span, asking, carried in [(s, query, False) for s in spans] + [(s, carry_query, True) for s in spans]:
            if asking is None or span.row not in (None, row):
                continue
            holds = span.holds and replace(span.holds, carried=carried)
            here = span._replace(holds=holds and (lambda q, k, h=holds, f=span.first: h(q - f, k - f)), period=0)
            (begin, end), (from_key, to_key) = span[:2]
            rows = asking[row : row + 1, head : head + 1, begin - first : end - first]
            keys = (part[row : row + 1, head // group, None, from_key - low : to_key - low] for part in (key, value))
            part = kernels.by_operations(rows, *keys, [here], scoring, {})
            kernels.merge_plainly(own[begin - first : end - first], log[:, begin - first : end - first], *part)


KERNELS = [kernels.by_triton, kernels.by_varlen, kernels.by_flex, kernels.by_operations]


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.__name__)
def kernel(request, monkeypatch):
    """The kernel that does what it can, in float64, few queries at a time."""

    real = kernels.takes

    def takes(kernel, query, spans, scoring, carries=False):
        if kernel is kernels.by_triton:
            query = query.to("meta", torch.bfloat16).new_empty(1, 1, 1, 16)  # dtype and head dim fit
            return kernel is request.param and real(kernel, query, spans, scoring, carries)
        plain = spans[0].holds is None and scoring.plain
        return kernel is request.param and (kernel is not kernels.by_varlen or plain)

    monkeypatch.setattr(kernels, "takes", takes)
    monkeypatch.setattr(kernels, "agrees", lambda *_: True)
    monkeypatch.setattr(kernels, "kernels", lambda: KERNELS[:3])
    monkeypatch.setattr(prefill, "_BLOCKS", {})
    monkeypatch.setattr(prefill, "_QUERIES_UNIT", 11)
    monkeypatch.setattr(prefill, "_SMALL_BYTES", 0)
    monkeypatch.setattr(kernels, "triton_module", lambda: SimpleNamespace(attend_spans=attend))
    monkeypatch.setattr(kernels.varlen, "varlen_attn", varlen_attn)
    monkeypatch.setattr(kernels.varlen, "varlen_attn_out", varlen_attn_out, raising=False)
    monkeypatch.setattr(kernels.flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    return request.param


@torch.no_grad()
def by_both(*parts):
    return attention.dense(*parts)[0], prefill.attend_blocks(*parts)


ALIBI = (0.7, 0.05)
SLOPED = [(kernel, ALIBI) for kernel in KERNELS[2:]]  # with slopes the others give way to plain operations
FLEX = ("rerope", "lampe", "stair", "mesa")
"""The cases of the quick suite for flex attention, which is slow here: bands, positions, carries and chunks."""


def by_kernel(*chosen):
    """Every case by every kernel, with what else is chosen; flex attention of some cases."""
    for name in cases.CASES:
        for kernel, *more in chosen:
            is_quick = kernel is not kernels.by_flex or name in FLEX
            marks = () if is_quick else pytest.mark.slow
            yield pytest.param(
                name,
                kernel,
                *more,
                id="-".join([name, kernel.__name__, *("slopes" for each in more if each)]),
                marks=marks,
            )


@pytest.mark.quick_cases(28)
@pytest.mark.parametrize(
    ("name", "kernel", "slopes"),
    list(by_kernel(*((kernel, None) for kernel in KERNELS), *SLOPED)),
    indirect=["kernel"],
)
def test_equals_the_formula_pair_by_pair(name, slopes, kernel):
    tensors, method = states(61), cases.method(name, log_n=True)
    expected = heads_by_formula(name, 61, 55, slopes, log_n=True)
    for start in (0, 13, 60) if slopes else (13, 60):  # without slopes the next test begins at 0
        got = by_both(*given(method, tensors, start, 55, slopes))[1][0].numpy()
        np.testing.assert_allclose(got, expected[:, start:], atol=5e-5)


@pytest.mark.quick_cases(20)
@pytest.mark.parametrize(("name", "kernel"), list(by_kernel(*((kernel,) for kernel in KERNELS))), indirect=["kernel"])
def test_grouped_heads_in_a_batch_with_soft_caps_sinks_and_weights_equal_dense(name, kernel):
    tensors = states(83, heads=4, key_heads=2, batch=3)
    sinks, weight = torch.tensor([0.5, -1.0, 2.0, 0.0]), torch.linspace(0.5, 1.5, 8, dtype=torch.float64)
    capped = {} if kernel is kernels.by_varlen else {"softcap": 1.5}  # by which it gives way
    for scoring in ({}, {"sinks": sinks, "query_weight": weight, **capped}):
        expected, got = by_both(*given(cases.method(name), tensors, 0, 80, **scoring))
        torch.testing.assert_close(got, expected, atol=5e-5, rtol=0)


@pytest.mark.quick_cases(40)
@pytest.mark.parametrize("name", list(OF_OTHERS))
@pytest.mark.parametrize("start", [0, 20, 24, 38, 39])
def test_plans_of_others_equal_dense(name, start, kernel):
    query, key, value = states(40)
    bound = Schedule(Plan(40, OF_OTHERS[name]), start, token_index, rotate())
    expected, got = by_both(bound, query[:, :, start:], key, value, 0.5)
    torch.testing.assert_close(got, expected.nan_to_num(nan=0.0), atol=5e-5, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 40])
def test_layers_that_see_few_tokens_equal_dense(size, kernel):
    method = cases.method("origin")
    bound = Schedule(method.plan(40, 40), 0, method.cached_position, rotate()).seeing(Span(size), 0)
    expected, got = by_both(bound, *states(40), 0.5)
    torch.testing.assert_close(got, expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", list(cases.CASES))
@pytest.mark.parametrize(("begin", "end", "first_key"), [(0, 61, 0), (13, 40, 0), (40, 61, 17), (60, 61, 0)])
def test_parts_cover_every_pair_of_every_region_once(name, begin, end, first_key):
    plan, tokens = cases.method(name).plan(61, 55), np.arange(61)
    covered, expected = np.zeros((61, 61), int), np.zeros((61, 61), int)
    for part in parts(plan, begin, end, first_key):
        rows = [row for span in part.spans for row in range(*span.queries)]
        assert len(rows) == len(set(rows))
        for span in part.spans:
            (first, last), (low, high) = span.queries, span.keys
            seen = span.seen(tokens[first:last, None], tokens[None, low:high])
            assert span.holds or seen.any(1).all()
            covered[first:last, low:high] += seen
    for region in plan.regions:
        expected += region.contains(tokens[:, None], tokens[None, :])
    expected[:begin] = expected[end:] = expected[:, :first_key] = 0
    assert (covered == expected).all()


@pytest.mark.parametrize(("rows", "columns"), [(16, 8), (128, 64)])
@pytest.mark.parametrize("spans", kernels.TRIALS.values(), ids=kernels.TRIALS)
def test_tiles_read_what_their_queries_see(spans, rows, columns):
    (begin, end), (low, high) = sides_of(spans)
    tokens, keys = np.arange(begin, end)[:, None], np.arange(low, high)
    seen = np.zeros((end - begin, high - low), bool)
    for span in spans:
        mine = (tokens >= span.queries[0]) & (tokens < span.queries[1])
        seen |= mine & (keys >= span.keys[0]) & (keys < span.keys[1]) & span._replace(holds=None).seen(tokens, keys)
    covered = np.zeros(seen.shape, int)
    table = tiles_of(spans, rows, columns)
    assert (np.diff(table[:, 5] - table[:, 2]) <= 0).all()  # the longest first
    for first, last, start, whole, whole_end, stop, nearest, farthest, *_ in table.tolist():
        mine, apart = slice(first, min(first + rows, last)), np.arange(first, min(first + rows, last))[:, None]
        apart = apart - np.arange(start, stop)
        covered[mine, start:stop] += (apart >= nearest) & (apart <= farthest)
        assert (whole - start) % columns == (whole_end - whole) % columns == 0
        assert seen[mine, whole:whole_end].all()
        assert stop - start - (whole_end - whole) <= 2 * (rows + columns)  # no more than the edges are masked
    assert (covered == seen).all()


def test_mesas_chunks_are_one_launch():
    plan = MesaExtrapolation(trained_length=512).plan(8192)
    own, first, *others = parts(plan, 0, 8192, 0)
    assert [len(run) for run in own.runs] == [18, 1]
    assert [len(run) for run in first.runs] == [1]
    assert len(others) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_a_kernel_is_tried_and_one_that_is_wrong_is_not_used(dtype, monkeypatch):
    device, right = torch.device("cpu"), kernels.by_operations

    def too_wide(query, key, value, spans, *given):
        wider = [span._replace(farthest=span.farthest and span.farthest + 1) for span in spans]
        return right(query, key, value, wider, *given)

    class OutOfResources(Exception):
        """As Triton's, which is no RuntimeError."""

    def refuses(*given):
        raise OutOfResources("no kernel for this device")

    def sees_something(*given):
        output, log_sum = right(*given)
        return output, log_sum.nan_to_num(neginf=0.0)

    monkeypatch.setattr(kernels, "_TRIED", {})
    monkeypatch.setattr(kernels, "takes", lambda *_: True)
    assert kernels.agrees(right, device, dtype, 64)
    for wrong, message in ((too_wide, "a band far back: output off"), (refuses, "no kernel for this device")):
        with pytest.warns(UserWarning, match=message):
            assert not kernels.agrees(wrong, device, dtype, 64)
        assert not kernels.agrees(wrong, device, dtype, 64)
    assert kernels.agrees(right, device, dtype, 64, patterned=True)
    with pytest.warns(UserWarning, match="queries without keys: log-sum-exp of a query without keys 0, not -inf"):
        assert not kernels.agrees(sees_something, device, dtype, 64, patterned=True)


def test_trials_are_the_same_whatever_torchs_defaults_are():
    """A default device refuses a CPU's generator; kernels are not less accurate where a default dtype is."""
    cpu, default = torch.device("cpu"), torch.get_default_dtype()

    def turn(into, *given):
        assert into.dtype == torch.float32
        kernels._rotate_plainly(into, *given)

    spans = kernels.TRIALS["a band"]
    drawn = kernels.trial(spans, torch.float32, 16)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            torch.testing.assert_close(kernels.trial(spans, torch.float32, 16), drawn)
            assert kernels.trial_error(kernels.by_operations, cpu, torch.float32, 16, spans, 2.0) is None
            assert decode._difference(decode.PLAINLY, cpu, torch.float32, 16, 4) is None
            assert kernels._launches_differ(SimpleNamespace(rotate=turn, merge=kernels.merge_plainly), cpu) is None
    finally:
        torch.set_default_dtype(default)


def test_lack_of_memory_in_the_trial_is_not_kept(monkeypatch):
    def full(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(kernels, "_TRIED", {})
    monkeypatch.setattr(kernels, "takes", lambda *_: True)
    assert not kernels.agrees(full, torch.device("cpu"), torch.float32, 64)
    assert not kernels._TRIED


@pytest.mark.parametrize("spans", kernels.TRIALS.values(), ids=kernels.TRIALS)
def test_blocks_left_out_and_read_whole_are_so(spans):
    blocks = kernels.blocks_of(spans, torch.device("cpu"))
    (begin, end), (low, high) = kernels.sides_of(spans)
    seen = torch.zeros(end - begin, high - low, dtype=torch.bool)
    for span in spans:
        queries, keys = torch.arange(*span.queries)[:, None], torch.arange(*span.keys)
        seen[queries - begin, keys - low] = span.seen(queries, keys)
    some, whole = torch.zeros_like(seen), torch.zeros_like(seen)
    assert blocks.full_kv_num_blocks is not None
    assert blocks.full_kv_indices is not None
    for counts, order, into in (
        (blocks.kv_num_blocks, blocks.kv_indices, some),
        (blocks.full_kv_num_blocks, blocks.full_kv_indices, whole),
    ):
        for row, (count, columns) in enumerate(zip(counts[0, 0].tolist(), order[0, 0].tolist(), strict=True)):
            for column in columns[:count]:
                into[row * 128 : row * 128 + 128, column * 128 : column * 128 + 128] = True
    assert not (some & whole).any()
    assert not (seen & ~some & ~whole).any()
    assert seen[whole].all()


@pytest.mark.parametrize("name", ["origin", "rerope", "dynamic-ntk", "lampe", "mesa"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-5), (torch.bfloat16, 0.06)])
def test_a_padded_batch_and_what_follows_are_as_on_a_cpu(name, dtype, tolerance, monkeypatch):
    """Rotations, masks and single queries too; without a method logits are off by more than 0.3."""
    model, (ids, mask), results = tiny.model().to(dtype), tiny.padded(0, 9, length=84), []
    monkeypatch.setattr(key_ranges, "HALVED", 16)
    for device in ("cpu", "launches"):
        for module in (attention, rope, key_ranges) if device == "launches" else ():
            monkeypatch.setattr(module, "is_accelerator", lambda _: True)
        with mesa.applied(model, cases.method(name)):
            results.append(tiny.in_pieces(model, ids, 80, 81, 82, mask=mask)[mask.bool()])
    torch.testing.assert_close(results[1], results[0], atol=tolerance, rtol=0)


@pytest.fixture
def two_launches(monkeypatch):
    """A decoded token by stand-ins of its kernels, of few keys a span; what they were given is counted."""
    counted = []

    def attend(*given):
        counted.append(given[4].spans.shape[1])
        decode.PLAINLY.attend_token(*given)

    for module in (attention, rope, key_ranges):
        monkeypatch.setattr(module, "is_accelerator", lambda _: True)
    for module, name, value in ((key_ranges, "HALVED", 16), (decode, "LEAST", 16), (decode, "_STEP", 8)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(
        decode, "kernels_of", lambda *_: SimpleNamespace(attend_token=attend, combine=decode.PLAINLY.combine)
    )
    return counted


@torch.no_grad()
@pytest.mark.parametrize("name", list(cases.CASES))
def test_a_decoded_token_in_two_launches_equals_the_formula(name, two_launches):
    tensors, method = states(61), cases.method(name, log_n=True)
    expected = heads_by_formula(name, 61, 55, log_n=True)
    got = attention.fused(*given(method, tensors, 60, 55))[0][0].numpy()
    np.testing.assert_allclose(got, expected[:, 60:], atol=5e-5)
    assert two_launches
    sinks, weight = torch.tensor([0.5, -1.0, 2.0, 0.0]), torch.linspace(0.5, 1.5, 8, dtype=torch.float64)
    grouped = states(83, heads=4, key_heads=2, batch=3)
    for scoring in ({}, {"sinks": sinks, "query_weight": weight, "softcap": 1.5}):
        parts = given(method, grouped, 82, 80, **scoring)
        torch.testing.assert_close(attention.fused(*parts)[0], attention.dense(*parts)[0], atol=5e-5, rtol=0)
    assert max(two_launches) > 1


@torch.no_grad()
@pytest.mark.parametrize("name", list(OF_OTHERS))
@pytest.mark.parametrize("start", [0, 20, 39])
def test_a_token_of_plans_of_others_in_two_launches_equals_dense(name, start, two_launches):
    query, key, value = states(start + 1)
    bound = Schedule(Plan(start + 1, OF_OTHERS[name]), start, token_index, rotate())
    expected = attention.dense(bound, query[:, :, start:], key, value, 0.5)[0]
    got = attention.fused(bound, query[:, :, start:], key, value, 0.5)[0]
    torch.testing.assert_close(got, expected.nan_to_num(nan=0.0), atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", cases.names())
def test_a_padded_batch_in_two_launches_is_as_on_a_cpu(name, two_launches, monkeypatch):
    model, (ids, mask), results = tiny.model().double(), tiny.padded(0, 9, length=84), []
    for launched in (True, False):
        if not launched:
            monkeypatch.undo()
        with mesa.applied(model, cases.method(name)):
            results.append(tiny.in_pieces(model, ids, 80, 81, 82, mask=mask)[mask.bool()])
    torch.testing.assert_close(results[0], results[1], atol=2e-5, rtol=0)
    assert two_launches


@torch.no_grad()
def test_what_no_kernel_takes_is_done_by_other_operations(two_launches, monkeypatch):
    method, tensors = cases.method("rerope"), states(61)
    bound, query, key, value, scale = given(method, tensors, 60, 55)
    strided = key.transpose(2, 3).contiguous().transpose(2, 3)
    expected = attention.dense(bound, query, key, value, scale)[0]
    torch.testing.assert_close(attention.fused(bound, query, strided, value, scale)[0], expected, atol=5e-5, rtol=0)
    monkeypatch.setattr(decode, "kernels_of", lambda *_: None)
    torch.testing.assert_close(attention.fused(bound, query, key, value, scale)[0], expected, atol=5e-5, rtol=0)
    assert not two_launches


@pytest.mark.slow
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_what_is_compiled_gives_what_it_is_compiled_from(interleaved):
    """Inductor's C++ here, its Triton on a GPU; views of a larger tensor are written in place."""
    generator, rotary = torch.Generator().manual_seed(0), rope.RotaryLayout(0, 32, interleaved)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    for tokens in (300, 417):  # the second is not compiled again
        angles, states = random(tokens, 32), random(1, 4, tokens, 64)
        given = states, angles.cos(), angles.sin(), 1 + random(tokens, 1).abs(), None, rotary
        got = torch.compile(rope.rotated, dynamic=True)(*given)
        torch.testing.assert_close(got, rope.rotated(*given), atol=1e-5, rtol=0)
        turned, whole = [], random(7, 32)
        rows = torch.arange(tokens, dtype=torch.int32) % 7  # of a table that several positions share
        for turn in (kernels._rotate_plainly, torch.compile(kernels._rotate_plainly, dynamic=True)):
            into = torch.zeros(500, 1, 4, 64)
            turn(into.narrow(0, 50, tokens).permute(1, 2, 0, 3), rows, states, whole.cos(), whole.sin(), *given[3:])
            turned.append(into)
        torch.testing.assert_close(turned[1], turned[0], atol=1e-5, rtol=0)
        wanted = rope.rotated(states, whole.cos()[rows], whole.sin()[rows], *given[3:])
        torch.testing.assert_close(turned[0][50 : 50 + tokens].permute(1, 2, 0, 3), wanted, atol=1e-5, rtol=0)
        total, log_sum, part, sinks = (
            random(500, 2, 4, 64),
            random(8, 500),
            (random(tokens, 2, 4, 64), random(8, tokens)),
            random(4),
        )
        log_sum[0, 60] = part[1][0, 10] = -math.inf  # no part sees a key
        merge, sink = kernels.merge_plainly, kernels._sink
        results = []
        for compiler in (lambda function: function, lambda function: torch.compile(function, dynamic=True)):
            for apart in (True, False):  # sinks after the merge, or in it
                whole, logs = total.clone(), log_sum.clone()
                views = whole.narrow(0, 50, tokens), logs.narrow(1, 50, tokens)
                compiler(merge)(*views, *part, None if apart else sinks)
                if apart:
                    compiler(sink)(*views, sinks)
                results.append(whole)
        for other in results[1:]:
            torch.testing.assert_close(other, results[0], atol=1e-5, rtol=0)


def test_blocks_are_searched_once_for_texts_of_a_length(monkeypatch):
    searched, real = [], prefill._Planner._ranges
    monkeypatch.setattr(prefill, "_BLOCKS", {})
    monkeypatch.setattr(prefill, "_CACHED_BLOCKS", 2)
    monkeypatch.setattr(prefill._Planner, "_ranges", lambda self: searched.append(self.length) or real(self))
    for length in (40, 40, 50, 40, 60, 60, 40):
        _, got = by_both(*given(cases.method("rerope"), states(length), 0, length))
        assert got.shape[2] == length
    assert searched == [40, 50, 60, 40]
    assert len(prefill._BLOCKS) == 2


def test_blocks_that_another_thread_forgets_meanwhile_serve_all_the_same(monkeypatch):
    class Forgetting(dict):
        def __setitem__(self, key, value):
            """Kept for nobody."""

    monkeypatch.setattr(prefill, "_BLOCKS", Forgetting())
    dense, got = by_both(*given(cases.method("rerope"), states(40), 0, 40))
    torch.testing.assert_close(got, dense, atol=5e-5, rtol=0)


@pytest.mark.parametrize("by_head", [True, False])
@pytest.mark.parametrize("direct", [True, False])
def test_the_log_sum_exp_of_varlen_attention_is_read_right_for_as_many_queries_as_heads(monkeypatch, by_head, direct):
    """Whichever way PyTorch has it, in its documentation (query, head); read the other way it is off by 2."""

    def either(*args, **kwargs):
        output, log_sum = varlen_attn(*args, **kwargs)
        return output, log_sum if by_head else log_sum.t()

    monkeypatch.setattr(kernels.varlen, "varlen_attn", either)
    out = (lambda out, *given, **options: (out, either(*given, **options)[1])) if direct else None
    monkeypatch.setattr(kernels.varlen, "varlen_attn_out", out, raising=False)
    spans, scoring, known = [PairSpan((0, 8), (0, 8), 0, None)], kernels.Scoring(0.3), {}
    for heads, tokens in ((4, 8), (8, 8), (2, 8)):  # in a batch of two: the second has 16 heads, the first 8
        query, key, value = states(tokens, heads=heads, key_heads=heads // 2, batch=2)
        expected = kernels.by_operations(query, key, value, spans, scoring, {})[1]
        into = torch.empty(tokens, 2, heads, query.shape[3], dtype=query.dtype)
        _, log_sum = kernels.by_varlen(query, key, value, spans, scoring, known, into)
        torch.testing.assert_close(log_sum, expected, check_dtype=False)
        assert tokens != 2 * heads or (log_sum.t() - expected).abs().max() > 1


def test_a_pattern_without_its_other_side_goes_to_flex_attention(monkeypatch):
    monkeypatch.setattr(kernels, "triton_module", lambda: SimpleNamespace(attend_spans=attend))
    query, scoring = torch.empty(1, 1, 9, 16, dtype=torch.bfloat16, device="meta"), kernels.Scoring(1.0)
    for holds, carries, taken in (
        (None, False, True), (Carry(3, 1, False), True, True), (Carry(3, 1, False), False, False),
        (Carry(3, 1, True), True, False), (lambda query, key: key > 3, False, False),
    ):  # fmt: skip
        span = PairSpan((0, 9), (0, 9), 0, None, holds)
        assert kernels.takes(kernels.by_triton, query, [span], scoring, carries) is taken


def test_varlen_attention_is_used_only_where_torch_is_set_to_use_a_newer_flash_attention(monkeypatch):
    assert kernels.kernels() == (kernels.by_triton, kernels.by_flex)
    monkeypatch.setattr(kernels, "current_flash_attention_impl", lambda: "FA3")
    assert kernels.kernels()[0] is kernels.by_varlen


LENGTH, PADS, CHOSEN = 84, (0, 9, 31, 9, 80), (0, 1, 3)
"""Tokens of a padded batch, on the left of each row padding, and query heads that a method changes."""


@pytest.fixture
def launched(two_launches, monkeypatch):
    """On a device whose kernels are stand-ins; launches of attention: (queries, heads chosen)."""
    launches = list[tuple[int, bool]]()

    def attended(query, *given):
        launches.append((query.shape[2], given[-1] is not None))
        attend(query, *given)

    real = kernels.takes
    half = torch.empty(1, 1, 1, 16, dtype=torch.bfloat16, device="meta")
    monkeypatch.setattr(plug, "is_accelerator", lambda _: True)
    monkeypatch.setattr(
        kernels, "takes", lambda kernel, _, *given: kernel is kernels.by_triton and real(kernel, half, *given)
    )
    monkeypatch.setattr(kernels, "agrees", lambda *_: True)
    monkeypatch.setattr(kernels, "triton_module", lambda: SimpleNamespace(attend_spans=attended))
    for name, value in (("_BLOCKS", {}), ("_QUERIES_UNIT", 11), ("_SMALL_BYTES", 0)):
        monkeypatch.setattr(prefill, name, value)
    return launches


def in_some_heads():
    """Every case in all heads, and in some; the quick suite has the cases whose plans differ, few of them in all."""
    for name in cases.CASES:
        for heads, said, quick in ((None, "all", ("rerope", "mesa")), (CHOSEN, "some", cases.DIFFERENT)):
            yield pytest.param(name, heads, id=f"{name}-{said} heads", marks=() if name in quick else pytest.mark.slow)


@pytest.mark.parametrize(("name", "heads"), list(in_some_heads()))
def test_rows_of_different_padding_and_some_heads_are_one_set_of_launches(
    name, heads, launched, two_launches, monkeypatch
):
    """What a CPU gives row by row; a prompt in two pieces and two tokens after it, one row beginning in the second."""
    method = cases.method(name, heads=heads and {0: heads, 2: (2,)})
    model, (ids, mask), results = tiny.model().double(), tiny.padded(*PADS, length=LENGTH), []
    for on_device in (True, False):
        with mesa.applied(model, method, prompt_length=82):
            results.append(tiny.in_pieces(model, ids, 60, 82, 83, mask=mask)[mask.bool()])
        if on_device:
            assert len(two_launches) == 2 * model.config.num_hidden_layers  # of two decoded tokens, rows together
            assert any(chosen for _, chosen in launched) == bool(heads)
            monkeypatch.undo()
    torch.testing.assert_close(results[0], results[1], atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", cases.names(["rerope", "mesa"]))
def test_padding_on_the_right_is_one_set_of_launches_and_padding_between_tokens_one_for_each_row(
    name, launched, monkeypatch
):
    model, ids, results = tiny.model().double(), tiny.tokens(3, 60), []
    mask = torch.ones(3, 60, dtype=torch.long)
    mask[0, 50:], mask[1, :7] = 0, 0
    for between in (False, True):
        mask[2, 20:23] = 1 - int(between)
        for on_device in (True, False):
            with pytest.MonkeyPatch.context() as context, mesa.applied(model, cases.method(name)), torch.no_grad():
                for module in (attention, rope, key_ranges, plug) if not on_device else ():
                    context.setattr(module, "is_accelerator", lambda _: False)
                results.append(model(ids, attention_mask=mask).logits[mask.bool()])
        torch.testing.assert_close(*results[-2:], atol=2e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("name", ["origin", "rerope", "stair", "mesa"])
def test_a_token_takes_values_of_fewer_dims_as_they_are(name, on_device, two_launches, monkeypatch):
    """As with MLA: to pad all cached values for each token would be work that grows with the text."""
    if not on_device:
        monkeypatch.undo()
    bound, query, key, value, scale = given(cases.method(name), states(83, heads=4, key_heads=2, batch=3), 82, 80)
    expected = attention.dense(bound, query, key, value[..., :5], scale)[0]
    padded = []
    monkeypatch.setattr(torch.nn.functional, "pad", lambda *given, **options: padded.append(given))
    got = attention.fused(bound, query, key, value[..., :5], scale)[0]
    torch.testing.assert_close(got, expected, atol=5e-5, rtol=0)
    assert got.shape[3] == 5
    assert not padded
    assert bool(two_launches) == on_device
