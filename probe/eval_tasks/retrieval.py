"""Prompts of an exact token length: the paper's passkey and repeated word, RULER's single needle, LongEval's lines.

Every builder takes `length`, the number of prompt tokens with the first special token included, and returns a
`Prompt`. The pieces of a prompt are tokenized one by one, and only filler is cut, so the length is exact.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mesa.errors import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

ADJECTIVES = (
    "able brave bright calm clear cold crisp damp dear dry early fair fast fine flat fresh glad gray happy heavy "
    "huge icy keen large lazy little lone lucky merry mild new noble old plain proud quick rapid ready ripe round "
    "rusty safe shiny shy silly sleepy slow smart soft sour steep strong sweet tall tender tidy tough vast weak "
    "wide wise young"
).split()

NOUNS = (
    "acorn apple badge barn beach bear bench bird bone boot bowl bread bridge bucket button cactus camel canoe "
    "carrot cat chair cherry clock coat comet cow crane crown deer dog dove drum eagle egg falcon feather field "
    "fish flame flute fork frog gate giraffe goat grape harp hawk honey house jacket jewel key kite ladder lamp "
    "lemon lizard marble melon monkey moth mouse nest ocean orange owl panda parrot pear pebble pepper pigeon "
    "pine plum potato rabbit raven ring robin rope sail salt seal ship silver snail snow"
).split()
"""The words that keys and line names are made of."""

PASSKEY_HEADER = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there."
)
PASSKEY_FILLER = (
    " The grass is green.",
    " The sky is blue.",
    " The sun is yellow.",
    " Here we go.",
    " There and back again.",
)
PASSKEY_KEY = " The pass key is {key}. Remember it. {key} is the pass key."
PASSKEY_QUESTION = "\nWhat is the pass key? The pass key is"
PASSKEY_ENHANCED = {
    "question": ("Q: what is the passkey in below text? ", "\nWhat is the pass key?\nA:"),
    "answer": ("Q: ", "\nWhat is the pass key?\nA: the passkey is"),
}
"""The paper's enhanced prompts (appendix "Enhanced Prompts"): what stands before the sample, and its question."""
SENTENCE = 12
"""Tokens before the number in a reply to a question that leaves its form open, as in "The pass key is 12345"."""

NEEDLE_HEADER = (
    "A special magic number is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the number afterwards.\n"
)
NEEDLE_KEY = "\nOne of the special magic numbers for {name} is: {key}.\n"
NEEDLE_QUESTION = (
    "\nWhat is the special magic number for {name} mentioned in the provided text?"
    " The special magic number for {name} mentioned in the provided text is"
)

LINES_HEADER = (
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
    "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its "
    "corresponding <REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding "
    "<REGISTER_CONTENT> of a certain line index. Now the record start:\n"
)
LINES_LINE = "\nline {name}: REGISTER_CONTENT is <{key}>"
LINES_QUESTION = (
    "\nNow the record is over. Tell me what is the <REGISTER_CONTENT> in line {name}? I need the number."
    " The <REGISTER_CONTENT> in line {name} is <"
)


Filler = Callable[[int], Sequence[Sequence[int]]]
"""Called with a number of tokens; returns sentences (lists of token ids) with at least that many tokens in all."""


@dataclass(frozen=True)
class Prompt:
    """Token ids of a prompt and of its one right answer."""

    ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    answer: str
    key_position: int
    """Position (tokens) at which the sentence with the answer begins."""
    before: int = field(default=0, kw_only=True)
    """Tokens that may stand before the answer, which is then the reply's first number; 0: the reply begins with it."""


def encode_once(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Token ids of `text`, without special tokens; text that begins with white space goes on from other text.

    Tokenizers of the SentencePiece kind put a space before whatever they are passed, which would double it here.
    """
    ids = tokenizer.encode(text, add_special_tokens=False)
    if text[:1].isspace():
        word = encode(tokenizer, "a")
        joined = tokenizer.encode("a" + text, add_special_tokens=False)
        if tuple(joined[: len(word)]) == word:
            ids = joined[len(word) :]
    return tuple(ids)


encode = functools.lru_cache(maxsize=4096)(encode_once)
"""`encode_once`, remembered."""


@functools.lru_cache(maxsize=64)
def first_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The special tokens that the tokenizer puts before a text, if any."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    ids = tokenizer.encode("a")
    return tuple(ids[: next(n for n in range(len(ids)) if ids[n : n + len(plain)] == plain)])


def repeated_sentences(tokenizer: Tokenizer) -> Filler:
    """Filler that repeats `PASSKEY_FILLER` in order (the paper's haystack)."""
    encoded = [encode(tokenizer, sentence) for sentence in PASSKEY_FILLER]
    round_tokens = sum(map(len, encoded))
    return lambda tokens: encoded * (tokens // round_tokens + 1)


def random_sentences(tokenizer: Tokenizer, rng: np.random.Generator) -> Filler:
    """Filler of sentences of eight random words."""

    def fill(tokens: int) -> list[Sequence[int]]:
        sentences: list[Sequence[int]] = []
        left = tokens
        while left > 0:
            words = rng.choice([*ADJECTIVES, *NOUNS], 8)
            sentences.append(encode_once(tokenizer, f" {' '.join(words)}."))
            left -= len(sentences[-1])
        return sentences

    return fill


def text_filler(documents: Sequence[np.ndarray], rng: np.random.Generator) -> Filler:
    """Filler of running text from a random place, in sentences of 16 tokens.

    Where no document is long enough they are strung together, again and again if need be.
    """

    def fill(tokens: int) -> list[Sequence[int]]:
        long_enough = [ids for ids in documents if len(ids) >= tokens]
        if not long_enough:
            strung = np.concatenate(documents)
            long_enough = [np.tile(strung, -(-tokens // len(strung)))]
        document = long_enough[int(rng.integers(len(long_enough)))]
        begin = int(rng.integers(len(document) - tokens + 1))
        ids = document[begin : begin + tokens].tolist()
        return [ids[place : place + 16] for place in range(0, tokens, 16)]

    return fill


def random_name(rng: np.random.Generator) -> str:
    """An adjective-noun pair, e.g. 'brave-otter'."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def random_key(rng: np.random.Generator, digits: int = 5) -> str:
    """A number of exactly `digits` digits, without a leading zero."""
    return str(rng.integers(10 ** (digits - 1), 10**digits))


class TooShortError(Refused):
    """A prompt's length that cannot hold the fixed text. needed: the tokens that can."""

    def __init__(self, length: int, needed: int) -> None:
        super().__init__(
            f"length={length} is below the task's fixed text of {needed} tokens; ask for at least {needed} (--lengths)"
        )
        self.needed = needed


def room_for(length: int, *fixed: Sequence[int]) -> int:
    """Tokens left for what fills the prompt. Raises TooShortError."""
    needed = sum(map(len, fixed))
    if length < needed:
        raise TooShortError(length, needed)
    return length - needed


def single_key(
    tokenizer: Tokenizer, length: int, header: str, sentence: str, question: str, key: str, filler: Filler, depth: float
) -> Prompt:
    """A prompt of exactly `length` tokens, with `sentence` at the end of filler's nearest to the fraction `depth`."""
    start = first_ids(tokenizer) + encode(tokenizer, header)
    middle, end = encode(tokenizer, sentence), encode(tokenizer, question)
    room = room_for(length, start, middle, end)
    sentences = filler(room)
    ends = [0, *(total for total in itertools.accumulate(map(len, sentences)) if total < room)]
    cut, ids = min(ends, key=lambda end: abs(end - depth * room)), [*itertools.chain(*sentences)][:room]
    return Prompt(
        ids=(*start, *ids[:cut], *middle, *ids[cut:], *end),
        answer_ids=encode(tokenizer, ("" if question.endswith("<") else " ") + key),
        answer=key,
        key_position=len(start) + cut,
    )


def passkey(
    tokenizer: Tokenizer,
    length: int,
    rng: np.random.Generator,
    *,
    depth: float | None = None,
    enhanced: str | None = None,
) -> Prompt:
    """The paper's passkey prompt (appendix "Passkey Retrieval Dataset") of exactly `length` tokens.

    `depth` is the key's place in the filler, 0 (start) to 1 (end); drawn uniformly when None. `enhanced` is None or
    one of `PASSKEY_ENHANCED`.
    Raises Refused when `length` cannot hold the fixed text.
    """
    key = random_key(rng)
    depth = float(rng.random()) if depth is None else depth
    sentence = PASSKEY_KEY.format(key=key)
    before, question = PASSKEY_ENHANCED[enhanced] if enhanced else ("", PASSKEY_QUESTION)
    prompt = single_key(
        tokenizer, length, before + PASSKEY_HEADER, sentence, question, key, repeated_sentences(tokenizer), depth
    )
    return replace(prompt, before=SENTENCE) if question.endswith("A:") else prompt


def needle(
    tokenizer: Tokenizer, length: int, rng: np.random.Generator, *, filler: Filler, depth: float | None = None
) -> Prompt:
    """RULER's single needle (niah_single) in `filler`, exactly `length` tokens; arguments as for `passkey`."""
    name, key = random_name(rng), random_key(rng)
    depth = float(rng.random()) if depth is None else depth
    sentence = NEEDLE_KEY.format(name=name, key=key)
    question = NEEDLE_QUESTION.format(name=name)
    return single_key(tokenizer, length, NEEDLE_HEADER, sentence, question, key, filler, depth)


def lines(tokenizer: Tokenizer, length: int, rng: np.random.Generator) -> Prompt:
    """LongEval's line retrieval: as many lines as fit, one asked for; the rest is filled with line breaks."""
    start = first_ids(tokenizer) + encode(tokenizer, LINES_HEADER)
    names: dict[str, str] = {}
    body: list[tuple[int, ...]] = []
    question: tuple[int, ...] = ()
    room = length - len(start)
    used = 0
    while True:
        name, key = random_name(rng), random_key(rng)
        if name in names and 2 * len(names) > len(ADJECTIVES) * len(NOUNS):  # names run out
            name = f"{name}-{len(names)}"
        line = encode_once(tokenizer, LINES_LINE.format(name=name, key=key))
        line_question = encode_once(tokenizer, LINES_QUESTION.format(name=name))
        if used + len(line) + max(len(question), len(line_question)) > room:
            break
        if name in names:
            continue
        names[name] = key
        body.append(line)
        used += len(line)
        question = max(question, line_question, key=len)
    if not body:
        raise TooShortError(length, len(start) + len(line) + len(line_question))
    index = int(rng.integers(len(body)))
    name = list(names)[index]
    line_question = encode_once(tokenizer, LINES_QUESTION.format(name=name))
    missing = room - used - len(line_question)
    newline = encode(tokenizer, "\n")[-1:]
    return Prompt(
        ids=(*start, *(newline * missing), *(token for line in body for token in line), *line_question),
        answer_ids=encode(tokenizer, names[name]),
        answer=names[name],
        key_position=len(start) + missing + sum(map(len, body[:index])),
    )


def repeated_word(tokenizer: Any, word: str, length: int) -> tuple[list[int], str]:
    """The paper's prompt for thresholds, `length` token ids: a first token that differs from the word, then the word.

    With one token alone, all values are the same, attention returns them whatever its weights, and hidden states cannot
    depend on position. The first token is the tokenizer's, else `first_token`, which is returned too, else "". Raises
    Refused for an empty word.
    """
    return repeated_ids(tokenizer, word_ids(tokenizer, word), length)


def word_ids(tokenizer: Any, word: str) -> list[int]:
    """The tokens of a word within a text; Refused for an empty one."""
    ids = list(encode(tokenizer, " " + word.strip())) if word.strip() else []
    if not ids:
        raise Refused(f"--prompt {word!r} is empty; give a word to repeat")
    return ids


def repeated_ids(tokenizer: Any, repeated: Sequence[int], length: int) -> tuple[list[int], str]:
    """As `repeated_word`, for a word's token ids."""
    first, added = list(first_ids(tokenizer)), ""
    if set(first) <= set(repeated):
        first, added = [first_token(tokenizer, repeated)], "added"
    room = length - len(first)
    ids = first + (list(repeated) * math.ceil(room / len(repeated)))[:room]
    return ids, tokenizer.convert_ids_to_tokens(first[0]) if added else ""


def first_token(tokenizer: Any, others: Sequence[int]) -> int:
    """The tokenizer's bos, else its eos, another special token or any token, that is none of `others`."""
    special = [tokenizer.bos_token_id, tokenizer.eos_token_id, *tokenizer.all_special_ids]
    taken = {*others, None}
    return next(token for token in (*special, *range(len(tokenizer))) if token not in taken)
