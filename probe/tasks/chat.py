"""The passkey as a user's message in the tokenizer's own chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probe.tasks.retrieval import (
    PASSKEY_HEADER,
    PASSKEY_KEY,
    PASSKEY_QUESTION,
    Prompt,
    random_key,
    repeated_sentences,
    single_key,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

_PLACE = "USERTEXT"
_ANSWER = " The pass key is"


def chat_frame(tokenizer: Tokenizer) -> tuple[str, str]:
    """What the chat template puts before a user's message, and after it up to the assistant's answer.

    Raises ValueError for a tokenizer without a template, and for a template that does not put the text as it is.
    """
    if not tokenizer.chat_template:
        raise ValueError("passkey-chat: this tokenizer has no chat template; use the task passkey")
    messages = [{"role": "user", "content": _PLACE}]
    before, *after = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)).split(
        _PLACE
    )
    if len(after) != 1:
        raise ValueError(
            f"passkey-chat: this tokenizer's chat template has the user's text, as it is, {len(after)} times in place "
            "of once; use the task passkey"
        )
    return before, after[0]


def passkey_chat(tokenizer: Tokenizer, length: int, rng: np.random.Generator, *, depth: float | None = None) -> Prompt:
    """The paper's passkey prompt of exactly `length` tokens, the template's included; the answer is begun.

    Up to the question it is the user's message; "The pass key is" is the assistant's. What stands first is the
    template's own, as in transformers' chats: the tokenizer adds nothing. Errors as for `passkey` and `chat_frame`.
    """
    before, after = chat_frame(tokenizer)
    key = random_key(rng)
    depth = float(rng.random()) if depth is None else depth
    question = PASSKEY_QUESTION.removesuffix(_ANSWER) + after + (_ANSWER.lstrip() if after[-1:].isspace() else _ANSWER)
    return single_key(
        tokenizer,
        length,
        before + PASSKEY_HEADER,
        PASSKEY_KEY.format(key=key),
        question,
        key,
        repeated_sentences(tokenizer),
        depth,
        first=(),
    )
