"""Prompts whose answer is a list of strings, put together exactly to the token: what RULER's tasks share.

Pieces are tokenized one by one; line breaks after the header make up the length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probe.tasks.retrieval import Prompt, encode, encode_once

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

Ids = tuple[int, ...]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


class TooShortError(ValueError):
    """A prompt's length that cannot hold the fixed text. needed: the tokens that can."""

    def __init__(self, length: int, needed: int) -> None:
        super().__init__(
            f"length={length} is below the task's fixed text of {needed} tokens; ask for at least {needed}"
        )
        self.needed = needed


@dataclass(frozen=True)
class Listed(Prompt):
    """A prompt with several answers. expected: the strings that RULER looks for in what is generated.

    key_position: where the one line with the answer begins; where there are more, the first thing after the header.
    """

    expected: tuple[str, ...]


def mixed(filler: Sequence[Ids], needles: Sequence[Ids], rng: np.random.Generator) -> list[Ids]:
    """The needles, in order, at places among the filler; each at one of its own where there are enough."""
    places = len(filler) + 1
    drawn = np.sort(rng.choice(places, len(needles), replace=places < len(needles)))
    found = list(filler)
    for offset, (place, needle) in enumerate(zip(drawn, needles, strict=True)):
        found.insert(int(place) + offset, needle)
    return found


def distinct(draw: Callable[[], str], count: int) -> list[str]:
    """`count` different texts, in the order drawn."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)


def room_for(length: int, *fixed: Ids) -> int:
    """Tokens left for what fills the prompt. Raises TooShortError."""
    needed = sum(map(len, fixed))
    if length < needed:
        raise TooShortError(length, needed)
    return length - needed


def made(
    tokenizer: Tokenizer,
    start: Ids,
    body: Sequence[Ids],
    end: Ids,
    length: int,
    expected: Sequence[str],
    answer: str,
    needle: int = 0,
) -> Listed:
    """The prompt; line breaks after its header make up the length. needle: which piece has the answer."""
    missing = length - len(start) - sum(map(len, body)) - len(end)
    newline = encode(tokenizer, "\n")[-1:]
    before = len(start) + missing + sum(map(len, body[:needle]))
    ids = (*start, *(newline * missing), *itertools.chain(*body), *end)
    return Listed(ids, encode_once(tokenizer, " " + answer), answer, before, tuple(expected))
