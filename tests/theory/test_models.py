"""The constructions: real matrices against a loop over pairs, the theorems for random free weights, the hooks."""

import math

import constructed
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import theory
import theory.model
from theory import Construction
from theory.bounds import denominator
from theory.claim import crossing
from theory.model import nope_model, plain_model, stair_model, woven_model
from theory.parts import FREE, POSITION, Shape
from theory.recovery import KINDS, longest, worst_error


def slow_head_output(model: Construction, tokens: list[int], weave, layer: int) -> list[float]:
    """The third coordinate of head 0's output, pair by pair in Python loops over positions; layers run recursively."""
    streams = [model.W_E[:, token].numpy() for token in tokens]
    for number in range(layer + 1):
        block, after, first = f"blocks.{number}.", [], []
        heads = [model.get_buffer(f"{block}attn.{name}").numpy() for name in ("W_Q", "W_K", "W_V", "W_O")]
        for t, stream in enumerate(streams):
            outputs = []
            for W_Q, W_K, W_V, W_O in zip(*heads, strict=True):
                scores = [(W_Q @ stream) @ (W_K @ streams[i]) - weave(t - i) for i in range(t + 1)]
                weights = [math.exp(score - max(scores)) for score in scores]
                mean = sum(weight * (W_V @ streams[i]) for i, weight in enumerate(weights)) / sum(weights)
                outputs.append(W_O @ mean)
            first.append(outputs[0][POSITION])
            after.append(stream + sum(outputs))
        streams = after
        if number < layer:
            W_1, W_2 = (model.get_buffer(f"{block}mlp.{name}").numpy() for name in ("W_1", "W_2"))
            streams = [stream + W_2 @ np.maximum(W_1.T @ stream, 0) for stream in streams]
    return first


WEAVES = {
    "nope": (lambda: nope_model(5, 0.3, seed=4), lambda r: 0, 0),
    "plain": (lambda: plain_model(5, 0.3, seed=4, recovers=12), lambda r: r, 1),
    "woven": (lambda: woven_model(5, 2, 0.3, seed=4, recovers=12), lambda r: min(r, 2), 1),
    "stair": (
        lambda: stair_model(5, 2, 2, 0.3, seed=4, recovers=12),
        lambda r: r if r < 2 else 2 + math.ceil((r - 2) / 2),
        1,
    ),
    "printed": (lambda: plain_model(5, 0.3, seed=4, recovers=12, printed=True), lambda r: r, 1),
}


@pytest.mark.parametrize("name", list(WEAVES))
def test_models_do_what_a_loop_over_pairs_does(name):
    build, weave, layer = WEAVES[name]
    model = build()
    tokens = model.tokens(9, seed=1)
    expected = slow_head_output(model, tokens[0].tolist(), weave, layer)
    np.testing.assert_allclose(model.head_output(9, seed=1), expected, atol=1e-12)


seeds = st.integers(0, 2**32 - 1)
thresholds = st.floats(-100, 100)


def crosses_at_M(o, M, H, exact):
    """o_t = M / t - 1 + H for the first t, above H before M and below it after."""
    t = np.arange(1, len(o) + 1)
    np.testing.assert_allclose(o[:exact], (M / t - 1 + H)[:exact], atol=1e-10)
    return (o[t < M] > H).all() and (o[t > M] < H).all()


@settings(max_examples=25)
@given(seeds, st.integers(2, 40), thresholds, st.sampled_from([1, 2, 5]), st.integers(1, 3))
def test_nope_fails_beyond_M_whatever_the_free_weights(seed, M, H, head, heads):
    o = nope_model(M, H, seed=seed, shape=Shape(head=head, heads=heads)).head_output(2 * M + 2, seed)
    assert crosses_at_M(o, M, H, len(o))


@settings(max_examples=25)
@given(seeds, st.integers(3, 40), thresholds, st.sampled_from([2, 3, 6]), st.floats(0.1, 2))
def test_plain_fails_beyond_M_whatever_the_free_weights(seed, M, H, head, slope):
    o = plain_model(M, H, seed=seed, shape=Shape(head=head, model=10), slope=slope).head_output(2 * M, seed)
    assert crosses_at_M(o, M, H, M)


@settings(max_examples=25)
@given(seeds, st.integers(1, 6), thresholds)
def test_woven_matrices_have_the_closed_forms_denominator(seed, N, H):
    model = woven_model(N + 2, N, H, recovers=N + 1, seed=seed)
    length = 5 * N + 30
    np.testing.assert_allclose(1 / model.bos_attention(length, seed), denominator(np.arange(1, length + 1), N), 1e-12)


@pytest.mark.parametrize("build", [nope_model, plain_model])
def test_a_seed_draws_the_free_weights_of_the_shapes_heads(build):
    constructed.check_seeds(build, FREE)


@pytest.mark.parametrize(
    ("kind", "dtype", "positions"),
    [
        ("naive", "float32", 13),
        ("naive", "float64", 33),
        ("interpolating", "float32", 90),
        ("interpolating", "float64", 710),
        ("steps", "float32", 86),
        ("steps", "float64", 708),
    ],
)
def test_recovered_ranges_are_measured(kind, dtype, positions):
    assert longest(kind, dtype) == positions
    assert worst_error(kind, dtype, positions) <= 0.01 < worst_error(kind, dtype, positions + 1)
    options = {"recovers": positions, "recovery": kind, "dtype": getattr(torch, dtype)}
    recovered = plain_model(8, **options).recovered_position(positions)
    assert np.abs(recovered - np.arange(1, positions + 1)).max() <= 0.01
    with pytest.raises(ValueError, match=rf"{positions + 1} positions exceed .* \({positions}\)"):
        plain_model(8, **{**options, "recovers": positions + 1})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_steps_go_on_where_matrices_overflow(dtype):
    model = plain_model(900, recovers=1000, recovery="log", dtype=dtype, shape=Shape(heads=2))
    assert np.abs(model.recovered_position(1000) - np.arange(1, 1001)).max() < 1e-3
    assert crossing(model.head_output(1000), 900, 0.5) > 1e-3  # one position is 1.1e-3; t = 900 itself is undecided


def test_distances_are_cut_as_scores_are_and_leave_the_model_as_it_was(monkeypatch):
    """They are the queries' that are looked at, and what stands above the diagonal counts for nothing."""
    model, index = plain_model(8), np.arange(12)
    before, table = model.head_output(12), np.minimum(np.abs(index[:, None] - index), 2)
    table[9:, 4:6] = -1
    whole = model.with_distances(np.where(index[:, None] < index, -1, table)).head_output(12)
    assert np.abs(whole - before).max() > 0.1
    np.testing.assert_array_equal(model.head_output(12), before)
    monkeypatch.setattr(theory.model, "ROWS", 5)
    np.testing.assert_allclose(model.with_distances(table).head_output(12), whole, atol=1e-13)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nope_model(1), "M=1 is below 2"),
        (lambda: nope_model(8, math.nan), "H=nan leaves float64 no digits"),
        (lambda: nope_model(8, -1e300), r"H=-1e\+300 leaves float64 no digits to tell o from H"),
        (lambda: plain_model(8, 1e5, dtype=torch.float32), r"H=100000.0 leaves float32 no digits"),
        (lambda: plain_model(8, recovers=6), "recovers=6 positions are too few for M=8; take recovers >= 7"),
        (lambda: woven_model(8, 5, recovers=5), "recovers=5 positions are too few for M=8; take recovers >= 6"),
        (lambda: plain_model(800), r"800 positions exceed what the steps MLP recovers in float64 \(708\)"),
        (lambda: plain_model(8, recovery="naive"), r"64 positions exceed .* \(33\); take M and recovers <= 33"),
        (lambda: plain_model(8, recovery="cubic"), "unknown position MLP 'cubic'; known: naive, interpolating, steps"),
        (lambda: plain_model(8, dtype=torch.bfloat16), "dtype=torch.bfloat16 is too coarse"),
        (lambda: woven_model(8, 8), "N=8 is not below M=8"),
        (lambda: stair_model(8, 2, 1), "E=1 is below 2"),
        (lambda: plain_model(8, slope=0), "slope=0 is not above 0 and at most 700; take 1, the paper's"),
        (lambda: plain_model(8, slope=-1, recovery="log"), "slope=-1 is not above 0"),
        (lambda: plain_model(8, slope=math.nan), "slope=nan is not above 0"),
        (lambda: plain_model(3, slope=1000), "slope=1000 is not above 0 and at most 700"),
        (lambda: plain_model(8).head_output(0), "length=0 is below 1: <bos> is the first token; take length >= 1"),
        (lambda: theory.construction("ladder"), "unknown construction 'ladder'; known: nope, plain"),
    ],
)
def test_impossible_constructions_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_positions_that_no_matrices_recover_are_refused_before_any_are_built(monkeypatch):
    assert longest("steps", "float64") == 708  # which is kept
    monkeypatch.setattr("theory.recovery.worst_error", None)
    with pytest.raises(ValueError, match=r"100000 positions exceed what the steps MLP recovers in float64 \(708\)"):
        theory.construction("plain", M=100000)


def test_one_position_is_recovered_by_every_mlp():
    """Theorem 3.2 takes M - 1, which is one for M = 2."""
    outputs = [plain_model(2, recovers=1, recovery=kind).head_output(6) for kind in (*KINDS, "log")]
    np.testing.assert_allclose(outputs, outputs[:1] * 4, atol=1e-12)
    assert outputs[0][0] > 0.5 > outputs[0][2:].max()


@pytest.mark.parametrize("recovery", ["steps", "log"])
def test_looked_at_or_not_it_is_the_same(monkeypatch, recovery):
    """Scores are made row by row unless a hook wants them all."""
    model = plain_model(8, recovers=12, recovery=recovery, seed=2)
    hooks = [f"blocks.{layer}.attn.hook_{name}" for layer in (0, 1) for name in ("attn_scores", "pattern")]
    seen = model.captured(23, *hooks, "blocks.0.attn.hook_out", model.output_hook)
    read, first = seen["blocks.0.attn.hook_out"][:, POSITION], np.asarray(seen[hooks[1]][0, :, 0])
    np.testing.assert_allclose(read, np.log(first) if recovery == "log" else first, atol=1e-9)
    monkeypatch.setattr(theory.model, "ROWS", 5)
    np.testing.assert_allclose(model.head_output(23), seen[model.output_hook][:, POSITION], atol=1e-13)
    assert model.captured(23, hooks[1])[hooks[1]].shape[1:] == (23, 23)
    np.testing.assert_allclose(model.bos_attention(23), seen[hooks[3]][0, :, 0], rtol=1e-13)
    np.testing.assert_allclose(model.recovered_position(12), np.arange(1, 13), atol=1e-9)
