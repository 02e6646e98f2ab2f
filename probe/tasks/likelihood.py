"""NLL tasks: of the same last tokens by length, by position in one pass, and over a sliding window."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mesa.models import Loaded
from probe.tasks.base import Metric, Score, Setting, Task
from probe.tasks.retrieval import first_ids
from probe.tasks.score import text_windows

SLICE = 1024
"""Tokens whose logits are copied at once."""

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
        return {"tail": self._tail(setting), "position": length, "sliding": length - length // 2}[self.kind]

    def prepare(self, tokenizer: Any, length: int, setting: Setting, samples: int) -> Sequence[np.ndarray]:
        """Token ids of runs of text, the same for every length and method; the first special token included."""
        first = np.array(first_ids(tokenizer), np.int64)
        longest, tail = max(setting.lengths), self._tail(setting)
        least = 2 * tail if self.kind == "tail" else 8
        shortest = min(self.scored(length, setting))
        if shortest < least:
            raise ValueError(f"{self.name}: length={shortest} is below {least} tokens; ask for at least {least}")
        room = (2 if self.kind == "sliding" else 1) * longest - len(first)
        windows = text_windows(setting.documents, room, samples)
        if self.kind == "tail":  # the same last tokens at every length
            windows = [window[len(window) - (length - len(first)) :] for window in windows]
        return [np.concatenate([first, window]) for window in windows]

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[np.ndarray], setting: Setting) -> Iterator[Score]:
        """One score a run of text (and bucket of positions); text and method decide it, nothing is drawn."""
        for sample, ids in enumerate(prepared):
            started = time.perf_counter()
            if self.kind == "sliding":
                parts = [(length, self._sliding(loaded, ids, length))]
            elif self.kind == "position":
                losses = token_nll(loaded, ids, len(ids) - 1)
                ends = sorted(setting.lengths)
                spans = zip([1, *ends[:-1]], ends, strict=True)
                parts = [(end, float(losses[begin - 1 : end - 1].mean())) for begin, end in spans]
            else:
                parts = [(length, float(token_nll(loaded, ids, self._tail(setting)).mean()))]
            seconds = time.perf_counter() - started
            for at, value in parts:
                yield Score(at, sample, "nll", value, seconds)

    def _sliding(self, loaded: Loaded, ids: np.ndarray, length: int) -> float:
        """Mean over all tokens from `length`/2 on, each seeing between `length`/2 and `length` tokens."""
        half = length // 2
        starts = range(0, len(ids) - length + 1, half)
        return float(
            np.mean([token_nll(loaded, ids[start : start + length], length - half).mean() for start in starts])
        )

    @staticmethod
    def _tail(setting: Setting) -> int:
        return max(1, setting.trained_length // 4)


@torch.no_grad()
def token_nll(loaded: Loaded, ids: np.ndarray, last: int) -> np.ndarray:
    """NLL (nats) of each of the `last` tokens of `ids`, after all tokens before it."""
    tokens = torch.tensor(ids, device=loaded.model.device)[None]
    logits = loaded.model(tokens, use_cache=False, logits_to_keep=last + 1).logits[0, :-1]
    slices = zip(logits.split(SLICE), tokens[0, -last:].to(logits.device).split(SLICE), strict=True)
    losses = [torch.nn.functional.cross_entropy(part.float(), right, reduction="none") for part, right in slices]
    return torch.cat(losses).cpu().numpy()


LIKELIHOOD = (
    Likelihood("nll", "NLL of the same last M/4 tokens, by how many tokens they see", "tail"),
    Likelihood("nll-position", "NLL by position in one pass: from the length before up to each length", "position"),
    Likelihood("nll-sliding", "NLL over a window of that length, sliding by half of it", "sliding"),
)
