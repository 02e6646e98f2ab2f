"""The mechanism's tables: rank correlations with what interventions restore, and what is positional in the states."""

import numpy as np
import pytest
import tiny
import torch

import mesa
from mesa.decoder import layers_of
from probe.commands.locate.interventions import Item
from research.correlation import rank_correlation
from research.mechanism.attribution import before, restored
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
def test_what_a_head_restores_to_first_order_is_the_slope_of_a_small_step():
    """A step of 1% towards the method's output, either way, in one head."""
    model, step = tiny.model().double(), 0.01
    method = mesa.ReRoPE(trained_length=24, window=8, log_n=False)
    item = Item(tuple(np.random.default_rng(0).integers(2, 97, 60).tolist()), 12)
    layers, ids = layers_of(model), torch.tensor([item.ids])
    projections, states, given = [layer.self_attn.o_proj for layer in layers], [], []
    with before(layers, lambda layer, args, kwargs: states.append(args[0])):
        model(ids)
    as_origin = before(layers, lambda layer, args, kwargs: ((states[layer], *args[1:]), kwargs))
    with mesa.applied(model, method), as_origin, before(projections, lambda layer, args, kwargs: given.append(args[0])):
        model(ids)

    def loss(number, head, size):
        dims = slice(head * model.config.head_dim, (head + 1) * model.config.head_dim)

        def towards(layer, args, kwargs):
            output = args[0].clone()
            output[..., dims] += size * (layer == number) * (given[layer] - output)[..., dims]
            return (output,), kwargs

        with before(projections, towards):
            logits = model(ids, logits_to_keep=item.scored + 1).logits[0, :-1]
        return float(torch.nn.functional.cross_entropy(logits, ids[0, -item.scored :]))

    with torch.enable_grad():
        estimates = restored(model.requires_grad_(False), item, method)
    slopes = [
        [(loss(layer, head, -step) - loss(layer, head, step)) / (2 * step) for head in range(4)]
        for layer in range(len(layers))
    ]
    np.testing.assert_allclose(estimates, slopes, rtol=0.02, atol=1e-5)
    assert abs(estimates).max() > 0.01


def test_a_whole_pass_gives_the_estimates_that_layer_by_layer_gives():
    model, ids = tiny.model().double().requires_grad_(False), np.random.default_rng(0).integers(2, 97, 60)
    method, plain = mesa.ReRoPE(trained_length=24, window=8, log_n=False), mesa.Origin(trained_length=24)
    expected = -restored(model, Item(tuple(ids.tolist()), 12), method)
    np.testing.assert_allclose(estimates(model, ids, 12, plain, method), expected, rtol=1e-5, atol=1e-9)
    assert abs(estimates(model, ids, 12, method, plain) + expected).max() > 0.01  # another gradient: no mere sign


def test_heads_are_chosen_by_either_estimate_in_turn():
    alone, undone = np.array([[3.0, 1.0], [2.0, 0.0]]), np.array([[3.0, 0.0], [1.0, 2.0]])
    assert choose(alone, undone, 3) == [(0, 0), (1, 0), (1, 1)]
