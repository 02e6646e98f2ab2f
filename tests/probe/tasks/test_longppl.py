"""LongPPL's key tokens are those that were planted, chosen once and never by the method under test."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mesa.engine.plug import attachment_of
from mesa.models import load
from probe.evaluation import worker
from probe.evaluation.plan import plan
from probe.evaluation.run import run
from probe.evaluation.summary import longppl_table, pooled_longppl
from probe.evaluation.text import sentences
from probe.tasks import likelihood
from probe.tasks.base import Setting
from probe.tasks.likelihood import Keyed, LongPPL, key_tokens

M = 160  # the short context: 40 to 49 tokens; the tail: the last 40
LENGTHS = (120, 240)

LOADED = SimpleNamespace(model=None)


@pytest.fixture(scope="module")
def eval_request(eval_request):
    return replace(eval_request, tasks=("nll", "longppl"), lengths=LENGTHS)


def copying(model, ids, last, reduction="none"):
    """NLL by a reader that copies what followed a token before: 0.1, 2.5 of tokens above 1000; 5 for anything new."""
    scores, followed = [], {}
    for before, token in zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True):
        scores.append((2.5 if token > 1000 else 0.1) if followed.get(before) == token else 5.0)
        followed[before] = token
    return torch.tensor(scores[-last:])


def test_key_tokens_are_those_that_need_the_whole_context(monkeypatch):
    monkeypatch.setattr(likelihood, "nll", copying)
    ids = np.random.default_rng(0).permutation(1000)[:300]
    ids[[20, 60]] = 2000, 2001
    ids[262:268] = ids[100:106]  # from far: the first cannot be told
    ids[272:278] = ids[232:238]  # from near
    ids[282:284] = ids[19:21]  # from far, but not likely
    ids[290:294], ids[296:299] = ids[245:249], ids[251:254]  # 45 tokens before: out of the short context, and in it
    scores = np.flatnonzero(key_tokens(LOADED, ids, M)) + 260
    assert scores.tolist() == [263, 264, 265, 266, 267, 291, 292, 293]
    assert key_tokens(LOADED, ids[-60:], M)[-5:].tolist() == [False] * 5  # where the source is not in the prompt


@torch.no_grad()
def test_the_short_context_slides_as_in_the_public_code(eval_request, monkeypatch):
    loaded = load(eval_request.model)
    ids = np.random.default_rng(1).integers(2, len(loaded.tokenizer), 200)
    monkeypatch.setattr(likelihood, "GAIN", 0.0)
    monkeypatch.setattr(likelihood, "LIKELY", 7.0)

    def slow(begin, position):
        logits = loaded.model(torch.tensor(ids[None, begin:position])).logits[0, -1]
        return float(-torch.log_softmax(logits, 0)[ids[position]])

    expected = [slow(at - (at - 160) % 10 - 40, at) > slow(0, at) < 7.0 for at in range(160, 200)]
    assert key_tokens(loaded, ids, M).tolist() == expected
    assert 0 < sum(expected) < 40


def test_only_key_tokens_are_scored_and_a_text_without_any_has_no_score(monkeypatch):
    monkeypatch.setattr(likelihood, "nll", lambda model, ids, last: torch.arange(last) + float(ids[0]))
    keys = np.zeros(40, bool)
    keys[[3, 5]] = True
    texts = [Keyed(np.array([10]), keys), Keyed(np.array([20]), np.zeros(40, bool))]

    scores = list(LongPPL().measure(LOADED, 240, texts, Setting(M, LENGTHS)))
    values = [(score.sample, score.metric, score.value) for score in scores]
    assert values == [(0, "key_nll", 14.0), (0, "keys", 2.0), (1, "keys", 0.0)]


def test_key_tokens_are_chosen_once_a_length_and_under_the_evaluators_method(eval_request, tmp_path, monkeypatch):
    calls = []

    def chosen(loaded, ids, trained_length):
        calls.append((len(ids), attachment_of(loaded.model).method.name))
        return np.arange(trained_length // 4) % 10 == len(calls) % 10

    monkeypatch.setattr(worker, "key_tokens", chosen)
    summary = run(plan(eval_request), tmp_path / "out")
    assert calls == [(length, "rerope") for length in LENGTHS for _ in range(eval_request.samples)]
    by = {(cell["method"], cell["length"]): cell for cell in summary["cells"] if cell["metric"] == "key_nll"}
    assert {at: cell["n"] for at, cell in by.items()} == {
        (name, at): 2 for name in ("origin", "mesa") for at in LENGTHS
    }
    assert by["mesa", 120]["difference"]["n"] == 2
    assert summary["evaluator"] == "rerope"
    assert sentences(summary)[-1] == (
        "LongPPL's key tokens were chosen by the model under rerope: 8 in 2 texts at 120, 8 in 2 texts at 240."
    )


def test_longppl_is_of_all_key_tokens_of_all_texts():
    scores = {0: (1.0, 30), 1: (4.0, 10), 2: (None, 0)}
    rows = [
        {"task": "longppl", "method": "mesa", "length": 240, "sample": sample, "metric": metric, "score": score}
        for sample, pair in scores.items()
        for metric, score in zip(("key_nll", "keys"), pair, strict=True)
        if score is not None
    ]
    (entry,) = pooled_longppl(rows)
    assert entry["longppl"] == pytest.approx(np.exp((30 * 1.0 + 10 * 4.0) / 40))
    assert (entry["keys"], entry["texts"]) == (40, 2)
    assert longppl_table([entry]).rows == (("mesa", "5.75"),)
    assert pooled_longppl([row for row in rows if row["sample"] == 2]) == []
    assert longppl_table([]) is None


def test_the_method_that_chooses_is_not_tested(eval_request, capsys):
    planned = plan(replace(eval_request, methods="origin,rerope"))
    assert {cell[:2] for cell in planned.cells if cell[0] == "longppl"} == {("longppl", "origin")}
    assert ("nll", "rerope", 240) in planned.cells
    assert "left out: longppl under rerope, which chooses its key tokens" in capsys.readouterr().err
    planned = plan(replace(eval_request, methods="origin,rerope", evaluator_method="mesa"))
    assert planned.evaluator.name == "mesa"
    assert ("longppl", "rerope", 240) in planned.cells


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": "rerope"}, "chooses the key tokens and is the one method under test; add --methods"),
        ({"evaluator_method": "origin"}, "--evaluator-method origin does not reach 240 tokens, its window is 160"),
        ({"tasks": ("nll",), "evaluator_method": "mesa"}, "--evaluator-method mesa is for longppl, which"),
        ({"lengths": (50,)}, "length=50 is below 80 tokens"),
    ],
)
def test_evaluators_that_cannot_choose_are_refused(eval_request, changes, message):
    with pytest.raises(ValueError, match=message):
        plan(replace(eval_request, **changes))
