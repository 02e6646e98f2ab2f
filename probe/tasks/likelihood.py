"""NLL tasks: of the same last tokens by length, by position in one pass, and over a sliding window."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.models import Loaded
from probe.tasks.base import Metric, Score, Setting, Task
from probe.tasks.retrieval import first_ids
from probe.tasks.score import nll, text_windows

NLL = Metric("nll", "nats/token", higher_is_better=False)


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
