"""A planted retrieval head has score 1 and no other has any; a random model has about chance."""

import cases
import numpy as np
import planted
import pytest
import tiny
import torch

import mesa
from probe.mechanism.anatomy.retrieval import needle_positions, retrieval_scores
from probe.tasks.retrieval import Prompt

NOPE = mesa.NoPE(trained_length=8)
PROMPT = Prompt(ids=(0, 12, 13, 6, 7, 8, 12, 13, 14, 5), answer_ids=(6, 7, 8), answer="678", key_position=2)
"""The last token is 5; the answer goes on 6, 7, 8, which stands at 3 to 5."""


def model():
    """Head (1, 0) looks from token v to token v + 1, sharply: the very token that PROMPT's answer goes on with."""
    built = planted.model()
    planted.plant(built, 1, 0, planted.successor(), torch.eye(planted.TOKENS))
    return built


def test_the_planted_head_alone_retrieves():
    scores = retrieval_scores(model(), [PROMPT, PROMPT], NOPE)
    expected = np.zeros((2, 2, 2))
    expected[:, 1, 0] = 1
    assert (scores.sel(offset=0) == expected).all()
    assert (scores.sel(offset=1) == 0).all()
    assert scores.attrs["emitted"] == "teacher-forced"


def test_a_head_that_looks_one_token_after_has_its_score_at_offset_1():
    built = planted.model()
    planted.plant(built, 0, 1, planted.successor() @ planted.successor(), torch.eye(planted.TOKENS))
    prompt = Prompt(ids=(0, 12, 13, 6, 7, 8, 9, 12, 14, 5), answer_ids=(6, 7, 8), answer="678", key_position=2)
    scores = retrieval_scores(built, [prompt], NOPE).isel(prompt=0, layer=0)
    assert scores.sel(offset=0).values.tolist() == [0, 0]
    assert scores.sel(offset=1).values.tolist() == [0, 1]


def test_a_token_outside_the_needle_does_not_count():
    """The head looks at the very token, but where it stands before the needle."""
    outside = Prompt(ids=(0, 6, 7, 8, 13, 14, 6, 12, 8, 7, 6, 5), answer_ids=(6,), answer="6", key_position=10)
    scores = retrieval_scores(model(), [outside], NOPE)
    assert float(scores.sum()) == 0  # of equal keys the first is taken


def test_greedy_counts_what_the_model_says():
    """The planted model has no values: it says token 0 for ever, which stands in no needle."""
    scores = retrieval_scores(model(), [PROMPT], NOPE, greedy=True)
    assert float(scores.sum()) == 0
    assert scores.attrs["emitted"] == "greedy"


def test_a_method_that_masks_the_needle_kills_the_head():
    method = mesa.StreamingLLM(trained_length=8, window=3, first=1)
    assert float(retrieval_scores(model(), [PROMPT], method).sum()) == 0


@pytest.mark.parametrize("name", ["origin", "mesa"])
def test_random_heads_retrieve_about_by_chance(name):
    rng, prompts = np.random.default_rng(0), []
    for place in rng.integers(5, 40, 20):
        ids, answer = rng.integers(2, 97, 60), tuple(range(40, 45))
        ids[place : place + 5] = answer
        prompts.append(Prompt(tuple(ids.tolist()), answer, "", int(place)))
    scores = retrieval_scores(tiny.model(), prompts, cases.method(name)).mean("prompt")
    assert float(scores.mean()) < 3 / 60  # one key in about 60 holds the token
    assert float(scores.max()) < 0.2


def test_a_model_whose_states_are_not_finite_has_no_scores():
    """Of weights that are no numbers the first key is the largest: all scores would be 0."""
    built = model()
    built.model.embed_tokens.weight.data[5] = float("inf")
    with pytest.raises(RuntimeError, match="nope: logits are not finite; run the model with a wider --dtype"):
        retrieval_scores(built, [PROMPT], NOPE)


def test_the_needle_is_every_place_where_the_answer_stands_from_the_key_on():
    prompt = Prompt(ids=(7, 8, 3, 7, 8, 2, 7, 8, 9), answer_ids=(7, 8), answer="78", key_position=2)
    assert np.flatnonzero(needle_positions(prompt)).tolist() == [3, 4, 6, 7]


def test_an_answer_that_does_not_stand_there_is_named():
    prompt = Prompt(ids=(7, 8, 3), answer_ids=(7, 8), answer="78", key_position=1)
    with pytest.raises(ValueError, match=r"the answer '78' \(tokens \[7, 8\]\) does not stand in the prompt from posi"):
        retrieval_scores(model(), [prompt], NOPE)
    with pytest.raises(ValueError, match="prompts is empty"):
        retrieval_scores(model(), [], NOPE)
