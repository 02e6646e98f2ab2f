"""What the default model is measured on beside the evaluation's tasks: key-value lookup and variable tracking."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import PASSKEY_FILLER, Prompt, encode, encode_once, first_ids, random_key, random_name
from probe.eval_tasks.tasks import RetrievalTask
from research.shipped_models import quizzes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

HOPS = 4
"""RULER's: one value and four variables after the first."""


def key_value(tokenizer: Tokenizer, length: int, rng: np.random.Generator) -> Prompt:
    """A JSON object with as many pairs as fit, one asked for; the rest is filled with line breaks before it."""
    first = first_ids(tokenizer)
    start = first + encode(tokenizer, quizzes.PAIRS_HEADER)
    pairs: dict[str, str] = {}
    body: list[tuple[int, ...]] = []
    while True:
        name, key = random_name(rng), random_key(rng)
        pair = encode_once(tokenizer, quizzes.PAIRS_PAIR.format(name=name, key=key))
        question = encode_once(tokenizer, quizzes.PAIRS_QUESTION.format(name=name))
        if len(start) + sum(map(len, body)) + len(pair) + len(question) > length:
            break
        if name not in pairs:
            pairs[name] = key
            body.append(pair)
    if not body:
        raise ValueError(f"length={length} is too short for one pair; ask for more")
    index = int(rng.integers(len(body)))
    name = list(pairs)[index]
    question = encode_once(tokenizer, quizzes.PAIRS_QUESTION.format(name=name))
    missing = max(0, length - len(start) - sum(map(len, body)) - len(question))
    space = encode(tokenizer, "\n")[-1:] * missing
    answer = quizzes.PAIRS_ANSWER.format(key=pairs[name])
    return Prompt(
        ids=(*first, *space, *start[len(first) :], *(token for pair in body for token in pair), *question),
        answer_ids=encode_once(tokenizer, answer),
        answer=answer.strip(),
        key_position=missing + len(start) + sum(map(len, body[:index])),
    )


def tracking(tokenizer: Tokenizer, length: int, rng: np.random.Generator) -> Prompt:
    """RULER's variable tracking, one chain in the paper's filler; the answer is its variables in their order."""
    key, names = random_key(rng), [quizzes.random_letters(rng) for _ in range(HOPS + 1)]
    first = quizzes.TRACK_FIRST.format(name=names[0], key=key)
    after = [quizzes.TRACK_NEXT.format(name=b, before=a) for a, b in pairwise(names)]
    middle = [encode_once(tokenizer, text) for text in (first, *after)]
    start = first_ids(tokenizer) + encode(tokenizer, quizzes.TRACK_HEADER)
    question = encode_once(tokenizer, quizzes.TRACK_QUESTION.format(key=key, count=len(names)))
    room = length - len(start) - sum(map(len, middle)) - len(question)
    if room < 0:
        raise ValueError(f"length={length} is below the task's fixed text of {length - room} tokens")
    filler = [encode(tokenizer, sentence) for sentence in PASSKEY_FILLER]
    parts: list[tuple[int, ...]] = []
    while room > 0:
        parts.append(filler[len(parts) % len(filler)][:room])
        room -= len(parts[-1])
    places = np.sort(rng.integers(0, len(parts) + 1, len(middle)))
    for index, (place, statement) in enumerate(zip(places, middle, strict=True)):
        parts.insert(int(place) + index, statement)
    return Prompt(
        ids=(*start, *(token for part in parts for token in part), *question),
        answer_ids=encode_once(tokenizer, f" {' '.join(names)}"),
        answer=" ".join(names),
        key_position=len(start),
    )


def _key_value(tokenizer: Any, length: int, rng: np.random.Generator, setting: PromptSpec) -> Prompt:
    return key_value(tokenizer, length, rng)


def _tracking(tokenizer: Any, length: int, rng: np.random.Generator, setting: PromptSpec) -> Prompt:
    return tracking(tokenizer, length, rng)


KEY_VALUE = RetrievalTask("key-value", "a value of a JSON object, by its key", _key_value)
TRACKING = RetrievalTask("tracking", "RULER's variable tracking, all variables in their order", _tracking)
