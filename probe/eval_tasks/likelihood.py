"""NLL of text: of the same last tokens by length, and by position."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.errors import Refused
from mesa.models import Loaded
from probe.eval_tasks.base import EvalTask, Metric, PromptSpec, Score
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import nll, text_windows

NLL = Metric("nll", "nats/token")


@dataclass(frozen=True)
class Likelihood(EvalTask):
    """Mean negative log-likelihood of the last M/4 tokens of a text, the same tokens at every length."""

    name: str = "nll"
    about: str = "NLL of the same last M/4 tokens, by how many tokens they see"
    metrics: tuple[Metric, ...] = (NLL,)
    reads_documents: bool = True

    def least_samples(self, setting: PromptSpec) -> int:
        """As for Task: the texts may hold fewer runs than asked for."""
        return 1

    def logits(self, length: int, setting: PromptSpec) -> int:
        """As for Task: those of the scored tokens."""
        return tail_tokens(setting.trained_length)

    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[np.ndarray]:
        """Token ids of runs of text, the same for every length and method; the first special token included."""
        tail = tail_tokens(setting.trained_length)
        self._check_least(length, 2 * tail)
        windows = text_windows(setting.documents, max(setting.lengths), samples, tail)
        return tail_prompts(windows, first_ids(tokenizer), length)

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Any], setting: PromptSpec) -> Iterator[Score]:
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

    def passes(self, setting: PromptSpec) -> tuple[int, ...]:
        """The longest length alone."""
        return (max(setting.lengths),)

    def scored(self, length: int, setting: PromptSpec) -> tuple[int, ...]:
        """Every length: it ends a bucket."""
        return setting.lengths

    def logits(self, length: int, setting: PromptSpec) -> int:
        """As for Task: of all tokens."""
        return length

    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[np.ndarray]:
        """As for `Likelihood`, of the longest length."""
        self._check_least(min(setting.lengths), 8)
        first = np.array(first_ids(tokenizer), np.int64)
        windows = text_windows(setting.documents, max(setting.lengths) - len(first), samples)
        return [np.concatenate([first, window]) for window in windows]

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Any], setting: PromptSpec) -> Iterator[Score]:
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


LIKELIHOOD = (TAIL, PositionLikelihood())
