"""What interventions are measured by: the same last tokens of text, or the right answer to a passkey."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from probe.mechanism.passes import Item
from probe.tasks.base import Setting
from probe.tasks.finding import PASSKEY
from probe.tasks.likelihood import TAIL, tail_tokens

BLOCKS = 8
"""Parts that the scored tokens of a text are averaged in, so that one text too has an interval."""
MEASURES = ("nll", "passkey")


def items(measure: str, tokenizer: Any, length: int, setting: Setting) -> list[Item]:
    """`setting.samples` items of a measure.

    nll: texts of `length` tokens, the last M/4 scored. passkey: the paper's prompts of `length` tokens with their right
    answer behind them, which is scored. Raises ValueError where the text or the tokenizer cannot give them.
    """
    if measure == "nll":
        texts = TAIL.prepare(tokenizer, length, setting, setting.samples)
        return [Item(tuple(ids.tolist()), tail_tokens(setting.trained_length)) for ids in texts]
    prompts = PASSKEY.prepare(tokenizer, length, setting, setting.samples)
    return [Item((*each.ids, *each.answer_ids), len(each.answer_ids), len(each.ids)) for each in prompts]


def blocks(measure: str, losses: Sequence[float] | np.ndarray) -> list[float]:
    """Mean loss by block of scored tokens; an answer is one block."""
    parts = np.array_split(np.asarray(losses, float), min(BLOCKS, len(losses)) if measure == "nll" else 1)
    return [float(part.mean()) for part in parts]
