"""NLL of text: of the same last tokens by length, by position, and of key tokens (LongPPL)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mesa.errors import Refused
from mesa.models import Loaded
from probe.tasks.base import Metric, Score, Setting, Task
from probe.tasks.retrieval import first_ids
from probe.tasks.score import nll, text_windows

NLL = Metric("nll", "nats/token")
GAIN = 2.0
"""Nats by which the whole context must better a key token's likelihood (alpha of github.com/PKU-ML/LongPPL)."""
LIKELY = 2.0
"""Nats that a key token costs at most, given the whole context (-beta)."""


@dataclass(frozen=True)
class Likelihood(Task):
    """Mean negative log-likelihood of the last M/4 tokens of a text, the same tokens at every length."""

    name: str = "nll"
    about: str = "NLL of the same last M/4 tokens, by how many tokens they see"
    metrics: tuple[Metric, ...] = (NLL,)

    def logits(self, length: int, setting: Setting) -> int:
        """As for Task: those of the scored tokens."""
        return tail_tokens(setting.trained_length)

    def prepare(self, tokenizer: Any, length: int, setting: Setting, samples: int) -> Sequence[np.ndarray]:
        """Token ids of runs of text, the same for every length and method; the first special token included."""
        tail = tail_tokens(setting.trained_length)
        self._check_least(length, 2 * tail)
        windows = text_windows(setting.documents, max(setting.lengths), samples, tail)
        return tail_prompts(windows, first_ids(tokenizer), length)

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Any], setting: Setting) -> Iterator[Score]:
        """One score a run of text; text and method decide it, nothing is drawn."""
        tail = tail_tokens(setting.trained_length)
        for sample, ids in enumerate(prepared):
            started = time.perf_counter()
            value = float(nll(loaded.model, ids, tail, reduction="mean"))
            yield Score(length, sample, "nll", value, time.perf_counter() - started)

    def _check_least(self, length: int, least: int) -> None:
        if length < least:
            raise Refused(f"{self.name}: length={length} is below {least} tokens; ask for at least {least}")


@dataclass(frozen=True)
class PositionLikelihood(Likelihood):
    """The same by position: of the tokens from each length to the next, in one pass over the longest."""

    name: str = "nll-position"
    about: str = "NLL by position in one pass: from the length before up to each length"

    def passes(self, setting: Setting) -> tuple[int, ...]:
        """The longest length alone."""
        return (max(setting.lengths),)

    def scored(self, length: int, setting: Setting) -> tuple[int, ...]:
        """Every length: it ends a bucket."""
        return setting.lengths

    def logits(self, length: int, setting: Setting) -> int:
        """As for Task: of all tokens."""
        return length

    def prepare(self, tokenizer: Any, length: int, setting: Setting, samples: int) -> Sequence[np.ndarray]:
        """As for `Likelihood`, of the longest length."""
        self._check_least(min(setting.lengths), 8)
        first = np.array(first_ids(tokenizer), np.int64)
        windows = text_windows(setting.documents, max(setting.lengths) - len(first), samples)
        return [np.concatenate([first, window]) for window in windows]

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Any], setting: Setting) -> Iterator[Score]:
        """One score a run of text and bucket of positions."""
        ends = sorted(setting.lengths)
        for sample, ids in enumerate(prepared):
            started = time.perf_counter()
            losses = nll(loaded.model, ids, len(ids) - 1).numpy()
            seconds = time.perf_counter() - started
            for begin, end in zip([1, *ends[:-1]], ends, strict=True):
                yield Score(end, sample, "nll", float(losses[begin - 1 : end - 1].mean()), seconds)


def tail_tokens(trained_length: int) -> int:
    """Tokens over which the tail likelihood is taken: a quarter of the trained window."""
    return max(1, trained_length // 4)


def tail_prompts(windows: Sequence[np.ndarray], first: Sequence[int] | np.ndarray, length: int) -> list[np.ndarray]:
    """The windows cut to `length` tokens at their start, `first` included: the same last tokens at every length."""
    return [np.array([*first, *window[len(window) - (length - len(first)) :]]) for window in windows]


TAIL = Likelihood()
"""The task of every measured failure."""


@dataclass(frozen=True)
class Keyed:
    """A run of text, and which of its last M/4 tokens are key tokens."""

    ids: np.ndarray
    keys: np.ndarray


@dataclass(frozen=True)
class LongPPL(Likelihood):
    """NLL of key tokens, of the tokens that `nll` scores. One evaluator chooses them, the same for every method."""

    name: str = "longppl"
    about: str = "LongPPL: NLL of those of nll's tokens that need more than M/4 tokens before them"
    metrics: tuple[Metric, ...] = (
        Metric("key_nll", "nats/key token"),
        Metric("keys", "key tokens a text", of_prompts=True),
    )
    keyed: ClassVar[bool] = True

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Any], setting: Setting) -> Iterator[Score]:
        """Mean NLL of each text's key tokens, then how many each has; a text without any has no NLL."""
        for sample, text in enumerate(prepared):
            if text.keys.any():
                started = time.perf_counter()
                losses = nll(loaded.model, text.ids, len(text.keys)).numpy()[text.keys]
                yield Score(length, sample, "key_nll", float(losses.mean()), time.perf_counter() - started)
        for sample, text in enumerate(prepared):
            yield Score(length, sample, "keys", float(text.keys.sum()))


def key_tokens(loaded: Loaded, ids: np.ndarray, trained_length: int) -> np.ndarray:
    """Which of the last M/4 tokens of `ids` are key tokens, under whatever method is attached to the evaluator.

    Those whose NLL falls by more than `GAIN` from the short context to all of `ids`, and is below `LIKELY` then. The
    short context, M/4 tokens, slides: of the tokens that share one, each sees at least so many.
    """
    full = nll(loaded.model, ids, tail_tokens(trained_length)).numpy()
    contexts = short_contexts(len(ids), trained_length)
    alone = np.concatenate([nll(loaded.model, ids[begin:end], end - at).numpy() for begin, at, end in contexts])
    return (alone - full > GAIN) & (full < LIKELY)


def short_contexts(length: int, trained_length: int) -> list[tuple[int, int, int]]:
    """Where each short context begins, where those tokens begin that share it, and where they end."""
    short = tail_tokens(trained_length)
    slide = max(1, short // 4)  # so many tokens share one, as in the public code
    starts = range(length - short, length, slide)
    return [(max(0, at - short), at, min(at + slide, length)) for at in starts]


LIKELIHOOD = (TAIL, PositionLikelihood(), LongPPL())
