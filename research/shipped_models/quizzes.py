"""What the default model is asked while it is trained, by kind: a header, sentences to remember, and questions.

Each function takes the tokens there is room for, roughly, and draws names, numbers, wording and how much is asked.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from probe.eval_tasks import retrieval
from probe.eval_tasks.retrieval import NOUNS

PAIRS_HEADER = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{\n"
PAIRS_PAIR = ' "{name}": "{key}",\n'
PAIRS_QUESTION = '}}\n\nKey: "{name}"\nCorresponding value:'
PAIRS_ANSWER = ' "{key}"'
"""Key-value retrieval in JSON, as in "Lost in the Middle" (Liu et al. 2023)."""

LOOKUPS = (
    ('\n"{name}": "{key}",', '\n"{name}": "', '{key}"'),
    (' "{name}": "{key}",\n', '\nKey: "{name}"\nCorresponding value:', ' "{key}"'),
    ("\n{name} = {key}", "\n{name} =", " {key}"),
    ("\n{name}: {key}", "\n{name}:", " {key}"),
    (" The {name} is {key}.", " The {name} is", " {key}."),
)
"""Statement, question and answer of the plainest lookups."""

TRACK_HEADER = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
TRACK_FIRST = "\nVAR {name} = {key}"
TRACK_NEXT = "\nVAR {name} = VAR {before}"
TRACK_QUESTION = (
    "\nQuestion: Find all variables that are assigned the value {key} in the text above. Answer: According to the "
    "chain(s) of variable assignment in the text above, {count} variables are assgined the value {key}, they are:"
)
TRACK_SHORT = "\nVariables that are assigned the value {key}:"
"""RULER's variable tracking, its spelling included; TRACK_SHORT is seen in training only."""

PROMPTS = (PAIRS_HEADER, PAIRS_QUESTION, TRACK_HEADER, TRACK_NEXT, TRACK_QUESTION)
"""The texts whose words the tokenizer is to know."""


def random_letters(rng: np.random.Generator, count: int = 5) -> str:
    """A variable's name as RULER draws it, e.g. 'XKQPA'."""
    return "".join(rng.choice(list(string.ascii_uppercase), count))


@dataclass(frozen=True)
class Quiz:
    """`sentences` in the order in which they stand; `questions` with their answers.

    divisible: sentences may be left out, but that which holds the first question's answer.
    """

    header: str
    sentences: list[str]
    questions: list[tuple[str, str]]
    divisible: bool = True


def passkey(room: int, rng: np.random.Generator) -> Quiz:
    """The paper's passkey: its three prompts and shorter ones, at times beside a number that is not asked for."""
    key = retrieval.random_key(rng, int(rng.integers(4, 7)))
    sentence = retrieval.PASSKEY_KEY if rng.random() < 0.5 else " The pass key is {key}. Remember it."
    header = retrieval.PASSKEY_HEADER if rng.random() < 0.5 else ""
    form, question = rng.random(), retrieval.PASSKEY_QUESTION
    if form < 0.45:
        before, question = retrieval.PASSKEY_ENHANCED["question" if form < 0.3 else "answer"]
        header = before + header
    elif form < 0.6:
        question = " The pass key is"
    sentences = [sentence.format(key=key)]
    if rng.random() < 0.3:
        other = retrieval.NEEDLE_KEY.format(name=retrieval.random_name(rng), key=retrieval.random_key(rng))
        sentences.insert(int(rng.integers(2)), other)
    return Quiz(header, sentences, [(question, f" {key}")])


def needle(room: int, rng: np.random.Generator) -> Quiz:
    """RULER's needle, one to four of them."""
    keys = {retrieval.random_name(rng): retrieval.random_key(rng) for _ in range(int(rng.integers(1, 5)))}
    question = retrieval.NEEDLE_QUESTION if rng.random() < 0.5 else " The special magic number for {name} is"
    questions = rng.permutation(list(keys))[: int(rng.integers(1, 4))]
    return Quiz(
        retrieval.NEEDLE_HEADER if rng.random() < 0.4 else "",
        [retrieval.NEEDLE_KEY.format(name=name, key=key) for name, key in keys.items()],
        [(question.format(name=name), f" {keys[name]}") for name in questions],
    )


def lines(room: int, rng: np.random.Generator) -> Quiz:
    """LongEval's lines: one long question, or several in the lines' own words."""
    header = retrieval.LINES_HEADER if room >= 200 and rng.random() < 0.4 else ""
    question, ask = (
        (retrieval.LINES_QUESTION, 50) if rng.random() < 0.5 else ("\nline {name}: REGISTER_CONTENT is <", 19)
    )
    names, questions = _names(room - (90 if header else 0), 18, ask, retrieval.random_name, rng)
    keys = {name: retrieval.random_key(rng) for name in names}
    return Quiz(
        header,
        [retrieval.LINES_LINE.format(name=name, key=key) for name, key in keys.items()],
        [(question.format(name=name), f"{keys[name]}>") for name in questions],
    )


def pairs(room: int, rng: np.random.Generator) -> Quiz:
    """Key-value lookup: the JSON prompt, or many plain questions about pairs of one form."""
    draw: Callable[[np.random.Generator], str] = (
        retrieval.random_name,
        retrieval.random_name,
        random_letters,
        _number,
    )[int(rng.integers(4))]
    digits = int(rng.integers(2, 7)) if rng.random() < 0.7 else 0
    asks_json = room >= 100 and rng.random() < 0.4
    statement, question, answer = (
        (PAIRS_PAIR, PAIRS_QUESTION, PAIRS_ANSWER) if asks_json else LOOKUPS[int(rng.integers(len(LOOKUPS)))]
    )
    names, questions = _names(room - (50 if asks_json else 0), 17, 17, draw, rng)
    keys = {name: retrieval.random_key(rng, digits) if digits else str(rng.choice(NOUNS)) for name in names}
    return Quiz(
        PAIRS_HEADER if asks_json else "",
        [statement.format(name=name, key=key) for name, key in keys.items()],
        [(question.format(name=name), answer.format(key=keys[name])) for name in questions[: 1 if asks_json else None]],
    )


def tracking(room: int, rng: np.random.Generator) -> Quiz:
    """RULER's variable tracking: one to three chains, one of them asked for."""
    long = room >= 150 and rng.random() < 0.6
    header = TRACK_HEADER if room >= 180 and rng.random() < 0.6 else ""
    fixed = (85 if long else 20) + (28 if header else 0)
    most = max(1, min(10, (room - fixed) // 23))
    count = int(rng.integers(1, most + 1))
    chains: list[list[str]] = [[] for _ in range(int(rng.integers(1, min(3, count) + 1)))]
    values = [retrieval.random_key(rng) for _ in chains]
    sentences = []
    for index in range(count):
        which = index if index < len(chains) else int(rng.integers(len(chains)))
        chain, name = chains[which], random_letters(rng)
        statement = TRACK_NEXT if chain else TRACK_FIRST
        sentences.append(statement.format(name=name, key=values[which], before=chain[-1] if chain else ""))
        chain.append(name)
    which = int(rng.integers(len(chains)))
    question = TRACK_QUESTION if long else TRACK_SHORT
    text = question.format(key=values[which], count=len(chains[which]))
    return Quiz(header, sentences, [(text, f" {' '.join(chains[which])}\n")], divisible=False)


KINDS = {each.__name__: each for each in (passkey, needle, lines, pairs, tracking)}


def _number(rng: np.random.Generator) -> str:
    return retrieval.random_key(rng, 3)


def _names(
    room: int, each: int, ask: int, draw: Callable[[np.random.Generator], str], rng: np.random.Generator
) -> tuple[list[str], list[str]]:
    """Names for as many statements as are drawn, and those of them that are asked for: what `room` tokens may hold."""
    questions = int(rng.integers(1, max(2, min(8, room // (each + ask) + 1))))
    count = int(rng.integers(questions, max(questions, (room - questions * ask) // each) + 1))
    names = list(dict.fromkeys(draw(rng) for _ in range(count)))
    return names, rng.permutation(names)[:questions].tolist()
