"""RULER's tasks: the prompts have the one answer that they are scored by, at every length and tokenizer."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from probe.eval_tasks import ruler
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import encode, first_ids
from probe.eval_tasks.ruler import RULER, ListPrompt, string_match_all

TASKS = {task.name: task for task in RULER}
M = 1200


@pytest.fixture(scope="module")
def setting(tokenizer):
    text = tokenizer("To be or not to be, that is the question. " * 40, add_special_tokens=False).input_ids
    return PromptSpec(3 * M, (3 * M, 4 * M), samples=2, documents=(np.array(text),))


def prompts(tokenizer, setting, name, length=4 * M, samples=2):
    return TASKS[name].prepare(tokenizer, length, setting, samples)


def text_of(tokenizer, prompt):
    return tokenizer.decode(prompt.ids[len(first_ids(tokenizer)) :])


def chain_from(text, value):
    """All variables that have a value, by following assignments until nothing changes."""
    given = dict(re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", text))
    scores = {value}
    while more := {name for name, held in given.items() if held in scores} - scores:
        scores |= more
    return scores - {value}


@pytest.mark.parametrize("name", TASKS)
def test_prompts_have_the_length_without_what_is_generated_and_are_drawn_from_the_seed(tokenizer, setting, name):
    drawn, task = prompts(tokenizer, setting, name), TASKS[name]
    assert {len(prompt.ids) for prompt in drawn} == {4 * M - min(task.generated, 3 * M // 6)}
    assert drawn[0].ids != drawn[1].ids
    assert prompts(tokenizer, setting, name) == drawn
    assert prompts(tokenizer, replace(setting, seed=1), name)[0].expected != drawn[0].expected
    for prompt in drawn:
        assert len(prompt.answer_ids) <= task.answer_tokens(setting)
        assert string_match_all(tokenizer.decode(prompt.answer_ids), prompt.expected) == 1
        assert tokenizer.decode(prompt.ids[-2:]).rstrip() == tokenizer.decode(prompt.ids[-2:])


def test_a_chain_of_variables_is_all_there_and_in_order(tokenizer, setting):
    for prompt in prompts(tokenizer, setting, "vt"):
        text = text_of(tokenizer, prompt)
        example, question = text.split("Memorize")[1:]
        value = re.search(r"assigned the value (\d+) in", question)[1]
        assert chain_from(question, value) == {*prompt.expected}
        assert len(prompt.expected) == 5
        places = [question.index(f"VAR {name} =") for name in prompt.expected]
        assert places == sorted(places)
        value_shown = re.search(r"assigned the value (\d+) in", example)[1]
        assert chain_from(example, value_shown) == {*example.split("they are:")[1].split()}
        assert example.count("The grass is green.") == 10
        assert text.endswith(f"5 variables are assigned the value {value}, they are:")


@pytest.mark.parametrize("tokenizer", ["byte-level"], indirect=True)
def test_what_copying_gives_is_the_mean_over_stretches_of_the_prompt(tokenizer, setting):
    ids = [encode(tokenizer, text) for text in (" tomato", " potato", " x" * 60)]
    drawn = ListPrompt((*ids[2], *ids[0], *ids[1]), (), "", 0, ("tomato", "potato", "melon"))
    assert ruler.copied(tokenizer, drawn, len(drawn.ids)) == pytest.approx(2 / 3)
    assert 0 < ruler.copied(tokenizer, drawn, len(ids[0]) + len(ids[1])) < 1 / 9


@pytest.mark.parametrize("name", TASKS)
def test_a_length_that_cannot_hold_the_text_is_refused_with_one_that_can(tokenizer, setting, name):
    with pytest.raises(ValueError, match=rf"{name}: length=100 is below its fixed text of \d+ tokens and") as refused:
        prompts(tokenizer, setting, name, 100)
    least = int(re.search(r"ask for at least (\d+)", str(refused.value))[1])
    prompts(tokenizer, setting, name, least + 40)
    with pytest.raises(ValueError, match="ask for at least"):
        prompts(tokenizer, setting, name, least - 100)


def test_an_answer_longer_than_what_is_generated_is_refused(tokenizer, setting):
    short = replace(TASKS["vt"], generated=2)
    with pytest.raises(
        ValueError, match=r"its answer of .* tokens is longer than the 2 that are generated at M = 3600"
    ):
        short.prepare(tokenizer, 4 * M, setting, 1)


@pytest.mark.parametrize("tokenizer", ["byte-level"], indirect=True)
def test_the_score_is_the_share_of_the_strings_before_the_end_token(tokenizer, setting, monkeypatch):
    drawn = prompts(tokenizer, setting, "vt")
    room = TASKS["vt"].answer_tokens(setting)
    replies = [encode(tokenizer, " " + " ".join(drawn[0].expected[:2]).lower())]
    replies.append((*encode(tokenizer, f" {drawn[1].expected[0]}"), tokenizer.eos_token_id, *drawn[1].answer_ids))
    padded = torch.tensor([[*ids, *[ids[-1]] * (99 - len(ids))] for ids in replies])
    question = []
    monkeypatch.setattr(ruler, "greedy", lambda model, ids, count: question.append((len(ids), count)) or padded)

    class Loaded:
        class model:
            generation_config = None

    Loaded.tokenizer = tokenizer
    scores = list(TASKS["vt"].measure(Loaded, 4 * M, drawn, replace(setting, batch=2)))
    assert question == [(2, room)]
    recalled = [(score.sample, score.value) for score in scores if score.metric == "recall"]
    assert recalled == [(0, 0.4), (1, 0.2)]
    copies = {score.sample: score.value for score in scores if score.metric == "copied"}
    assert copies == {at: ruler.copied(tokenizer, prompt, 99) for at, prompt in enumerate(drawn)}
    assert string_match_all("", ["a"]) == 0
