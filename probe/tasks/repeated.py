"""The paper's prompt for reading thresholds: one word, repeated after a first token that differs from it.

Where all tokens are the same, all values are the same, and attention gives them back whatever its weights: hidden
states then cannot depend on position. The paper's prompt works through the distinct first token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from probe.tasks.retrieval import encode, first_ids


def repeated_word(tokenizer: Any, word: str, length: int) -> tuple[list[int], str]:
    """`length` token ids: what the tokenizer puts first, else `first_token`, and then the word, again and again.

    Also returns which token of ours comes first; empty where the tokenizer puts one. Raises ValueError for an empty
    word.
    """
    return repeated_ids(tokenizer, word_ids(tokenizer, word), length)


def word_ids(tokenizer: Any, word: str) -> list[int]:
    """The tokens of a word within a text; ValueError for an empty one."""
    ids = list(encode(tokenizer, " " + word.strip())) if word.strip() else []
    if not ids:
        raise ValueError(f"--prompt {word!r} is empty; give a word to repeat")
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
