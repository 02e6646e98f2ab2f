"""Triton's kernels by its interpreter: run by test_compiled.py, which sets TRITON_INTERPRET=1."""

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import cases
import numpy as np
import pytest
import tiny
import torch
from attended import given, states
from triton import language as tl
from triton.runtime import interpreter

import mesa
from mesa.engine import attention, gpu, key_ranges, plug, rope
from mesa.engine.gpu import decode, kernels, prefill, triton_kernels
from mesa.engine.rope import RotaryLayout
from mesa.engine.spans import PairSpan
from mesa.plan import Carry

GENERATOR = torch.Generator().manual_seed(0)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    """The interpreter's numbers are arrays, which numpy 2.4 takes for no integer; it multiplies bfloat16's bits."""
    patch, product_of = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patched(tensor, *scope):
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    def dot(self, one, other, *given):
        parts = [
            interpreter._convert_float(part.data, tl.bfloat16, tl.float32, None).view(np.float32)
            if part.dtype == tl.bfloat16
            else part.data
            for part in (one, other)
        ]
        one, other = (interpreter.TensorHandle(part, tl.float32) for part in parts)
        return product_of(self, one, other, *given)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


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
        kernels._rotate_plainly(wanted, rows, states.float(), *table, *given)
        triton_kernels.rotate(got, rows, states, *table, *given)
        close(got, wanted, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize("sinks", [0, 2, 4])
def test_outputs_are_merged_as_by_plain_operations(sinks, dtype):
    batch, heads = (1, 4) if sinks == 4 else (2, 2)
    total, output = (drawn(batch, 37, heads, 12, dtype=dtype).transpose(0, 1) for _ in range(2))
    log_sum, other = drawn(2, 4, 37)
    log_sum[0, 3] = other[0, 3] = other[1, 4] = log_sum[2, 5] = -torch.inf  # keys of neither, of one, of the other
    given = drawn(sinks) if sinks else None
    wanted, sums = total.float().clone(), log_sum.clone()
    kernels.merge_plainly(wanted, sums, output.float(), other, given)
    triton_kernels.merge(total, log_sum, output, other.t().contiguous().t(), given)
    close(total, wanted, dtype)
    torch.testing.assert_close(log_sum, sums)


def test_the_trial_finds_the_kernels_right_and_a_wrong_one_wrong(monkeypatch):
    assert kernels._launches_differ(triton_kernels, torch.device("cpu")) is None
    monkeypatch.setattr(triton_kernels, "merge", lambda total, *given: total.add_(0.1))
    assert "off by" in kernels._launches_differ(triton_kernels, torch.device("cpu"))


def test_the_trial_of_a_decoded_token_finds_the_kernels_right_and_a_wrong_one_wrong(monkeypatch):
    for dtype, dim, group in ((torch.float32, 16, 4), (torch.bfloat16, 24, 1), (torch.float16, 80, 3)):
        assert decode._difference(triton_kernels, CPU, dtype, dim, group) is None
    monkeypatch.setattr(triton_kernels, "combine", lambda output, *given: output.zero_())
    assert "off by" in decode._difference(triton_kernels, CPU, torch.float32, 16, 1)


def laid_out(group, dim, layout, patterns, dtype):
    """Spans of keys 5 .. 299, some of them turned, of two regions or seen by none."""
    pairs = layout.pairs
    at = [(5, 105, 0, 0, 1, -1, -1, 100), (105, 190, 1, 1, 2, 0, 0, 195), (190, 300, 3, 1, 2, 85, 85, 195)]
    seen = (torch.rand(2, 195, generator=GENERATOR) < 0.5).to(torch.uint8)
    seen[1] = 1 - seen[0]
    seen[:, 85:150] = seen[1, :85] = 0
    if not patterns:
        at = [(*row[:2], slot, row[3], 1, row[5], -1, row[7]) for slot, row in enumerate(at)]
    turning = [
        (*(drawn(count, pairs, dtype=dtype) for _ in range(2)), 1 + drawn(count).abs() / 4) if pairs else (None,) * 3
        for count in (3, 195)
    ]
    slots = at[-1][2] + at[-1][4]
    rows, slots_of = torch.tensor([at], dtype=torch.int32), torch.tensor([[[0, slots]] * 2 * group], dtype=torch.int32)
    flags = seen.flatten() if patterns else None
    return decode.DecodeLayout(rows, slots_of, False, 1 + patterns, slots, flags, *turning, layout)


@pytest.mark.parametrize(
    ("group", "dim", "layout", "patterns", "scored", "dtype"),
    [
        (1, 16, (0, 0), False, False, torch.float32),
        (4, 24, (3, 5), True, False, torch.float32),
        (3, 80, (0, 16, True), True, True, torch.bfloat16),
        (71, 16, (0, 8), True, True, torch.float32),
        (8, 64, (0, 32, False, True), False, True, torch.bfloat16),
    ],
)
def test_a_decoded_token_attends_as_by_plain_operations(group, dim, layout, patterns, scored, dtype):
    laid = laid_out(group, dim, RotaryLayout(*layout), patterns, dtype)
    query = drawn(2, 1, 2 * group, dim, dtype=dtype).transpose(1, 2)
    key, value = (drawn(2, 310, 2, dim, dtype=dtype).transpose(1, 2) for _ in range(2))
    weight, softcap, sinks = (drawn(dim), 2.0, drawn(2 * group)) if scored else (None, None, None)
    works, outputs = [], []
    for either in (decode.PLAINLY, triton_kernels):
        states, cast = (query, key, value), (lambda part: part)
        if either is decode.PLAINLY:  # in float32, of the same numbers
            states, cast = [part.float() for part in states], (lambda part: part if part is None else part.float())
        given = laid._replace(query=tuple(map(cast, laid.query)), key=tuple(map(cast, laid.key)))
        works.append(torch.full((2 * 2 * group * laid.slots * (dim + 1),), torch.nan))
        outputs.append(torch.full_like(states[0], torch.nan))
        either.attend_token(works[-1], *states, given, weight, dim**-0.5, softcap)
        either.combine(outputs[-1], works[-1], laid, sinks)
    close(works[1], works[0], dtype)
    close(outputs[1], outputs[0], dtype)
    if patterns:
        assert works[0][-2 * 2 * group * laid.slots :].isneginf().any()


def test_more_spans_than_are_merged_at_a_time_and_none_with_a_key():
    work, wanted, got = drawn(2 * 3 * 70 * 25), *(torch.full((2, 3, 1, 24), torch.nan) for _ in range(2))
    logs = work[-2 * 3 * 70 :].view(2, 3, 70)
    logs[0, :, :40] = logs[1, 0] = -torch.inf
    slots_of = torch.tensor([[[0, 70], [3, 70], [0, 69]]], dtype=torch.int32)
    laid = SimpleNamespace(slots=70, slots_of=slots_of)
    for sinks in (None, drawn(3)):
        decode.PLAINLY.combine(wanted, work, laid, sinks)
        triton_kernels.combine(got, work, laid, sinks)
        close(got, wanted, torch.float32)
        assert not got[1, 0].any()


@pytest.mark.parametrize("name", ["rerope", "lampe", "stair", "dynamic-ntk"])
def test_a_decoded_token_of_a_method_equals_dense(name, monkeypatch):
    tensors = states(83, heads=4, key_heads=2, batch=2)
    bound, *attended, scale = given(cases.method(name), tensors, 82, 80, sinks=drawn(4), softcap=1.5)
    attended = [part.float() for part in attended]
    for module in (key_ranges, rope):
        monkeypatch.setattr(module, "is_accelerator", lambda _: True)
    monkeypatch.setattr(key_ranges, "HALVED", 16)
    monkeypatch.setattr(decode, "kernels_of", lambda *_: triton_kernels)
    output = decode.by_two_launches(bound, *attended, scale)
    monkeypatch.undo()
    close(output, attention.dense(bound, *attended, scale)[0], torch.float32)


@pytest.mark.parametrize("name", ["dynamic-ntk", "stair"])
def test_rows_of_different_padding_and_chosen_heads_are_as_on_a_cpu(name, monkeypatch):
    """A prompt and a token by the kernels themselves; a row begins in the middle of the prompt's second piece."""
    method, results = cases.method(name, heads={0: (0, 1, 3), 2: (2,)}), []
    model, (ids, mask) = tiny.model(), tiny.padded(0, 9, 70, length=84)
    for by_kernels in (False, True):
        for module in (attention, key_ranges, plug) if by_kernels else ():
            monkeypatch.setattr(module, "is_accelerator", lambda _: True)
        if by_kernels:
            monkeypatch.setattr(key_ranges, "HALVED", 16)
            monkeypatch.setattr(prefill, "is_jointly", lambda *_: True)
            monkeypatch.setattr(gpu, "is_jointly", lambda *_: True)
            monkeypatch.setattr(prefill, "kernel_for", lambda *_: kernels.by_triton)
            monkeypatch.setattr(kernels, "launch_kernels", lambda *_: triton_kernels)
            monkeypatch.setattr(decode, "kernels_of", lambda *_: triton_kernels)
            monkeypatch.setattr(triton_kernels, "_tile", lambda *_: (32, 32, 4, 2))
            monkeypatch.setattr(prefill, "_QUERIES_UNIT", 11)
            monkeypatch.setattr(prefill, "_SMALL_BYTES", 0)
        with mesa.applied(model, method, prompt_length=82):
            results.append(tiny.in_pieces(model, ids, 60, 82, 83, mask=mask)[mask.bool()])
    torch.testing.assert_close(results[1], results[0], atol=2e-4, rtol=0)


CARRIES = {
    "a carry": (PairSpan((900, 1000), (500, 800), 120, None, Carry(50, -975, False)),),
    "two carries": (
        PairSpan((40, 90), (5, 60), 12, None, Carry(7, -3, False)),
        PairSpan((90, 190), (0, 120), 20, 80, Carry(7, -3, False)),
    ),
    "each key": (PairSpan((9, 20), (0, 8), 2, None, Carry(1, 0, False)),),
}


@pytest.mark.parametrize(("dtype", "dim"), [(torch.float32, 16), (torch.bfloat16, 80), (torch.float32, 18)])
@pytest.mark.parametrize("name", [*(name for name, spans in kernels.TRIALS.items() if not spans[0].holds), *CARRIES])
def test_attention_is_that_of_plain_operations(name, dim, dtype, monkeypatch):
    monkeypatch.setattr(triton_kernels, "_tile", lambda *_: (64, 32, 4, 2))
    spans = (kernels.TRIALS | CARRIES)[name]
    given = kernels.trial(spans, dtype, dim)
    if name in CARRIES:
        given = tuple(torch.cat([states, states.flip(2)]) for states in given)  # a batch of two
    carry_query = given[0].flip(3) if name in CARRIES else None
    exact = tuple(states.double() for states in given)
    for softcap in (None, 2.0):
        scoring = kernels.Scoring(dim**-0.5, softcap)
        wanted = kernels.by_operations(*exact, spans, scoring, {})
        if carry_query is not None:
            others = [span._replace(holds=replace(span.holds, carried=True)) for span in spans]
            more = kernels.by_operations(carry_query.double(), *exact[1:], others, scoring, {})
            kernels.merge_plainly(*wanted, *more)
        got = kernels.by_triton(*given, spans, scoring, {}, carry_query=carry_query)
        assert kernels.differs(got, wanted, dtype) is None
        kernels.by_triton(*given, spans, scoring, {}, got[0], carry_query, got[1])
        assert kernels.differs((got[0], got[1] - math.log(2)), wanted, dtype) is None


def test_attention_goes_on_where_nothing_is_yet(monkeypatch):
    spans, scoring = kernels.TRIALS["a band"], kernels.Scoring(0.25)
    given = kernels.trial(spans, torch.float32, 16)
    wanted = kernels.by_operations(*given, spans, scoring, {})
    nothing = torch.zeros_like(wanted[0]), torch.full_like(wanted[1], -torch.inf)
    kernels.by_triton(*given, spans, scoring, {}, nothing[0], None, nothing[1])
    assert kernels.differs(nothing, wanted, torch.float32) is None


def moved(states, *strides):
    """The same numbers at an address that is a multiple of 4 bytes only, or with other strides."""
    if strides:
        return states.contiguous().as_strided(states.shape, strides)
    return torch.empty(states.numel() + 1)[1:].view(states.shape).copy_(states)


@pytest.mark.parametrize(
    "laid_out",
    [
        lambda query, key, value: (query, moved(key), moved(value)),
        lambda query, key, value: (query, moved(key, 1, 16 * 290, 16, 1), value),  # contiguous, as there is one text
        lambda query, key, value: (query.mT.contiguous().mT, key.mT.contiguous().mT, value.mT.contiguous().mT),
    ],
    ids=["unaligned", "an odd stride", "dims apart"],
)
def test_states_may_lie_anyhow(laid_out, monkeypatch):
    monkeypatch.setattr(triton_kernels, "_tile", lambda *_: (64, 32, 4, 2))
    spans, scoring = kernels.TRIALS["a band"], kernels.Scoring(0.25)
    given = kernels.trial(spans, torch.float32, 16)
    wanted = kernels.by_operations(*given, spans, scoring, {})
    assert kernels.differs(kernels.by_triton(*laid_out(*given), spans, scoring, {}), wanted, torch.float32) is None


@pytest.mark.parametrize(("scale", "softcap"), [(0.0, None), (0.0, 2.0), (-0.5, None), (-0.5, 2.0)])
def test_scales_that_are_not_positive(scale, softcap, monkeypatch):
    monkeypatch.setattr(triton_kernels, "_tile", lambda *_: (64, 32, 4, 2))
    spans, scoring = CARRIES["two carries"], kernels.Scoring(scale, softcap)
    given = kernels.trial(spans, torch.float32, 16)
    carry_query = given[0].flip(3)
    others = [span._replace(holds=replace(span.holds, carried=True)) for span in spans]
    wanted = kernels.by_operations(*given, spans, scoring, {})
    kernels.merge_plainly(*wanted, *kernels.by_operations(carry_query, *given[1:], others, scoring, {}))
    got = kernels.by_triton(*given, spans, scoring, {}, carry_query=carry_query)
    assert kernels.differs(got, wanted, torch.float32) is None


def test_queries_between_spans_see_nothing(monkeypatch):
    """What was in memory before is no output."""
    monkeypatch.setattr(triton_kernels, "_tile", lambda *_: (64, 32, 4, 2))
    spans = PairSpan((5, 100), (0, 100), 0, None), PairSpan((200, 290), (50, 290), 0, 10**12)
    scoring, given = kernels.Scoring(0.25), kernels.trial(spans, torch.float32, 16)
    into, log_sum = torch.full((285, 1, 4, 16), torch.nan), torch.full((4, 285), torch.nan)
    triton_kernels.attend_spans(given[0], None, *given[1:], spans, 0.25, None, {}, into, log_sum, False)
    for span in spans:
        (begin, end), (low, high) = span.queries, span.keys
        states = given[0][:, :, begin - 5 : end - 5], *(part[:, :, low:high] for part in given[1:])
        got = into[begin - 5 : end - 5], log_sum[:, begin - 5 : end - 5]
        wanted = kernels.by_operations(*states, [span], scoring, {})
        assert kernels.differs(got, wanted, torch.float32) is None
    assert not into[95:195].any()
    assert log_sum[:, 95:195].isneginf().all()
    before = into.clone(), log_sum.clone()
    triton_kernels.attend_spans(given[0], None, *given[1:], spans, 0.25, None, {}, into, log_sum, True)
    torch.testing.assert_close(into, before[0], atol=1e-5, rtol=0)
    assert log_sum[:, 95:195].isneginf().all()


@pytest.mark.parametrize(
    ("properties", "size"),
    [
        ({"shared_memory_per_block": 48, "shared_memory_per_block_optin": 227}, 227),
        ({"shared_memory_per_block": 64}, 64),
        ({}, triton_kernels._SHARED),
    ],
    ids=["CUDA", "ROCm", "neither"],
)
def test_shared_memory_is_the_devices(properties, size, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**properties))
    assert triton_kernels.shared_memory.__wrapped__(torch.device("cuda", 0)) == size


def test_tiles_fit_into_shared_memory(monkeypatch):
    for shared in (227, 163, 99):
        monkeypatch.setattr(triton_kernels, "shared_memory", lambda _, size=shared: size * 1024)
        for padded, carries in ((16, False), (64, True), (128, False), (128, True), (256, False), (256, True)):
            rows, columns, _, stages = triton_kernels._tile(padded, carries, 2, CPU)
            assert (rows * (1 + carries) + 2 * columns * stages) * padded * 2 <= shared * 1024
