"""NLL of text: of the same last tokens by length, by position, over a sliding window, and of key tokens (LongPPL)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mesa.models import Loaded
from probe.tasks.base import Metric, Score, Setting, Task
from probe.tasks.retrieval import first_ids
from probe.tasks.score import nll, text_windows

NLL = Metric("nll", "nats/token", higher_is_better=False)
GAIN = 2.0
"""Nats by which the whole context must better a key token's likelihood (alpha of github.com/PKU-ML/LongPPL)."""
LIKELY = 2.0
"""Nats that a key token costs at most, given the whole context (-beta)."""


@dataclass(frozen=True)
class Likelihood(Task):
    """Mean negative log-likelihood of text. kind: tail, position or sliding, as `about` says."""

    name: str
    about: str
    kind: str
    metrics: tuple[Metric, ...] = (NLL,)

    def passes(self, setting: Setting) -> tuple[int, ...]:
        """All lengths; by position, the longest alone."""
        return (max(setting.lengths),) if self.kind == "position" else setting.lengths

    def scored(self, length: int, setting: Setting) -> tuple[int, ...]:
        """That length; by position, every length ends a bucket."""
        return setting.lengths if self.kind == "position" else (length,)

    def tokens(self, length: int, setting: Setting) -> int:
        """As for Task; a window slides over a text of twice the longest length."""
        windows = (2 * max(setting.lengths) - length) // (length // 2) + 1 if self.kind == "sliding" else 1
        return windows * length * setting.samples

    def logits(self, length: int, setting: Setting) -> int:
        """As for Task: those of the scored tokens."""
        return {"tail": tail_tokens(setting.trained_length), "position": length, "sliding": length - length // 2}[
            self.kind
        ]

    def prepare(self, tokenizer: Any, length: int, setting: Setting, samples: int) -> Sequence[np.ndarray]:
        """Token ids of runs of text, the same for every length and method; the first special token included."""
        first = np.array(first_ids(tokenizer), np.int64)
        longest = max(setting.lengths)
        least = 2 * tail_tokens(setting.trained_length) if self.kind == "tail" else 8
        shortest = min(self.scored(length, setting))
        if shortest < least:
            raise ValueError(f"{self.name}: length={shortest} is below {least} tokens; ask for at least {least}")
        if self.kind == "tail":
            tail = tail_tokens(setting.trained_length)
            return tail_prompts(text_windows(setting.documents, longest, samples, tail), first, length)
        room = (2 if self.kind == "sliding" else 1) * longest - len(first)
        return [np.concatenate([first, window]) for window in text_windows(setting.documents, room, samples)]

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[np.ndarray], setting: Setting) -> Iterator[Score]:
        """One score a run of text (and bucket of positions); text and method decide it, nothing is drawn."""
        for sample, ids in enumerate(prepared):
            started = time.perf_counter()
            if self.kind == "sliding":
                parts = [(length, self._sliding(loaded, ids, length))]
            elif self.kind == "position":
                losses = nll(loaded.model, ids, len(ids) - 1).numpy()
                ends = sorted(setting.lengths)
                spans = zip([1, *ends[:-1]], ends, strict=True)
                parts = [(end, float(losses[begin - 1 : end - 1].mean())) for begin, end in spans]
            else:
                tail = tail_tokens(setting.trained_length)
                parts = [(length, float(nll(loaded.model, ids, tail, reduction="mean")))]
            seconds = time.perf_counter() - started
            for at, value in parts:
                yield Score(at, sample, "nll", value, seconds)

    def _sliding(self, loaded: Loaded, ids: np.ndarray, length: int) -> float:
        """Mean over all tokens from `length`/2 on, each seeing between `length`/2 and `length` tokens."""
        half = length // 2
        starts = range(0, len(ids) - length + 1, half)
        runs = (ids[start : start + length] for start in starts)
        return float(np.mean([nll(loaded.model, run, length - half).numpy().mean() for run in runs]))


def tail_tokens(trained_length: int) -> int:
    """Tokens over which the tail likelihood is taken: a quarter of the trained window."""
    return max(1, trained_length // 4)


def tail_prompts(windows: Sequence[np.ndarray], first: Sequence[int] | np.ndarray, length: int) -> list[np.ndarray]:
    """The windows cut to `length` tokens at their start, `first` included: the same last tokens at every length."""
    return [np.array([*first, *window[len(window) - (length - len(first)) :]]) for window in windows]


LIKELIHOOD = (
    Likelihood("nll", "NLL of the same last M/4 tokens, by how many tokens they see", "tail"),
    Likelihood("nll-position", "NLL by position in one pass: from the length before up to each length", "position"),
    Likelihood("nll-sliding", "NLL over a window of that length, sliding by half of it", "sliding"),
)
TAIL = LIKELIHOOD[0]
"""The task of every measured failure."""


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
