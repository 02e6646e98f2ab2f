"""RULER's variable tracking (Hsieh et al. 2024): a chain of assignments in repeated sentences.

Templates and sizes are those of github.com/NVIDIA/RULER (Apache-2.0), commit c3f5e3b4, `scripts/data/synthetic/`:
`variable_tracking.py`, `constants.py`.
No space ends the prompt: the answer begins with it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from probe.tasks.listed import LETTERS, Ids, Listed, distinct, made, mixed, room_for
from probe.tasks.retrieval import PASSKEY_FILLER, encode, encode_once, first_ids, random_key

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

VT_HEADER = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n"
VT_NOISE = "\n" + "".join(PASSKEY_FILLER).strip()
VT_QUESTION = (
    "\nQuestion: Find all variables that are assigned the value {value} in the text above."
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {value}, they are:"
)


def variables(
    tokenizer: Tokenizer, length: int, rng: np.random.Generator, *, hops: int = 4, example: int | None = 10
) -> Listed:
    """RULER's variable tracking, one chain in repeated sentences. example: its rounds of them; None: no example."""
    start = first_ids(tokenizer)
    if example is not None:
        names, chain, end = _chain(tokenizer, rng, hops, 3)
        rounds = [encode(tokenizer, VT_NOISE)] * example
        shown = mixed(rounds, chain, rng)
        start += (*encode(tokenizer, VT_HEADER), *itertools.chain(*shown), *end)
        start += (*encode_once(tokenizer, " " + " ".join(names)), *encode(tokenizer, "\n"))
    names, chain, end = _chain(tokenizer, rng, hops, 5)
    start += encode(tokenizer, VT_HEADER)
    noise = encode(tokenizer, VT_NOISE)
    room = room_for(length, start, end, *chain)
    rounds = [noise[: room - at] for at in range(0, room, len(noise))]
    return made(tokenizer, start, mixed(rounds, chain, rng), end, length, names, " ".join(names))


def _chain(tokenizer: Tokenizer, rng: np.random.Generator, hops: int, letters: int) -> tuple[list[str], list[Ids], Ids]:
    """Names, assignments and the question of a chain of variables."""
    names = distinct(lambda: "".join(rng.choice(LETTERS, letters)).upper(), hops + 1)
    value = random_key(rng)
    given = [value, *(f"VAR {name}" for name in names)]
    lines = [encode_once(tokenizer, f"\nVAR {name} = {held}") for name, held in zip(names, given, strict=False)]
    return names, lines, encode_once(tokenizer, VT_QUESTION.format(value=value, count=hops + 1))
