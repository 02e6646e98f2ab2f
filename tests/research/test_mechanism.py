"""The mechanism's tables: rank correlations with what interventions restore, and what is positional in the states."""

import numpy as np
import pytest
import tiny
import torch

import mesa
from mesa.models import tokenizer_of
from probe.commands.locate.interventions import BASELINE, PATCHED, Gradients, Item, RunPair
from research.correlation import rank_correlation
from research.mechanism.far_keys import choose, estimates
from research.mechanism.positional_vectors import Moments


def test_the_correlation_is_of_mid_ranks():
    assert rank_correlation([1, 2, 2, 9], [0.1, 5, 5, 6])[0] == pytest.approx(1)
    value, low, high = rank_correlation(range(30), [x + (x % 3) * 4 for x in range(30)])
    assert low < value < high < 1
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == (None, None, None)


def test_a_planted_positional_share_is_recovered():
    """Variance 4^2 / 2 along one direction against 24 dims of 1; a layer of noise alone has none."""
    rng, position = np.random.default_rng(5), np.arange(384)
    axis = rng.normal(size=24)
    ramp = 4 * np.cos(2 * np.pi * position / 128)[:, None] * (axis / np.linalg.norm(axis))
    moments = Moments.of((np.stack([ramp, 0 * ramp]) + rng.normal(size=(2, 384, 24)) for _ in range(32)), 128)
    np.testing.assert_allclose(moments.shares(), [[0.25, 0.25], [0, 0]], atol=0.02)
    np.testing.assert_allclose(moments.reliabilities()[0], 32 / 35, atol=0.03)
    assert (moments.reliabilities()[1] < 0.5).all()


@torch.no_grad()
def test_a_whole_pass_gives_the_estimates_that_layer_by_layer_gives():
    model, ids = tiny.model().double().requires_grad_(False), np.random.default_rng(0).integers(2, 97, 60)
    method, plain = mesa.ReRoPE(trained_length=24, window=8, log_n=False), mesa.Origin(trained_length=24)
    bridge = mesa.bridge(tiny.model().double(), tokenizer_of("default"))
    pair = RunPair(bridge, Item(tuple(ids.tolist()), 12), {BASELINE: plain, PATCHED: method})
    expected = -Gradients().run(pair)
    with torch.enable_grad():
        np.testing.assert_allclose(estimates(model, ids, 12, plain, method), expected, rtol=1e-3, atol=1e-6)
        other = estimates(model, ids, 12, method, plain)
    assert abs(other + expected).max() > 0.01  # another gradient: no mere sign


def test_heads_are_chosen_by_either_estimate_in_turn():
    alone, undone = np.array([[3.0, 1.0], [2.0, 0.0]]), np.array([[3.0, 0.0], [1.0, 2.0]])
    assert choose(alone, undone, 3) == [(0, 0), (1, 0), (1, 1)]
