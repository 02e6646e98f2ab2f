"""What the default model is asked in training: answerable, exactly as long as wanted, with no help from position."""

import numpy as np
import pytest

from probe.tasks import corpus
from probe.tasks.base import Setting
from research.shipped_models import asked, quizzes, wording
from research.shipped_models.making import train_tokenizer
from research.shipped_models.mixture import ANSWER, PROMPT, SHARES, Mixture


@pytest.fixture(scope="module")
def mixture():
    texts = [corpus.read(path) for path in corpus.training_files()[:1]]
    tokenizer = train_tokenizer(texts, 600, wording.PROMPTS)
    return Mixture(tokenizer, np.array(tokenizer(texts, add_special_tokens=False)["input_ids"][0]))


def test_rulers_words_are_rulers():
    assert wording.TRACK_FIRST.format(name="XKQPA", key=12345) == "\nVAR XKQPA = 12345"
    assert wording.TRACK_NEXT.format(name="YYYYY", before="XKQPA") == "\nVAR YYYYY = VAR XKQPA"
    assert wording.TRACK_QUESTION.format(key=12345, count=5).startswith(
        "\nQuestion: Find all variables that are assigned the value 12345 in the text above. Answer: According to the "
        "chain(s) of variable assignment in the text above, 5 variables are assgined the value 12345, they are:"
    )
    name = wording.random_letters(np.random.default_rng(0))
    assert len(name) == 5
    assert name.isalpha()
    assert name.isupper()


@pytest.mark.parametrize("kind", quizzes.KINDS)
def test_every_question_has_its_answer_in_the_sentences(kind):
    rng = np.random.default_rng(0)
    for _ in range(200):
        quiz = quizzes.KINDS[kind](int(rng.integers(47, 256)), rng)
        for question, answer in quiz.questions:
            if kind == "tracking":
                assert answer.split() == followed(quiz.sentences, question)
            else:
                value = answer.strip(' >".')
                holding = [text for text in quiz.sentences if value in text]
                assert holding, (quiz, answer)
                assert kind == "passkey" or any(named(text) in question for text in holding), (quiz, question)


def followed(sentences, question):
    """The variables of the value that is asked for, one assignment after another."""
    key = next(
        word for word in question.replace(":", " ").replace(",", " ").split() if word.isdigit() and len(word) == 5
    )
    found = {key}
    order = []
    for sentence in sentences:
        name, value = sentence.removeprefix("\nVAR ").split(" = ")
        if value.removeprefix("VAR ") in found:
            found.add(name)
            order.append(name)
    return order


def named(sentence):
    """The name in a statement: what stands before its value, without the statement's own words."""
    words = sentence.replace('"', " ").replace(":", " ").replace(".", " ").replace("<", " ").split()
    own = {"The", "is", "=", "line", "One", "of", "the", "special", "magic", "numbers", "for", "REGISTER_CONTENT"}
    return next(word for word in words if word not in own)


def test_rows_are_exactly_as_long_as_wanted_and_weigh_their_answers(mixture):
    rng = np.random.default_rng(1)
    for length in (48, 96, 256):
        ids, weights = mixture.batch(40, length, rng)
        assert ids.shape == weights.shape == (40, length)
        assert {float(value) for value in np.unique(weights)} <= {0.0, np.float32(PROMPT), 1.0, ANSWER}
        assert (weights == ANSWER).any(axis=1).mean() > 0.3
    assert sum(SHARES.values()) == pytest.approx(1)
    assert set(SHARES) == {*quizzes.KINDS, "text", "copy"}


@pytest.mark.parametrize("kind", quizzes.KINDS)
def test_an_answer_stands_anywhere_before_its_question(kind, mixture):
    """How far back it is must not help to find it."""
    rng, places = np.random.default_rng(2), []
    while len(places) < 60:
        ids, weights = mixture._episode(kind, 200, rng)
        asked_at = [index for index, weight in enumerate(weights) if weight == ANSWER]
        if not asked_at:
            continue  # it did not fit
        first = ids[asked_at[0] : asked_at[0] + (3 if len(asked_at) > 2 else 1)]
        where = [at for at in range(asked_at[0]) if ids[at : at + len(first)] == first]
        places += [asked_at[0] - where[0]] if where else []
    assert len(set(places)) > 25
    assert np.std(places) > 15


@pytest.mark.parametrize("task", [asked.KEY_VALUE, asked.TRACKING], ids=lambda task: task.name)
def test_prompts_that_are_measured_are_exactly_as_long_as_wanted(task, mixture):
    setting = Setting(trained_length=400, lengths=(400,))
    for prompt in task.prepare(mixture.tokenizer, 400, setting, 5):
        text = mixture.tokenizer.decode(prompt.ids)
        assert len(prompt.ids) == 400
        assert prompt.ids[0] == 0
        assert mixture.tokenizer.decode(prompt.answer_ids).strip() == prompt.answer
        if task is asked.TRACKING:
            statements = [line for line in text.split("\n") if line.startswith("VAR ")]
            names = prompt.answer.split()
            assert [text.count(name) for name in names] == [2, 2, 2, 2, 1]
            assert [line.split()[1] for line in statements] == names
        else:
            name = text.rsplit('Key: "', 1)[1].split('"')[0]
            assert f'"{name}": {prompt.answer}' in text
            assert text.count(name) == 2
    with pytest.raises(ValueError, match="length=60"):
        task.build(mixture.tokenizer, 60, np.random.default_rng(0), setting)
