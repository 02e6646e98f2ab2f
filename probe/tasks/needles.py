"""RULER's needles (Hsieh et al. 2024): several values or queries in a text, or one among needles alone.

Templates and sizes are those of github.com/NVIDIA/RULER (Apache-2.0), commit c3f5e3b4, `scripts/data/synthetic/`:
`niah.py`, `constants.py`. Names and values are drawn by us, and
needles in a text have lines of their own.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probe.tasks.listed import Ids, Listed, distinct, made, mixed, room_for
from probe.tasks.retrieval import Filler, encode, encode_once, first_ids, random_key, random_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

NIAH_HEADER = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind} afterwards."
)
NIAH_NEEDLE = "One of the special magic {kind} for {key} is: {value}."
NIAH_QUESTION = (
    "\nWhat are all the special magic {kind} for {query} mentioned in the provided text?"
    " The special magic {kind} for {query} mentioned in the provided text are"
)


def niah(
    tokenizer: Tokenizer,
    length: int,
    rng: np.random.Generator,
    *,
    keys: int = 1,
    values: int = 1,
    filler: Filler,
) -> Listed:
    """RULER's niah_multivalue (`values`) and niah_multiquery (`keys`, all asked for), in `filler`.

    Raises TooShortError when `length` cannot hold the fixed text.
    """
    names = distinct(lambda: random_name(rng), keys)
    numbers = distinct(lambda: random_key(rng, 7), keys * values)
    pairs = [(name, numbers[at * values + own]) for at, name in enumerate(names) for own in range(values)]
    needles = [
        encode_once(tokenizer, f"\n{NIAH_NEEDLE.format(kind='numbers', key=name, value=number)}\n")
        for name, number in (pairs[at] for at in rng.permutation(len(pairs)))
    ]
    header, end = _niah_frame(tokenizer, names, "numbers", len(pairs))
    header += encode(tokenizer, "\n")
    room = room_for(length, header, end, *needles)
    sentences, left = [], room
    for sentence in filler(room) if room else ():
        sentences.append(tuple(sentence[:left]))
        left -= len(sentences[-1])
        if not left:
            break
    return made(tokenizer, header, mixed(sentences, needles, rng), end, length, numbers, ", ".join(numbers))


def niah_lines(
    tokenizer: Tokenizer, length: int, rng: np.random.Generator, *, uuids: bool = False, depth: float | None = None
) -> Listed:
    """RULER's niah_multikey_2 (_3 with `uuids`): as many needles as fit, one asked for; line breaks fill the rest."""
    kind = "uuids" if uuids else "numbers"
    names = (lambda: _uuid(rng)) if uuids else (lambda: random_name(rng))
    asked, value = names(), _uuid(rng) if uuids else random_key(rng, 7)

    def line(key: str, held: str) -> Ids:
        return encode_once(tokenizer, "\n" + NIAH_NEEDLE.format(kind=kind, key=key, value=held))

    def other() -> Ids:
        key = next(key for key in iter(names, None) if key != asked)
        return line(key, _uuid(rng) if uuids else random_key(rng, 7))

    header, end = _niah_frame(tokenizer, [asked], kind, 1)
    needle, following = line(asked, value), other()
    room = room_for(length, header, end, needle, following) + len(following)
    body: list[Ids] = []
    while len(following) <= room:
        body.append(following)
        room -= len(following)
        following = other()
    at = round((float(rng.random()) if depth is None else depth) * len(body))
    return made(tokenizer, header, [*body[:at], needle, *body[at:]], end, length, [value], value, at)


def _niah_frame(tokenizer: Tokenizer, names: Sequence[str], kind: str, count: int) -> tuple[Ids, Ids]:
    """What stands before the haystack and after it; RULER's wording for one answer or several."""
    query = f"{', '.join(names[:-1])}, and {names[-1]}" if len(names) > 1 else names[0]
    texts = [NIAH_HEADER, NIAH_QUESTION]
    if count == 1:
        kind = kind[:-1]
        for old, new in (("Some", "A"), ("are all", "is"), ("are", "is")):
            texts = [text.replace(old, new) for text in texts]
    header, question = (text.format(kind=kind, query=query) for text in texts)
    return first_ids(tokenizer) + encode(tokenizer, header), encode_once(tokenizer, question)


def _uuid(rng: np.random.Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))
