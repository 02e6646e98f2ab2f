"""Heads whose attention is known: uniform, a sink, a window; and the exact weights of a random model."""

import math

import cases
import numpy as np
import planted
import pytest
import tiny
import torch

import mesa
from probe.mechanism.anatomy.heads import PARTS, head_statistics
from probe.mechanism.anatomy.queries import SPANS, by_span, look_at, sampled_queries

ORIGIN = mesa.Origin(trained_length=8)
IDS = [0, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9]


def test_uniform_attention_gives_key_shares():
    data = head_statistics(planted.model(), [IDS], ORIGIN, near=2, queries=[2, 7, 15]).isel(prompt=0)
    # query 7 sees 8 keys: 4 first ones, 5 to 7 near (distance <= 2), 4 in the window; 15: 9 .. 12 lie 3 to 7 back, too
    expected = {2: [3, 0, 0, 0], 7: [4, 3, 1, 0], 15: [4, 3, 5, 4]}
    for query, keys in expected.items():
        mass = data["mass"].sel(query=query)
        np.testing.assert_allclose(mass, np.broadcast_to(np.array(keys) / (query + 1), mass.shape), atol=1e-6)
        np.testing.assert_allclose(data["entropy"].sel(query=query), math.log(query + 1), atol=1e-6)
        np.testing.assert_allclose(data["mean_distance"].sel(query=query), query / 2, atol=1e-5)
        for name in ("sink", "previous"):
            np.testing.assert_allclose(data[name].sel(query=query), 1 / (query + 1), atol=1e-6)
    assert data["part"].values.tolist() == list(PARTS)
    assert data["span"].values.tolist() == ["inside M", "inside M", "beyond M"]


def test_a_planted_sink_is_the_one_head_found():
    model = planted.model()
    sink = torch.zeros(planted.TOKENS, planted.TOKENS)
    sink[:, 0] = 1
    planted.plant(model, 1, 1, torch.ones(planted.TOKENS, planted.TOKENS), sink)
    data = head_statistics(model, [IDS], mesa.NoPE(trained_length=8), queries=[7, 15]).isel(prompt=0)
    expected = np.full((2, 2, 2), [1 / 8, 1 / 16])
    expected[1, 1] = 1
    np.testing.assert_allclose(data["sink"], expected, atol=1e-6)
    np.testing.assert_allclose(data["entropy"].values[1, 1], 0, atol=1e-6)
    np.testing.assert_allclose(data["mean_distance"].values[1, 1], [7, 15], atol=1e-5)


def test_a_planted_previous_token_head_is_the_one_head_found():
    model = planted.model()
    planted.plant(model, 0, 1, planted.successor().T, torch.eye(planted.TOKENS))  # asks, at token v, for v - 1
    data = head_statistics(model, [[0, *range(1, 16)]], mesa.NoPE(trained_length=8), queries=[6, 12]).isel(prompt=0)
    score = math.exp(4)  # of the key asked for: 4 x 4 / sqrt(16); all others have 1
    expected = [[1 / 7, 1 / 13], [score / (score + 6), score / (score + 12)]]
    np.testing.assert_allclose(data["previous"].values[0], expected, atol=1e-5)


def test_a_method_that_masks_leaves_no_mass_there():
    method = mesa.StreamingLLM(trained_length=8, window=3, first=1)
    data = head_statistics(planted.model(), [IDS], method, near=2, queries=[15])
    # seen are keys 12 to 15 and key 0
    np.testing.assert_allclose(data["mass"].values[0, 0, 0, 0], [1 / 5, 3 / 5, 1 / 5, 0], atol=1e-6)
    np.testing.assert_allclose(data["entropy"], math.log(5), atol=1e-6)


@pytest.mark.parametrize("name", ["origin", "rerope", "mesa"])
def test_statistics_are_those_of_the_dense_weights(name):
    model, method = tiny.model(), cases.method(name)
    ids = torch.randint(2, 97, (1, 61), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), mesa.applied(model, method, executor="dense"):
        weights = torch.stack(model(ids, output_attentions=True).attentions)[:, 0].double().numpy()
    data = head_statistics(model, ids.tolist(), method, near=5, queries=[20, 60]).isel(prompt=0)
    for query in (20, 60):
        row, chosen = weights[:, :, query], data.sel(query=query)
        far = [i for i in range(4, query + 1) if query - i >= cases.TRAINED]
        np.testing.assert_allclose(chosen["mass"].sel(part="beyond"), row[..., far].sum(-1), atol=1e-5)
        distance = sum(row[..., i] * (query - i) for i in range(query + 1))
        np.testing.assert_allclose(chosen["mean_distance"], distance, atol=1e-3)
    np.testing.assert_allclose(data["mass"].sum("part"), 1, atol=1e-6)


def test_spans_are_means_over_their_queries_a_prompt_each():
    prompts = [IDS, IDS[::-1]]
    data = head_statistics(tiny.model(), prompts, ORIGIN, queries=[4, 7, 8, 12, 15])
    means = by_span(data)
    assert means["span"].values.tolist() == list(SPANS)
    assert means["mass"].sizes == {"span": 2, "prompt": 2, "layer": 3, "head": 4, "part": 4}
    expected = data["entropy"].sel(query=[8, 12, 15]).mean("query")
    np.testing.assert_allclose(means["entropy"].sel(span="beyond M"), expected)
    assert data["entropy"].attrs["units"] == "nats"
    assert (data["entropy"].isel(prompt=0) != data["entropy"].isel(prompt=1)).any()


def test_queries_are_spread_over_both_spans():
    assert sampled_queries(32, 8, 4) == [4, 7, 8, 31]
    assert sampled_queries(6, 8, 4) == [3, 4, 5]
    chosen = sampled_queries(1024, 256)
    assert len(chosen) == 48
    assert sum(token >= 256 for token in chosen) == 24
    assert min(chosen) == 128


def test_bad_sizes_are_named():
    model = tiny.model()
    with pytest.raises(ValueError, match=r"prompts have lengths \[3, 4\]; give prompts of one length"):
        head_statistics(model, [[1, 2, 3], [1, 2, 3, 4]], ORIGIN)
    with pytest.raises(ValueError, match=r"queries=\[2, 3\] are not positions of a prompt of 3 tokens, 0 to 2"):
        head_statistics(model, [[1, 2, 3]], ORIGIN, queries=[3, 2])
    with pytest.raises(ValueError, match="near=8 is not between 1 and the trained length 8"):
        head_statistics(model, [[1, 2, 3]], ORIGIN, near=8)
    with pytest.raises(ValueError, match="length=1 and count=48: both must be at least 2"):
        sampled_queries(1, 8)


def test_a_head_that_is_not_seen_is_an_error(monkeypatch):
    model = tiny.model()
    monkeypatch.setattr(model.config, "num_attention_heads", 5)
    with pytest.raises(RuntimeError, match="not each of 3 x 5 once"):
        look_at(model, IDS, ORIGIN, lambda schedule, query, key, scale: {"query": query[0]})
