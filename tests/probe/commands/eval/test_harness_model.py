"""What lm-eval makes of a model is what its tasks say: nothing is scored after itself, and what is cut is counted."""

import pytest
import tiny
import torch
from lm_eval.api.instance import Instance
from transformers import GenerationConfig

from mesa.errors import Refused
from mesa.models import load
from probe.commands.eval import harness
from probe.commands.eval.harness import HarnessModel, check_tokenizer, room

TEXT = "The pass key is hidden here, and nobody remembers it. " * 12
LONGEST = 40


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load(str(tiny.folder(tmp_path_factory.mktemp("model"))))


@pytest.fixture
def model(loaded):
    return HarnessModel(loaded, LONGEST)


def instances(kind, *arguments, task="some"):
    return [Instance(kind, {}, one, 0, (task, number, 1)) for number, one in enumerate(arguments)]


@torch.no_grad()
def log_probabilities(loaded, ids):
    """Of every token but the first, after all before it."""
    logits = loaded.model(torch.tensor([ids])).logits[0, :-1].float()
    return logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("text", [TEXT, f"<bos>{TEXT}", "A few words"])
def test_a_rolling_loss_scores_the_texts_tokens_each_once(loaded, model, text):
    first, ids = loaded.tokenizer.bos_token_id, loaded.tokenizer(TEXT if "pass" in text else text).input_ids[1:]
    expected = float(log_probabilities(loaded, [first, *ids[:LONGEST]]).sum())
    for start in range(LONGEST, len(ids), LONGEST):
        stop = min(start + LONGEST, len(ids))
        expected += float(log_probabilities(loaded, ids[stop - LONGEST - 1 : stop])[start - stop :].sum())
    (score,) = model.loglikelihood_rolling(instances("loglikelihood_rolling", (text,)), disable_tqdm=True)
    assert score == pytest.approx(expected, abs=1e-3)
    after_itself = float(log_probabilities(loaded, [first, first])[0])
    assert abs(after_itself) > 0.1  # which lm-eval adds
    assert model.counts("some") == {"documents": 1, "documents_cut": 0}


def test_cut_prompts_are_counted_by_document(loaded, model):
    answers = instances("loglikelihood", (TEXT.strip(), " green"), ("The sky is", " blue"), ("", "blue"), task="choose")
    scores = model.loglikelihood([*answers, answers[0]], disable_tqdm=True)
    ids = loaded.tokenizer(f"{TEXT.strip()} green").input_ids[-LONGEST - 1 :]
    answer = len(loaded.tokenizer(" green", add_special_tokens=False).input_ids)
    assert scores[0][0] == pytest.approx(float(log_probabilities(loaded, ids)[-answer:].sum()), abs=1e-3)
    assert model.counts("choose") == {"documents": 3, "documents_cut": 1}
    context = loaded.tokenizer("The sky is").input_ids
    for spare, cut in ((0, 0), (1, 1)):  # exactly the longest length, and one token more
        fitting = HarnessModel(loaded, len(context) + len(loaded.tokenizer(" blue").input_ids) - 2 - spare)
        fitting.loglikelihood(answers[1:2], disable_tqdm=True)
        assert fitting.counts("choose")["documents_cut"] == cut
    stated = {"until": ["."], "max_gen_toks": 4, "do_sample": False}
    model.generate_until(instances("generate_until", (TEXT, stated), ("Say", stated), task="say"), disable_tqdm=True)
    assert model.counts("say") == {"documents": 2, "documents_cut": 1}
    assert model.counts("group") == {}


def test_decoding_follows_the_task_not_the_checkpoint(loaded, model, capsys):
    """A checkpoint's max_new_tokens takes the place of the task's, its penalty another token."""
    stated = {"until": ["never"], "max_gen_toks": 4, "do_sample": False}
    requests = instances("generate_until", ("The pass key is", stated))
    plain, former = model.generate_until(requests, disable_tqdm=True), loaded.model.generation_config
    other = GenerationConfig(**former.to_diff_dict() | {"max_new_tokens": 9, "repetition_penalty": 5.0})
    loaded.model.generation_config = other
    harness._warn_left_out.cache_clear()
    try:
        assert model.generate_until(requests, disable_tqdm=True) == plain
        assert loaded.model.generation_config is other
    finally:
        loaded.model.generation_config = former
    errors = capsys.readouterr().err
    assert "left out of generation_config.json: max_new_tokens=9, repetition_penalty=5.0\n" in errors


def test_half_precision_logits_are_summed_in_full(tmp_path):
    half = load(str(tiny.folder(tmp_path / "model")), dtype="bfloat16")
    (answer,) = instances("loglikelihood", ("The pass key", " is hidden"))
    ((score, _),) = HarnessModel(half, LONGEST).loglikelihood([answer], disable_tqdm=True)
    ids = half.tokenizer("The pass key is hidden").input_ids
    answer_tokens = len(ids) - len(half.tokenizer("The pass key").input_ids)
    assert score == pytest.approx(float(log_probabilities(half, ids)[-answer_tokens:].sum()), abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("loglikelihood", ("The sky is", ""), "document 0 of lm-eval's some has an answer without tokens"),
        ("loglikelihood", ("", ""), "has an answer without tokens"),
        ("loglikelihood", ("Say", TEXT), rf"has an answer of \d+ tokens, above the longest length, {LONGEST}; take"),
        ("generate_until", (TEXT, {"max_gen_toks": LONGEST}), "generates 40 tokens .* leaves no room .* length, 40"),
        ("generate_until", (TEXT, {"until": ["."]}), "some generates 256 tokens"),
        ("generate_until", (TEXT, {"max_length": 9}), "some states max_length; give max_gen_toks"),
    ],
)
def test_what_lm_eval_would_fail_at_is_refused_in_words(model, kind, arguments, message):
    with pytest.raises(Refused, match=message):
        getattr(model, kind)(instances(kind, arguments), disable_tqdm=True)


def test_room_takes_every_name_of_the_number_of_tokens():
    assert room("some", {"max_gen_toks": 39}, 40) == 1
    assert room("some", {"max_new_tokens": 30, "until": []}, 40) == 10
    assert room("some", {}, 300) == 44


def test_tokenizers_that_lm_eval_cannot_use_are_refused(loaded, monkeypatch):
    check_tokenizer("this", loaded.tokenizer, generates=True)

    class Ends:
        bos_token_id = eos_token_id = 1

        def __call__(self, text, add_special_tokens):
            return {"input_ids": [7, 1] if add_special_tokens else [7]}

        def decode(self, ids):
            return "</s>"

    with pytest.raises(Refused, match=r"the tokenizer of this puts '</s>' after every text"):
        check_tokenizer("this", Ends(), generates=False)
    monkeypatch.setattr(Ends, "eos_token_id", None)
    with pytest.raises(Refused, match="the tokenizer of this has no end token"):
        check_tokenizer("this", Ends(), generates=True)
