"""LongPPL: the likelihood of those tokens alone that need what stands further back (Fang et al. 2024)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mesa.models import Loaded
from probe.tasks.base import Metric, Score, Setting, Task
from probe.tasks.likelihood import TAIL, tail_tokens
from probe.tasks.score import nll

GAIN = 2.0
"""Nats by which the whole context must better a key token's likelihood (alpha of github.com/PKU-ML/LongPPL)."""
LIKELY = 2.0
"""Nats that a key token costs at most, given the whole context (-beta)."""


@dataclass(frozen=True)
class Keyed:
    """A run of text, and which of its last M/4 tokens are key tokens."""

    ids: np.ndarray
    keys: np.ndarray


@dataclass(frozen=True)
class LongPPL(Task):
    """NLL of key tokens, of the tokens that `nll` scores. One evaluator chooses them, the same for every method."""

    name: str = "longppl"
    about: str = "LongPPL: NLL of those of nll's tokens that need more than M/4 tokens before them"
    metrics: tuple[Metric, ...] = (
        Metric("key_nll", "nats/key token", higher_is_better=False),
        Metric("keys", "key tokens a text", of_prompts=True),
    )
    keyed: ClassVar[bool] = True

    def logits(self, length: int, setting: Setting) -> int:
        """As for Task: those of the scored tokens."""
        return tail_tokens(setting.trained_length)

    def prepare(self, tokenizer: Any, length: int, setting: Setting, samples: int) -> Sequence[np.ndarray]:
        """The runs of text of `nll`, with nothing chosen in them yet."""
        return TAIL.prepare(tokenizer, length, setting, samples)

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Keyed], setting: Setting) -> Iterator[Score]:
        """Mean NLL of each text's key tokens, then how many each has; a text without any has no NLL."""
        for sample, text in enumerate(prepared):
            if text.keys.any():
                started = time.perf_counter()
                losses = nll(loaded.model, text.ids, len(text.keys)).numpy()[text.keys]
                yield Score(length, sample, "key_nll", float(losses.mean()), time.perf_counter() - started)
        for sample, text in enumerate(prepared):
            yield Score(length, sample, "keys", float(text.keys.sum()))


def short_context(trained_length: int) -> int:
    """Tokens of the short context: M/4; a quarter of it, or more, shares one, as in the public code."""
    return tail_tokens(trained_length)


def key_tokens(loaded: Loaded, ids: np.ndarray, trained_length: int) -> np.ndarray:
    """Which of the last M/4 tokens of `ids` are key tokens, under whatever method is attached to the evaluator.

    Those whose NLL falls by more than `GAIN` from the short context to all of `ids`, and is below `LIKELY` then. The
    short context slides: of the tokens that share one, each sees at least `short_context` tokens.
    """
    full = nll(loaded.model, ids, tail_tokens(trained_length)).numpy()
    contexts = short_contexts(len(ids), trained_length)
    alone = np.concatenate([nll(loaded.model, ids[begin:end], end - at).numpy() for begin, at, end in contexts])
    return (alone - full > GAIN) & (full < LIKELY)


def short_contexts(length: int, trained_length: int) -> list[tuple[int, int, int]]:
    """Where each short context begins, where those tokens begin that share it, and where they end."""
    short = short_context(trained_length)
    slide = max(1, short // 4)
    starts = range(length - tail_tokens(trained_length), length, slide)
    return [(max(0, at - short), at, min(at + slide, length)) for at in starts]


LONGPPL = LongPPL()
