"""RULER's words to count (Hsieh et al. 2024): the common ones of a list, the frequent ones of a coded text.

Templates and sizes are those of github.com/NVIDIA/RULER (Apache-2.0), commit c3f5e3b4, `scripts/data/synthetic/`:
`common_words_extraction.py`, `freq_words_extraction.py`, `constants.py`.
cwe lists made-up words of two syllables, where RULER takes wonderwords.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probe.tasks.listed import LETTERS, Ids, Listed, TooShortError, distinct, made
from probe.tasks.retrieval import encode, encode_once, first_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

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
    rng: np.random.Generator,
    *,
    common: int = 10,
    repeats: tuple[int, int] = (30, 3),
    example: tuple[int, int] | None = (10, 3),
) -> Listed:
    """RULER's common words: a numbered list, `repeats` times a common and any other word; as many others as fit.

    example: those repeats in a worked example of as many others as common words; None: no example.
    """
    start, end = first_ids(tokenizer), encode(tokenizer, CWE_QUESTION.format(count=common))
    if example is not None:
        words = _made_up(rng, 2 * common)
        shown = _numbered(tokenizer, [*map(_encoder(tokenizer), words)], common, example, rng)
        start += (*encode(tokenizer, CWE_HEADER), *itertools.chain(*shown), *end)
        start += (*encode_once(tokenizer, " " + _count_up(words[:common])), *encode(tokenizer, "\n"))
    start += encode(tokenizer, CWE_HEADER)
    fixed = len(start) + len(end)
    room = max(0, length - fixed)
    words = _made_up(rng, 2 * common + room // (3 * repeats[1]))
    ids = [*map(_encoder(tokenizer), words)]
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
    return made(tokenizer, start, body, end, length, words[:common], _count_up(words[:common]))


def frequent_words(tokenizer: Tokenizer, length: int, rng: np.random.Generator) -> Listed:
    """RULER's frequent words: coded words by Zipf's law with alpha 2, the commonest of them dots; three are asked for.

    RULER's vocabulary of `length`/50, at least five; so many words that the fourth and the fifth differ in number.
    """
    size = max(5, length // 50)
    words = [FWE_NOISE, *distinct(lambda: "".join(rng.choice(LETTERS, FWE_LETTERS)), size - 1)]
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
    return made(tokenizer, start, [ids[at] for at in order], end, length, expected, ", ".join(expected))


def _encoder(tokenizer: Tokenizer) -> Callable[[str], Ids]:
    return lambda word: encode_once(tokenizer, f" {word}")


@functools.lru_cache(maxsize=1 << 16)
def _number(tokenizer: Tokenizer, at: int) -> Ids:
    return encode_once(tokenizer, f" {at}." if at > 1 else "1.")


def _numbered(
    tokenizer: Tokenizer, words: Sequence[Ids], common: int, repeats: tuple[int, int], rng: np.random.Generator
) -> list[Ids]:
    """Numbers and words in turn, the first `common` words and the others so many times, shuffled."""
    found = [*words[:common]] * repeats[0] + [*words[common:]] * repeats[1]
    return [_number(tokenizer, at) + found[place] for at, place in enumerate(rng.permutation(len(found)), 1)]


def _count_up(words: Sequence[str]) -> str:
    return " ".join(f"{at}. {word}" for at, word in enumerate(words, 1))


def _made_up(rng: np.random.Generator, count: int) -> list[str]:
    """Distinct words of two syllables, or of three where many are asked for; none is part of another."""
    syllables = 2 if 2 * count <= len(_SYLLABLES) ** 2 else 3
    return distinct(lambda: "".join(_SYLLABLES[at] for at in rng.integers(0, len(_SYLLABLES), syllables)), count)
