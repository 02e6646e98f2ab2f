"""Heads whose attention is known: uniform, a sink, a window, a planted retrieval head; and those of a random model."""

import math

import cases
import numpy as np
import planted
import pytest
import tiny
import torch

import mesa
from probe.commands.anatomy import run as heads
from probe.eval_tasks.retrieval import Prompt

ORIGIN = mesa.Origin(trained_length=8)
IDS = [0, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9]


def test_uniform_attention_gives_key_shares():
    data = heads.head_statistics(planted.model(), IDS, ORIGIN, near=2, queries=[2, 7, 15])
    # query 7 sees 8 keys: 4 first ones, 5 to 7 near (distance <= 2), 4 in the window; 15: 9 .. 12 lie 3 to 7 back, too
    expected = {2: [3, 0, 0, 0], 7: [4, 3, 1, 0], 15: [4, 3, 5, 4]}
    for query, keys in expected.items():
        mass = data["mass"].sel(query=query)
        np.testing.assert_allclose(mass, np.broadcast_to(np.array(keys) / (query + 1), mass.shape), atol=1e-6)
        np.testing.assert_allclose(data["entropy"].sel(query=query), math.log(query + 1), atol=1e-6)
        np.testing.assert_allclose(data["mean_distance"].sel(query=query), query / 2, atol=1e-5)
        for name in ("sink", "previous"):
            np.testing.assert_allclose(data[name].sel(query=query), 1 / (query + 1), atol=1e-6)
    assert data["part"].values.tolist() == list(heads.MASS_PARTS)
    assert data["span"].values.tolist() == ["inside M", "inside M", "beyond M"]


def test_planted_heads_are_the_ones_detected():
    model, one = planted.model(), torch.ones(planted.TOKENS, planted.TOKENS)
    sink = torch.zeros_like(one)
    sink[:, 0] = 1
    planted.plant(model, 1, 1, one, sink)
    planted.plant(model, 0, 1, planted.successor().T, torch.eye(planted.TOKENS))  # asks, at token v, for v - 1
    data = heads.head_statistics(model, [0, *range(1, 16)], NOPE, queries=[7, 15])
    assert (data["sink"].values[1, 1] > 1 - 1e-6).all()
    np.testing.assert_allclose(data["sink"].values[1, 0], [1 / 8, 1 / 16], atol=1e-6)
    np.testing.assert_allclose(data["entropy"].values[1, 1], 0, atol=1e-6)
    np.testing.assert_allclose(data["mean_distance"].values[1, 1], [7, 15], atol=1e-5)
    score = math.exp(4)  # of the key asked for: 4 x 4 / sqrt(16); all others have 1
    expected = [[1 / 8, 1 / 16], [score / (score + 7), score / (score + 15)]]
    np.testing.assert_allclose(data["previous"].values[0], expected, atol=3e-5)


def test_a_method_that_masks_leaves_no_mass_there():
    method = mesa.StreamingLLM(trained_length=8, window=3, first=1)
    data = heads.head_statistics(planted.model(), IDS, method, near=2, queries=[15])
    # seen are keys 12 to 15 and key 0
    np.testing.assert_allclose(data["mass"].values[0, 0, 0], [1 / 5, 3 / 5, 1 / 5, 0], atol=1e-6)
    np.testing.assert_allclose(data["entropy"], math.log(5), atol=1e-6)


@pytest.mark.parametrize("name", ["origin", "rerope", "mesa"])
def test_statistics_are_those_of_the_dense_weights(name):
    model, method = tiny.model(), cases.method(name)
    ids = torch.randint(2, 97, (1, 61), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), mesa.applied(model, method, executor="dense"):
        weights = torch.stack(model(ids, output_attentions=True).attentions)[:, 0].double().numpy()
    data = heads.head_statistics(model, ids[0].tolist(), method, near=5, queries=[20, 60])
    for query in (20, 60):
        row, chosen = weights[:, :, query], data.sel(query=query)
        far = [i for i in range(4, query + 1) if query - i >= cases.TRAINED]
        np.testing.assert_allclose(chosen["mass"].sel(part="beyond"), row[..., far].sum(-1), atol=1e-5)
        distance = sum(row[..., i] * (query - i) for i in range(query + 1))
        np.testing.assert_allclose(chosen["mean_distance"], distance, atol=1e-3)
    np.testing.assert_allclose(data["mass"].sum("part"), 1, atol=1e-6)


@pytest.mark.parametrize("name", ["origin", "mesa"])
def test_every_tokens_loss_and_strongest_keys_are_the_models(name):
    model, method = tiny.model(), cases.method(name)
    ids = torch.randint(2, 97, (1, 61), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), mesa.applied(model, method, executor="dense"):
        output = model(ids, output_attentions=True)
    values = heads.token_values(model, ids[0].numpy(), method)
    losses = torch.nn.functional.cross_entropy(output.logits[0, :-1], ids[0, 1:], reduction="none")
    np.testing.assert_allclose(values["nll"], losses, atol=1e-4)
    queries = heads.sampled_queries(61, cases.TRAINED, heads.QUERIES)
    weights = torch.stack(output.attentions)[:, 0][:, :, queries]
    top = weights.topk(12)
    np.testing.assert_allclose(values["weight"], top.values, atol=1e-5)
    read = weights.gather(-1, torch.from_numpy(values["key"].values))
    np.testing.assert_allclose(read, top.values, atol=1e-5)


def test_spans_are_means_over_their_queries():
    data = heads.head_statistics(tiny.model(), IDS, ORIGIN, queries=[4, 7, 8, 12, 15])
    means = heads.by_span(data)
    assert means["span"].values.tolist() == list(heads.result.SPANS)
    assert means["mass"].sizes == {"span": 2, "layer": 3, "head": 4, "part": 4}
    expected = data["entropy"].sel(query=[8, 12, 15]).mean("query")
    np.testing.assert_allclose(means["entropy"].sel(span="beyond M"), expected)


NOPE = mesa.NoPE(trained_length=8)
PROMPT = Prompt(ids=(0, 12, 13, 6, 7, 8, 12, 13, 14, 5), answer_ids=(6, 7, 8), answer="678", key_position=2)
"""The last token is 5; the answer goes on 6, 7, 8, which stands at 3 to 5."""


def retrieving():
    """Head (1, 0) looks from token v to token v + 1, sharply: the very token that PROMPT's answer goes on with."""
    built = planted.model()
    planted.plant(built, 1, 0, planted.successor(), torch.eye(planted.TOKENS))
    return built


def test_the_planted_head_alone_retrieves():
    scores = heads.retrieval_scores(retrieving(), PROMPT, NOPE)
    expected = np.zeros((2, 2))
    expected[1, 0] = 1
    assert (scores.sel(offset=0) == expected).all()
    assert (scores.sel(offset=1) == 0).all()


def test_a_head_that_looks_one_token_after_has_its_score_at_offset_1():
    built = planted.model()
    planted.plant(built, 0, 1, planted.successor() @ planted.successor(), torch.eye(planted.TOKENS))
    prompt = Prompt(ids=(0, 12, 13, 6, 7, 8, 9, 12, 14, 5), answer_ids=(6, 7, 8), answer="678", key_position=2)
    scores = heads.retrieval_scores(built, prompt, NOPE).isel(layer=0)
    assert scores.sel(offset=0).values.tolist() == [0, 0]
    assert scores.sel(offset=1).values.tolist() == [0, 1]


def test_a_token_outside_the_needle_and_a_masked_needle_do_not_count():
    """The head looks at the very token, but where it stands before the needle: of equal keys the first is taken."""
    outside = Prompt(ids=(0, 6, 7, 8, 13, 14, 6, 12, 8, 7, 6, 5), answer_ids=(6,), answer="6", key_position=10)
    assert float(heads.retrieval_scores(retrieving(), outside, NOPE).sum()) == 0
    masking = mesa.StreamingLLM(trained_length=8, window=3, first=1)
    assert float(heads.retrieval_scores(retrieving(), PROMPT, masking).sum()) == 0


def test_a_model_whose_states_are_not_finite_has_no_scores():
    """Of weights that are no numbers the first key is the largest: all scores would be 0."""
    built = retrieving()
    built.model.embed_tokens.weight.data[5] = float("inf")
    with pytest.raises(RuntimeError, match="nope: logits are not finite; run the model with a wider --dtype"):
        heads.retrieval_scores(built, PROMPT, NOPE)
