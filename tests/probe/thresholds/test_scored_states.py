"""Distances of scored tokens' states: scikit-learn's, of the tokens that are scored, fitted on other texts."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from matrix import build

import mesa
import probe
from mesa.decoder import layers_of
from mesa.models import Loaded, tokenizer_of
from probe.commands.probe.plan import scored_distances
from probe.eval_tasks.base import EvalKey, PromptSpec
from probe.eval_tasks.tasks import TAIL
from probe.evaluation import EvalPlan, eval_tasks, measure_with, scores_of
from probe.thresholds.scored_states import ScoredStates

M, LONGEST = 64, 128


def setting(documents, samples=3):
    rng = np.random.default_rng(3)
    return PromptSpec(M, (M, LONGEST), samples, documents=tuple(rng.integers(3, 60, size) for size in documents))


@pytest.fixture(scope="module")
def loaded():
    return Loaded(build("llama"), tokenizer_of("default"), "tiny", None)


def states_at(model, ids, layer):
    """The last M/4 states after a layer (token, dim)."""
    kept = []
    hook = layers_of(model)[layer].register_forward_hook(lambda module, args, output: kept.append(output))
    with torch.no_grad():
        model(torch.tensor(ids)[None], use_cache=False)
    hook.remove()
    return (kept[0][0] if isinstance(kept[0], tuple) else kept[0])[0, -M // 4 :].numpy()


def measured(loaded, spec, name="origin", inputs=()):
    request = probe.EvalRequest(tasks=("nll",), methods=name, trained_length=M)
    plan = EvalPlan(request, {name: mesa.make(name, M)}, spec, loaded.model.config)
    task = eval_tasks(plan, [EvalKey("nll", name, LONGEST)])[0]
    return scores_of(measure_with(plan, loaded, reader=ScoredStates)(replace(task, inputs=inputs) if inputs else task))


@pytest.mark.parametrize(
    ("sizes", "documents"), [([LONGEST] * 3, [0, 1, 2]), ([2 * LONGEST, LONGEST, LONGEST], [0, 0, 1, 2])]
)
def test_a_score_holds_the_distance_of_the_scored_tokens_fitted_on_other_documents(loaded, sizes, documents):
    spec, count = setting(sizes, len(documents)), len(documents)
    inside, beyond = (TAIL.prepare(loaded.tokenizer, length, spec, count) for length in (M, LONGEST))
    scores = measured(loaded, spec)
    assert [score.sample for score in scores] == [*range(count)]
    last = len(layers_of(loaded.model)) - 1
    layer = round(0.9 * last)
    for score in scores:
        others = [ids for ids, document in zip(inside, documents, strict=True) if document != documents[score.sample]]
        fit = probe.StateReference.fit(np.stack([states_at(loaded.model, ids, layer) for ids in others]))
        expected = fit.distances(states_at(loaded.model, beyond[score.sample], layer)).mean()
        assert score.distances is not None
        assert 0 in score.distances
        assert score.distances[layer] == pytest.approx(expected, rel=1e-3)


def test_scores_by_length_have_the_distances_and_the_documents_of_their_windows(loaded):
    spec = setting([2 * LONGEST, LONGEST, LONGEST], 4)
    rows = {("nll", "origin", LONGEST): {"scores": [asdict(score) for score in measured(loaded, spec)]}}
    read = scored_distances(spec, rows, ["origin", "rerope"], [M, LONGEST], 4)["state_distance"]
    assert read.attrs["documents"] == [0, 0, 1, 2]
    assert np.isfinite(read.values).sum() == 4 * read.sizes["layer"]
    assert np.isfinite(read.values[0, 1]).all()


def test_one_prompt_of_a_task_has_the_distance_it_has_among_all(loaded):
    spec = setting([LONGEST] * 3)
    among = {score.sample: score.distances for score in measured(loaded, spec, "rerope")}
    (alone,) = measured(loaded, spec, "rerope", inputs=(2,))
    assert (alone.sample, alone.distances) == (2, pytest.approx(among[2]))


def test_windows_of_one_document_are_compared_with_each_other_and_a_single_text_with_none(loaded):
    assert all(score.distances for score in measured(loaded, setting([3 * LONGEST])))
    assert [score.distances for score in measured(loaded, setting([LONGEST]))] == [None]


def test_of_several_prompts_at_once_nothing_is_read(loaded):
    states = ScoredStates(loaded, setting([LONGEST] * 3), "fused")
    with states.reading() as passes, torch.no_grad():
        loaded.model.get_decoder()(torch.ones(2, LONGEST, dtype=torch.long))
    assert passes == []
