"""Prompts of RULER's variable tracking (Hsieh et al. 2024) of an exact token length, whose answer is a list of strings.

Template and sizes are those of github.com/NVIDIA/RULER (Apache-2.0), commit c3f5e3b4, `scripts/data/synthetic/`:
`variable_tracking.py`, `constants.py`. Names and values are drawn by us; no space ends a prompt (the answer begins with
it). Pieces are tokenized one by one; line breaks after the header make up the length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import PASSKEY_FILLER, Prompt, encode, encode_once, first_ids, random_key, room_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

Ids = tuple[int, ...]
Random = np.random.Generator
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


@dataclass(frozen=True)
class ListPrompt(Prompt):
    """A prompt with several answers. expected: the strings that RULER looks for in what is generated.

    key_position: where what follows the header begins.
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
    tokenizer: Tokenizer, start: Ids, body: Sequence[Ids], end: Ids, length: int, expected: Sequence[str]
) -> ListPrompt:
    """The prompt, answered by all strings `expected`; line breaks after its header make up the length."""
    missing = length - len(start) - sum(map(len, body)) - len(end)
    newline = encode(tokenizer, "\n")[-1:]
    answer = " ".join(expected)
    ids = (*start, *(newline * missing), *itertools.chain(*body), *end)
    return ListPrompt(ids, encode_once(tokenizer, " " + answer), answer, len(start) + missing, tuple(expected))


def _example(tokenizer: Tokenizer, header: str, body: Sequence[Ids], question: Ids, answer: str) -> Ids:
    """A worked example that stands before the task."""
    answer_ids = (*encode_once(tokenizer, " " + answer), *encode(tokenizer, "\n"))
    return (*encode(tokenizer, header), *itertools.chain(*body), *question, *answer_ids)


VT_HEADER = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n"
VT_NOISE = "\n" + "".join(PASSKEY_FILLER).strip()
VT_QUESTION = (
    "\nQuestion: Find all variables that are assigned the value {value} in the text above."
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {value}, they are:"
)


def variables(
    tokenizer: Tokenizer, length: int, rng: Random, setting: PromptSpec, *, hops: int, example: int | None
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
    return assemble(tokenizer, start, insert_pieces(rounds, chain, rng), end, length, names)


def _chain(tokenizer: Tokenizer, rng: Random, hops: int, letters: int) -> tuple[list[str], list[Ids], Ids]:
    """Names, assignments and the question of a chain of variables."""
    names = draw_distinct(lambda: "".join(rng.choice(LETTERS, letters)).upper(), hops + 1)
    value = random_key(rng)
    assigned = [value, *(f"VAR {name}" for name in names)]
    lines = [encode_once(tokenizer, f"\nVAR {name} = {text}") for name, text in zip(names, assigned, strict=False)]
    return names, lines, encode_once(tokenizer, VT_QUESTION.format(value=value, count=hops + 1))
