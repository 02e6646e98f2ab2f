"""What the tasks score: likelihood against slow loops, sources of text, latency."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

import mesa
from mesa.models import load
from probe.eval_tasks import retrieval, score as scoring
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.score import documents_of, nll, text_windows
from probe.evaluation import TASKS

M = 160


@pytest.fixture(scope="module")
def loaded(model):
    return load(model)


@pytest.fixture(scope="module")
def setting(loaded):
    rng = np.random.default_rng(0)
    documents = tuple(rng.integers(2, len(loaded.tokenizer), 1000) for _ in range(2))
    return PromptSpec(M, (100, 160, 240), samples=3, documents=documents)


@pytest.fixture(scope="module")
def shipped():
    """The shipped model, its M = 256, and the shipped texts, at one sample."""
    loaded = load("default")
    return loaded, PromptSpec(256, (256,), samples=1, documents=documents_of(loaded.tokenizer, None)[0])


def scores(loaded, task, length, setting):
    prepared = TASKS[task].prepare(loaded.tokenizer, length, setting, setting.samples)
    return list(TASKS[task].measure(loaded, length, prepared, setting))


@torch.no_grad()
def slow_nll(loaded, ids, position):
    """NLL of the token at `position`, from a pass of its own over what stands before it."""
    logits = loaded.model(torch.tensor(ids[None, :position])).logits[0, -1]
    return float(-torch.log_softmax(logits, 0)[ids[position]])


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_score_of_each_metric_on_the_shipped_model(shipped, task):
    result = scores(shipped[0], task, shipped[1].trained_length, shipped[1])
    assert {score.metric for score in result} == {metric.name for metric in TASKS[task].metrics}
    assert all(score.sample == 0 and np.isfinite(score.value) for score in result)


def test_tail_nll_is_a_hand_written_cross_entropy(loaded, setting):
    longest = max(setting.lengths)
    window = text_windows(setting.documents, longest, 3)[0]
    for length in setting.lengths:
        with mesa.applied(loaded.model, mesa.make("origin", M)):
            result = scores(loaded, "nll", length, setting)
        assert [(score.length, score.sample, score.metric) for score in result] == [
            (length, n, "nll") for n in range(3)
        ]
        assert all(score.seconds > 0 for score in result)
    ids = np.concatenate([[0], window[1:]])
    expected = np.mean([slow_nll(loaded, ids, position) for position in range(longest - M // 4, longest)])
    assert result[0].value == pytest.approx(expected, abs=1e-5)


def test_a_forward_that_computes_all_logits_whatever_it_gets_is_scored_as_well(loaded, monkeypatch):
    cls, ids = type(loaded.model), text_windows([np.arange(3, 200)], 90, 1)[0]
    prompt = retrieval.Prompt(tuple(range(3, 40)), "1", (5,), key_position=3)
    expected = nll(loaded.model, ids, 20), scoring.greedy(loaded.model, [prompt.ids], 3)
    forward = cls.forward

    def without(self, input_ids=None, attention_mask=None, use_cache=None, **kwargs):
        assert "logits_to_keep" not in kwargs
        return forward(self, input_ids, attention_mask, use_cache=use_cache, **kwargs)

    monkeypatch.setattr(cls, "forward", without)
    torch.testing.assert_close(nll(loaded.model, ids, 20), expected[0], atol=1e-6, rtol=0)
    assert scoring.greedy(loaded.model, [prompt.ids], 3).equal(expected[1])


def test_no_token_is_scored_twice_of_a_short_or_repeated_text():
    """Twenty runs that share their tails, or are the same, would be one text counted as twenty."""
    short = [np.arange(130)]
    starts = [int(run[0]) for run in text_windows(short, 100, 20, scored=10)]
    assert starts == [0, 10, 20, 30]
    repeated = [np.tile(np.arange(50), 40)]
    assert len(text_windows(repeated, 100, 20, scored=25)) == 1
    assert len(text_windows([np.arange(2000)], 100, 20, scored=25)) == 20
    one_word = [np.array([1] + [2] * 999)]  # its first run begins otherwise, and the same is scored of it
    assert [len(text_windows(one_word, 100, 3, scored)) for scored in (0, 25)] == [2, 1]


def test_tail_nll_is_of_the_same_tokens_at_every_length(loaded, setting):
    prompts = [TASKS["nll"].prepare(loaded.tokenizer, length, setting, 3) for length in setting.lengths]
    tails = {tuple(tuple(ids[-M // 4 :]) for ids in each) for each in prompts}
    assert len(tails) == 1
    assert len(set(*tails)) == 3


def test_nll_by_position_averages_to_the_whole(loaded, setting):
    assert TASKS["nll-position"].passes(setting) == (240,)
    result = scores(loaded, "nll-position", 240, setting)
    (ids, *_) = TASKS["nll-position"].prepare(loaded.tokenizer, 240, setting, 3)
    assert [score.length for score in result] == [100, 160, 240] * 3
    assert {score.sample for score in result} == {0, 1, 2}
    losses = [slow_nll(loaded, ids, position) for position in range(1, 240)]
    buckets = [np.mean(losses[:99]), np.mean(losses[99:159]), np.mean(losses[159:])]
    assert [score.value for score in result[:3]] == pytest.approx(buckets, abs=1e-5)
    weighted = np.dot([99, 60, 80], [score.value for score in result[:3]]) / 239
    assert weighted == pytest.approx(float(nll(loaded.model, ids, 239).mean()), abs=1e-5)


def test_latency_has_three_positive_metrics_a_run(loaded, setting):
    result = scores(loaded, "latency", 100, replace(setting, samples=7))
    assert [(score.sample, score.metric) for score in result] == [
        (sample, metric) for sample in range(3) for metric in ("prefill", "decode", "peak_memory")
    ]
    assert all(score.value > 0 for score in result if score.metric != "peak_memory")
    assert all(score.value >= 0 for score in result)


def test_latency_of_a_model_with_fewer_embeddings_than_its_tokenizer_has_tokens(loaded, setting):
    fewer = tiny.model(vocabulary=len(loaded.tokenizer) // 2)
    assert len(scores(replace(loaded, model=fewer), "latency", 100, replace(setting, samples=1))) == 3


@pytest.mark.parametrize(
    ("enhanced", "reply", "hit"),
    [
        ("question", " {key}. Remember it.", True),
        ("question", " The pass key is {key}.", True),
        ("question", " The pass key is 1{key}.", False),
        ("question", " I do not know.{end} {key}", False),
        ("question", " {key}{end} 1", True),
        ("answer", " the passkey is {key}", False),
        (None, " {key}.", True),
        (None, " not {key}", False),
    ],
)
def test_only_an_open_question_may_be_answered_in_a_sentence(loaded, monkeypatch, enhanced, reply, hit):
    prompt = retrieval.passkey(loaded.tokenizer, 600, np.random.default_rng(0), enhanced=enhanced)
    names = []
    monkeypatch.setattr(scoring, "greedy", lambda model, prompts, count: names.append(count))
    text = reply.format(key=prompt.answer, end=loaded.tokenizer.eos_token)
    monkeypatch.setattr(type(loaded.tokenizer), "batch_decode", lambda *_: [text])
    assert scoring.retrieval_hits(loaded.model, loaded.tokenizer, [prompt]) == [hit]
    assert names == [len(prompt.answer_ids) + (retrieval.SENTENCE if enhanced == "question" else 0)]
