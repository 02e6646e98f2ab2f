"""Linear probes on any states: compared with scikit-learn's own, split by text, and refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from mesa.errors import Refused
from mesa.models import tokenizer_of
from probe.commands.readout.plan import STRENGTHS, Bootstrap, TextScores, _starts, control_labels, fit_probe

TEXTS, TOKENS, DIM = 12, 30, 16


def drawn(seed=0, noise=2.0):
    """States (text, token, dim), classes and numbers that are partly in them."""
    rng = np.random.default_rng(seed)
    states, weights = rng.normal(size=(TEXTS, TOKENS, DIM)), np.random.default_rng(9).normal(size=(DIM, 4))
    scores = states @ weights + noise * rng.normal(size=(TEXTS, TOKENS, 4))
    return states, np.array(list("abcd"))[scores.argmax(-1)], scores[..., 0]


@pytest.mark.parametrize("kind", STRENGTHS)
def test_a_probe_is_the_one_that_scikit_learn_finds(kind):
    states, names, numbers = drawn()
    labels = names if kind == "classes" else numbers
    train, test = slice(0, 6), slice(6, None)
    groups = np.repeat(np.arange(6), TOKENS)
    model, name = (LogisticRegression(max_iter=1000), "C") if kind == "classes" else (Ridge(), "alpha")
    pipeline = make_pipeline(StandardScaler(), model)
    grid = {f"{model.__class__.__name__.lower()}__{name}": STRENGTHS[kind]}
    search = GridSearchCV(pipeline, grid, cv=GroupKFold(3)).fit(
        states[train].reshape(-1, DIM), labels[train].ravel(), groups=groups
    )
    trained = fit_probe(states[train], labels[train], np.arange(6))
    assert trained.strength == next(iter(search.best_params_.values()))
    guessed = search.predict(states[test].reshape(-1, DIM))
    expected = (
        (guessed == labels[test].ravel()).mean() if kind == "classes" else r2_score(labels[test].ravel(), guessed)
    )
    scores = trained.score(states[test], labels[test], np.arange(6, 12))
    assert scores.value == pytest.approx(expected, abs=1e-9)
    assert 0.4 < scores.value < 0.95
    low, high = Bootstrap(6).interval(scores)[1:]
    assert low < scores.value < high


def test_r2_is_that_of_numbers_far_from_0():
    states, _, numbers = drawn()
    shifted = numbers + 1.7e9  # such as seconds since 1970
    scores = [
        fit_probe(states[:6], labels[:6], np.arange(6)).score(states[6:], labels[6:], np.arange(6, 12))
        for labels in (numbers, shifted)
    ]
    assert scores[1].value == pytest.approx(scores[0].value, abs=1e-5)
    assert Bootstrap(6).interval(scores[1]) == pytest.approx(Bootstrap(6).interval(scores[0]), abs=1e-5)


def test_resamples_are_of_texts_and_paired():
    states, names, _ = drawn()
    trained = fit_probe(states[:6], names[:6], np.arange(6))
    scores = trained.score(states[6:], names[6:], np.arange(6, 12))
    same = Bootstrap(6).interval(scores, scores)
    assert same == (0, 0, 0)
    by_text = scores.sums[:, 0] / scores.sums[:, 1]
    values = scores.resampled(np.eye(6))
    np.testing.assert_allclose(values, by_text)
    assert not Bootstrap(6).is_clear(scores, scores, 1)


def test_few_labels_that_are_all_right_are_not_clear():
    texts = np.arange(4)
    right, wrong = (TextScores("classes", texts, np.array([[hits, 1.0]] * 4)) for hits in (1, 0))
    assert not Bootstrap(4).is_clear(right, wrong, 12)
    right, wrong = (TextScores("classes", texts, np.array([[hits, 100.0]] * 4)) for hits in (99, 10))
    assert Bootstrap(4).is_clear(right, wrong, 12)
    right, wrong = (TextScores("classes", texts, np.array([[hits, 100.0]] * 4), True) for hits in (100, 0))
    assert not Bootstrap(4).is_clear(right, wrong, 12)  # a label a document, of 100 tokens each


@pytest.mark.parametrize(("hits", "is_clear"), [(47, False), (40, True)])
def test_few_texts_have_students_error(hits, is_clear):
    """t = 4.0 and 5.2, for a quantile of 4.3."""
    scores, other = (
        TextScores("classes", np.arange(3), np.array([[each, 100.0] for each in of]))
        for of in ((60, 70, 80), [hits] * 3)
    )
    assert Bootstrap(3).is_clear(scores, other, 1) == is_clear


_OF_TEXTS = ("convert_ids_to_tokens", "added_tokens_decoder", "backend_tokenizer", "decode")
"""What `token_texts` reads of a tokenizer."""


@pytest.mark.parametrize(
    "text", ["n\u00e9\u6f22\u5b57\U0001f642 na\u00efve", "\u6f22", "x\U0001f642y\u0301z", "plain\n text"]
)
def test_characters_are_of_the_last_token_that_holds_them(text):
    tokenizer = tokenizer_of("default")
    read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    starts = _starts(tokenizer, text, np.array(read.input_ids))
    slow = SimpleNamespace(is_fast=False, **{name: getattr(tokenizer, name) for name in _OF_TEXTS})
    np.testing.assert_array_equal(_starts(slow, text, np.array(read.input_ids)), starts)
    for end in range(1, len(text) + 1):
        expected = max(token for token, (start, stop) in enumerate(read.offset_mapping) if start < end <= stop)
        assert np.searchsorted(starts, end) - 1 == expected


@pytest.mark.parametrize("text", ["re\u0301sume\u0301: here it is", "\u6f22 unknown \u5b57, here it is"])
def test_characters_that_a_tokenizer_normalises_or_does_not_know_are_counted(text):
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate("<unk> here it is".split())}, "<unk>"))
    backend.normalizer, backend.pre_tokenizer = NFC(), Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    ids = tokenizer(text, add_special_tokens=False).input_ids
    starts = _starts(tokenizer, text, np.array(ids))
    for word in ("here", "it", "is"):
        at = np.searchsorted(starts, text.index(word) + len(word)) - 1
        assert tokenizer.decode(ids[at]) == word


def test_random_labels_are_not_read():
    states, names, _ = drawn()
    names = np.random.default_rng(1).permutation(names.ravel()).reshape(names.shape)
    trained = fit_probe(states[:6], names[:6], np.arange(6))
    chance = fit_probe(states[:6], names[:6], np.arange(6), estimator=DummyClassifier())
    scores, lazy = (each.score(states[6:], names[6:], np.arange(6, 12)) for each in (trained, chance))
    assert not Bootstrap(6).is_clear(scores, lazy, 1)


def test_a_control_is_random_by_token_type():
    labels = np.array(list("aab") * 100)
    types = np.arange(300) % 50
    control = control_labels(labels, types)
    assert all(len({*control[types == kind]}) == 1 for kind in range(50))
    assert {*control} == {"a", "b"}
    assert np.array_equal(control, control_labels(labels, types))
    assert not np.array_equal(control, control_labels(labels, types, seed=1))


def test_states_of_torch_and_an_estimator_of_the_users_are_taken():
    torch = pytest.importorskip("torch")
    states, names, _ = drawn()
    own = LogisticRegression(C=0.5, max_iter=500)
    trained = fit_probe(torch.from_numpy(states[:6]), names[:6], np.arange(6), estimator=own)
    expected = own.fit(states[:6].reshape(-1, DIM), names[:6].ravel()).score(
        states[6:].reshape(-1, DIM), names[6:].ravel()
    )
    assert trained.score(states[6:], names[6:], range(6, 12)).value == pytest.approx(expected)
    assert trained.strength is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda states, labels, groups: (states, labels[:3], groups), r"states \(6, 30, 16\) have no label for each"),
        (lambda states, labels, groups: (states, labels, groups[:3]), r"groups \(3,\) do not name the text of each"),
        (lambda states, labels, groups: (states, labels, groups * 0), "are of one text"),
        (lambda states, labels, groups: (states, np.full_like(labels, "a"), groups), "all to train on are a"),
        (lambda states, labels, groups: (states[:, :1], labels[:, :1], groups), "6 to train on are fewer than 20"),
        (lambda states, labels, groups: (states * np.nan, labels, groups), "states are not finite"),
    ],
)
def test_what_no_probe_can_be_trained_on_is_refused(change, message):
    states, names, _ = drawn()
    with pytest.raises(Refused, match=message):
        fit_probe(*change(states[:6], names[:6], np.arange(6)))


def test_r2_of_equal_labels_has_no_interval_and_labels_that_are_no_numbers_are_refused():
    states, _, numbers = drawn()
    trained = fit_probe(states[:6], numbers[:6], np.arange(6))
    equal = trained.score(states[6:], np.full((6, TOKENS), 1.5), np.arange(6, 12))
    draws = Bootstrap(6)
    assert np.isnan(draws.interval(equal)[1:]).all()
    assert not draws.is_clear(equal, equal, 1)
    with pytest.raises(Refused, match="a label is not a finite number"):
        trained.score(states[6:], np.where(numbers[6:] > 1, np.nan, numbers[6:]), np.arange(6, 12))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda states, names, numbers, texts: fit_probe(states, names, texts, kind="class"), "known: classes, numb"),
        (lambda states, names, numbers, texts: fit_probe(states, names, texts, kind="numbers"), "take kind='classes'"),
        (lambda states, names, numbers, texts: fit_probe(states, numbers, texts, kind="classes"), "kind='numbers'"),
        (lambda states, names, numbers, texts: fit_probe(states, some(names, None), texts), "None or NaN is among"),
        (lambda states, names, numbers, texts: fit_probe(states, some(names, np.nan), texts), "None or NaN is among"),
        (lambda states, names, numbers, texts: control_labels(names, texts), r"types \(12,\) are not one for each"),
    ],
)
def test_labels_that_are_not_of_the_kind_are_refused(call, message):
    with pytest.raises(Refused, match=message):
        call(*drawn(), np.arange(TEXTS))


def some(names, gap):
    """Names with gaps."""
    return np.where(np.arange(TOKENS) % 3 == 0, gap, names.astype(object))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda states, labels, texts: (states[..., :4], labels, texts), "states are 4 wide, the probe was trained on"),
        (lambda states, labels, texts: (states[:0], labels[:0], texts[:0]), "no tokens to score"),
        (lambda states, labels, texts: (states, labels, texts.astype(str)), "groups are text, those that the probe"),
        (lambda states, labels, texts: (states, labels.astype(int), texts), "labels are numbers, those that the probe"),
    ],
)
def test_what_is_not_like_that_trained_on_is_not_scored(change, message):
    states, _, numbers = drawn()
    labels = (numbers > 0).astype(int).astype(str)
    trained = fit_probe(states[:6], labels[:6], np.arange(6))
    with pytest.raises(Refused, match=message):
        trained.score(*change(states[6:], labels[6:], np.arange(6, 12)))


def test_many_classes_of_few_tokens_raise_no_warning():
    labels, texts = np.arange(40) % 24, np.arange(40) // 20
    fit_probe(np.random.default_rng(0).normal(size=(40, 4)), labels, texts)  # warnings are errors here


@pytest.mark.parametrize("last", [1, 30])
def test_a_fold_without_an_r2_does_not_choose_the_penalty(last):
    """A text of one number, and one of numbers that are nearly equal, whose R2 is far below that of all others."""
    rng = np.random.default_rng(0)
    states, texts = rng.normal(size=(60 + last, 8)), np.array([*[0] * 30, *[1] * 30, *[2] * last])
    labels = states @ rng.normal(size=8) + 0.01 * rng.normal(size=len(states))
    states[texts == 2] *= 0.05
    labels[texts == 2] = 0.5 + 1e-6 * rng.normal(size=last)
    assert fit_probe(states, labels, texts).strength == 1  # warnings are errors here


def test_texts_that_were_trained_on_are_not_scored():
    states, names, _ = drawn()
    trained = fit_probe(states[:6], names[:6], np.arange(6))
    with pytest.raises(Refused, match="text 5 was trained on"):
        trained.score(states[5:], names[5:], np.arange(5, 12))
