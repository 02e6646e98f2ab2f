"""Prompts of RULER's synthetic tasks (Hsieh et al. 2024) of an exact token length, whose answer is a list of strings.

Templates and sizes are those of github.com/NVIDIA/RULER (Apache-2.0), commit c3f5e3b4, `scripts/data/synthetic/`:
`niah.py`, `variable_tracking.py`, `common_words_extraction.py`, `freq_words_extraction.py`, `constants.py`. Names and
values are drawn by us, needles in a text have lines of their own, no space ends a prompt (the answer begins with it),
and common words are made of two syllables, where RULER takes wonderwords. Pieces are tokenized one by one; line breaks
after the header make up the length.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probe.tasks.base import Setting
from probe.tasks.retrieval import (
    PASSKEY_FILLER,
    Prompt,
    TooShortError,
    encode,
    encode_once,
    first_ids,
    random_key,
    random_name,
    room_for,
    text_filler,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

Ids = tuple[int, ...]
Random = np.random.Generator
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


@dataclass(frozen=True)
class ListPrompt(Prompt):
    """A prompt with several answers. expected: the strings that RULER looks for in what is generated.

    key_position: where the one line with the answer begins; where there are more, the first thing after the header.
    """

    expected: tuple[str, ...]


def insert_pieces(filler: Sequence[Ids], needles: Sequence[Ids], rng: Random) -> list[Ids]:
    """The needles, in order, between pieces of filler; no two side by side where there is filler enough."""
    gaps = len(filler) + 1
    drawn = np.sort(rng.choice(gaps, len(needles), replace=gaps < len(needles)))
    pieces = list(filler)
    for offset, (gap, needle) in enumerate(zip(drawn, needles, strict=True)):
        pieces.insert(int(gap) + offset, needle)
    return pieces


def draw_distinct(draw: Callable[[], str], count: int) -> list[str]:
    """`count` different texts, in the order drawn."""
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[draw()] = None
    return list(texts)


def assemble(
    tokenizer: Tokenizer,
    start: Ids,
    body: Sequence[Ids],
    end: Ids,
    length: int,
    expected: Sequence[str],
    answer: str,
    needle: int = 0,
) -> ListPrompt:
    """The prompt; line breaks after its header make up the length. needle: which piece has the answer."""
    missing = length - len(start) - sum(map(len, body)) - len(end)
    newline = encode(tokenizer, "\n")[-1:]
    before = len(start) + missing + sum(map(len, body[:needle]))
    ids = (*start, *(newline * missing), *itertools.chain(*body), *end)
    return ListPrompt(ids, encode_once(tokenizer, " " + answer), answer, before, tuple(expected))


def _example(tokenizer: Tokenizer, header: str, body: Sequence[Ids], question: Ids, answer: str) -> Ids:
    """A worked example that stands before the task."""
    answer_ids = (*encode_once(tokenizer, " " + answer), *encode(tokenizer, "\n"))
    return (*encode(tokenizer, header), *itertools.chain(*body), *question, *answer_ids)


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
    tokenizer: Tokenizer, length: int, rng: Random, setting: Setting, *, keys: int = 1, values: int = 1
) -> ListPrompt:
    """RULER's niah_multivalue (`values`) and niah_multiquery (`keys`, all asked for), in running text.

    Raises TooShortError when `length` cannot hold the fixed text.
    """
    filler = text_filler(setting.documents, rng)
    names = draw_distinct(lambda: random_name(rng), keys)
    numbers = draw_distinct(lambda: random_key(rng, 7), keys * values)
    pairs = [(names[at // values], number) for at, number in enumerate(numbers)]
    needles = [
        encode_once(tokenizer, f"\n{NIAH_NEEDLE.format(kind='numbers', key=name, value=number)}\n")
        for name, number in (pairs[at] for at in rng.permutation(len(pairs)))
    ]
    header, end = _niah_frame(tokenizer, names, "numbers", len(pairs))
    header += encode(tokenizer, "\n")
    room = room_for(length, header, end, *needles)
    sentences = [tuple(sentence) for sentence in filler(room)] if room else []
    return assemble(tokenizer, header, insert_pieces(sentences, needles, rng), end, length, numbers, ", ".join(numbers))


def niah_lines(tokenizer: Tokenizer, length: int, rng: Random, setting: Setting, *, uuids: bool = False) -> ListPrompt:
    """RULER's niah_multikey_2 (_3 with `uuids`): as many needles as fit, one asked for; line breaks fill the rest."""
    kind = "uuids" if uuids else "numbers"
    draw_name = (lambda: _uuid(rng)) if uuids else (lambda: random_name(rng))
    name, value = draw_name(), _uuid(rng) if uuids else random_key(rng, 7)

    def line(key: str, value: str) -> Ids:
        return encode_once(tokenizer, "\n" + NIAH_NEEDLE.format(kind=kind, key=key, value=value))

    def other() -> Ids:
        key = next(key for key in iter(draw_name, None) if key != name)
        return line(key, _uuid(rng) if uuids else random_key(rng, 7))

    header, end = _niah_frame(tokenizer, [name], kind, 1)
    needle, following = line(name, value), other()
    room = room_for(length, header, end, needle, following) + len(following)
    body: list[Ids] = []
    while len(following) <= room:
        body.append(following)
        room -= len(following)
        following = other()
    at = round((float(rng.random()) if setting.depth is None else setting.depth) * len(body))
    return assemble(tokenizer, header, [*body[:at], needle, *body[at:]], end, length, [value], value, at)


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


def _uuid(rng: Random) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


VT_HEADER = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n"
VT_NOISE = "\n" + "".join(PASSKEY_FILLER).strip()
VT_QUESTION = (
    "\nQuestion: Find all variables that are assigned the value {value} in the text above."
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {value}, they are:"
)


def variables(
    tokenizer: Tokenizer, length: int, rng: Random, setting: Setting, *, hops: int = 4, example: int | None = 10
) -> ListPrompt:
    """RULER's variable tracking, one chain in repeated sentences. example: its rounds of them; None: no example."""
    start = first_ids(tokenizer)
    if example is not None:
        names, chain, end = _chain(tokenizer, rng, hops, 3)
        rounds = [encode(tokenizer, VT_NOISE)] * example
        start += _example(tokenizer, VT_HEADER, insert_pieces(rounds, chain, rng), end, " ".join(names))
    names, chain, end = _chain(tokenizer, rng, hops, 5)
    start += encode(tokenizer, VT_HEADER)
    noise = encode(tokenizer, VT_NOISE)
    room = room_for(length, start, end, *chain)
    rounds = [noise[: room - at] for at in range(0, room, len(noise))]
    return assemble(tokenizer, start, insert_pieces(rounds, chain, rng), end, length, names, " ".join(names))


def _chain(tokenizer: Tokenizer, rng: Random, hops: int, letters: int) -> tuple[list[str], list[Ids], Ids]:
    """Names, assignments and the question of a chain of variables."""
    names = draw_distinct(lambda: "".join(rng.choice(LETTERS, letters)).upper(), hops + 1)
    value = random_key(rng)
    assigned = [value, *(f"VAR {name}" for name in names)]
    lines = [encode_once(tokenizer, f"\nVAR {name} = {text}") for name, text in zip(names, assigned, strict=False)]
    return names, lines, encode_once(tokenizer, VT_QUESTION.format(value=value, count=hops + 1))


CWE_HEADER = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n"
)
CWE_QUESTION = (
    "\nQuestion: What are the {count} most common words in the above list?"
    " Answer: The top {count} words that appear most often in the list are:"
)
FWE_HEADER = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words."
)
FWE_QUESTION = (
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
    "appeared words in the above coded text?"
    " Answer: According to the coded text above, the three most frequently appeared words are:"
)
FWE_NOISE, FWE_ALPHA, FWE_LETTERS = "...", 2.0, 6
_FWE_LEAST = 30  # words: the third comes twice, the fourth once, the fifth not at all
_SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]


def common_words(
    tokenizer: Tokenizer,
    length: int,
    rng: Random,
    setting: Setting,
    *,
    common: int = 10,
    repeats: tuple[int, int] = (30, 3),
    example: tuple[int, int] | None = (10, 3),
) -> ListPrompt:
    """RULER's common words: a numbered list, `repeats` times a common and any other word; as many others as fit.

    example: those repeats in a worked example of as many others as common words; None: no example.
    """
    start, end = first_ids(tokenizer), encode(tokenizer, CWE_QUESTION.format(count=common))
    if example is not None:
        words = _syllable_words(rng, 2 * common)
        body = _numbered(tokenizer, [encode_once(tokenizer, f" {word}") for word in words], common, example, rng)
        start += _example(tokenizer, CWE_HEADER, body, end, _numbered_answer(words[:common]))
    start += encode(tokenizer, CWE_HEADER)
    fixed = len(start) + len(end)
    room = max(0, length - fixed)
    words = _syllable_words(rng, 2 * common + room // (3 * repeats[1]))
    ids = [encode_once(tokenizer, f" {word}") for word in words]
    costs = np.cumsum([0, *map(len, ids[common:])])
    most = common * repeats[0] + (len(words) - common) * repeats[1]
    numbers = np.cumsum([0, *(len(_number(tokenizer, at)) for at in range(1, most + 1))])

    def needed(others: int) -> int:
        listed = sum(map(len, ids[:common])) * repeats[0] + costs[others] * repeats[1]
        return int(numbers[common * repeats[0] + others * repeats[1]] + listed)

    others = bisect.bisect_right(range(len(costs)), room, key=needed) - 1
    if others < common:
        raise TooShortError(length, fixed + needed(common))
    body = _numbered(tokenizer, ids[: common + others], common, repeats, rng)
    return assemble(tokenizer, start, body, end, length, words[:common], _numbered_answer(words[:common]))


def frequent_words(tokenizer: Tokenizer, length: int, rng: Random, setting: Setting) -> ListPrompt:
    """RULER's frequent words: coded words by Zipf's law with alpha 2, the commonest of them dots; three are asked for.

    RULER's vocabulary of `length`/50, at least five; so many words that the fourth and the fifth differ in number.
    """
    size = max(5, length // 50)
    words = [FWE_NOISE, *draw_distinct(lambda: "".join(rng.choice(LETTERS, FWE_LETTERS)), size - 1)]
    ids = [encode_once(tokenizer, f" {word}") for word in words]
    start = first_ids(tokenizer) + encode(tokenizer, FWE_HEADER)
    end = encode(tokenizer, FWE_QUESTION)
    fixed = len(start) + len(end)
    room = max(0, length - fixed)
    shares = np.arange(1, size + 1) ** -FWE_ALPHA * 6 / np.pi**2  # zeta(2)
    sizes = np.array([*map(len, ids)])

    def counts(total: int) -> np.ndarray:
        return (total * shares).astype(int)

    fitting = bisect.bisect_right(range(2 * room + 1), room, key=lambda total: int(counts(total) @ sizes)) - 1
    if fitting < _FWE_LEAST:
        raise TooShortError(length, fixed + int(counts(_FWE_LEAST) @ sizes))
    total = next(total for total in range(fitting, 0, -1) if (np.diff(counts(total)[:5]) < 0).all())
    order = rng.permutation(np.repeat(np.arange(size), counts(total)))
    expected = words[1:4]
    return assemble(tokenizer, start, [ids[at] for at in order], end, length, expected, ", ".join(expected))


@functools.lru_cache(maxsize=1 << 16)
def _number(tokenizer: Tokenizer, at: int) -> Ids:
    return encode_once(tokenizer, f" {at}." if at > 1 else "1.")


def _numbered(
    tokenizer: Tokenizer, words: Sequence[Ids], common: int, repeats: tuple[int, int], rng: Random
) -> list[Ids]:
    """Numbers and words in turn, the first `common` words and the others so many times, shuffled."""
    sequence = [*words[:common]] * repeats[0] + [*words[common:]] * repeats[1]
    return [_number(tokenizer, at) + sequence[place] for at, place in enumerate(rng.permutation(len(sequence)), 1)]


def _numbered_answer(words: Sequence[str]) -> str:
    return " ".join(f"{at}. {word}" for at, word in enumerate(words, 1))


def _syllable_words(rng: Random, count: int) -> list[str]:
    """Distinct words of two syllables, or of three where many are asked for; none is part of another."""
    syllables = 2 if 2 * count <= len(_SYLLABLES) ** 2 else 3
    return draw_distinct(lambda: "".join(_SYLLABLES[at] for at in rng.integers(0, len(_SYLLABLES), syllables)), count)
