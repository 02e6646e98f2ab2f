"""The interface of evaluation tasks: prompts of an exact length, and scores, one a sample and metric."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from probe.statistics import ONE_LOOK, Confidence, Ends, bonett_price

if TYPE_CHECKING:
    from mesa.models import Loaded


_SHORT, _MANY = 256, 100  # keys differ in tokens: up to this length, so many prompts are tried


class EvalKey(NamedTuple):
    """What a row of the journal is of; length in tokens."""

    task: str
    method: str
    length: int


@dataclass(frozen=True)
class Metric:
    """A score. binary: 0 or 1 for each sample. of_prompts: the same for every method. most: the upper limit."""

    name: str
    unit: str
    binary: bool = False
    of_prompts: bool = False
    most: float = math.inf


@dataclass(frozen=True)
class PromptSpec:
    """What the tasks of one evaluation share. Lengths in tokens.

    samples: prompts a length. documents: token ids of the texts that NLL and essay haystacks are taken from.
    depth: the key's place, 0 to 1; None: uniform. batch: prompts decoded at once.
    """

    trained_length: int
    lengths: tuple[int, ...]
    samples: int = 100
    seed: int = 0
    documents: tuple[np.ndarray, ...] = ()
    depth: float | None = None
    batch: int = 8


@dataclass(frozen=True)
class Score:
    """One sample's score. seconds: its share of its batch's time, model calls only.

    depth: where in the prompt the answer stands, 0 (start) to 1 (end); None: nowhere, or not recorded. distances: by
    layer, of the scored tokens' states to the in-window distribution; None: not read.
    """

    length: int
    sample: int
    metric: str
    value: float
    seconds: float | None = None
    depth: float | None = None
    distances: dict[int, float] | None = None


def in_batches(
    samples: Sequence[Any], size: int, run: Callable[[Sequence[Any]], Sequence[Any]]
) -> Iterator[tuple[int, Any, Any, float]]:
    """Runs `size` samples at a time; number, sample, output and share of the batch's seconds, one sample at a time."""
    for begin in range(0, len(samples), size):
        batch = samples[begin : begin + size]
        started = time.perf_counter()
        outputs = run(batch)
        seconds = (time.perf_counter() - started) / len(batch)
        for offset, (sample, output) in enumerate(zip(batch, outputs, strict=True)):
            yield begin + offset, sample, output, seconds


class EvalTask(ABC):
    """A task by its name; `prepare` builds what `measure` runs."""

    name: str
    about: str
    metrics: tuple[Metric, ...]
    batched: ClassVar[bool] = False
    """Whether samples are run `PromptSpec.batch` at a time."""

    is_timed: ClassVar[bool] = False
    """Whether it measures time and memory itself, which checks of every layer would cost."""

    reads_depth: bool = False
    """Whether the answer's place follows `PromptSpec.depth`."""

    reads_documents: bool = False
    """Whether it reads `PromptSpec.documents`."""

    def passes(self, setting: PromptSpec) -> tuple[int, ...]:
        """The lengths that are run, one cell each; usually all."""
        return setting.lengths

    def scored(self, length: int, setting: PromptSpec) -> tuple[int, ...]:
        """The lengths that the scores of the cell at `length` are of; usually that one."""
        return (length,)

    def at_lengths(self, scores: Sequence[Score], setting: PromptSpec) -> list[Score]:
        """Scores of a cell as the setting's lengths have them, where they tell; else as they are."""
        return [*scores]

    def tokens(self, length: int, setting: PromptSpec) -> int:
        """Prompt tokens that a cell reads, roughly."""
        return length * setting.samples

    def least_samples(self, setting: PromptSpec) -> int:
        """Samples that a finished cell has at least: all, as where prompts are drawn; of texts there may be fewer."""
        return setting.samples

    def describe(self, tokenizer: Any, setting: PromptSpec) -> str:
        """The sizes of its prompts, in words; empty where `about` says all."""
        return ""

    def logits(self, length: int, setting: PromptSpec) -> int:
        """Positions whose logits are in memory at once."""
        return setting.batch if self.batched else 1

    def check(self, tokenizer: Any, length: int, setting: PromptSpec) -> None:
        """Raises Refused where there are no prompts of `length` tokens."""
        self.prepare(tokenizer, length, setting, min(setting.samples, _MANY) if length <= _SHORT else 1)

    @abstractmethod
    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[Any]:
        """`samples` seeded samples of exactly `length` tokens. Raises Refused where that cannot be."""

    @abstractmethod
    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Any], setting: PromptSpec) -> Iterator[Score]:
        """Runs the samples under whatever method is attached; the scores of a sample come one after another."""


def interval(values: Sequence[float], metric: Metric, confidence: Confidence = ONE_LOOK) -> Ends:
    """95% interval of the mean; (None, None) for fewer than two values, or than `confidence` asks for.

    Wilson's for 0 and 1, and where all of several limited scores are the same; else Student's, within the limits.
    """
    most = _counted_to(values, metric)
    if most is None:
        return _within(confidence.student(values), 0, metric.most)
    low, high = confidence.wilson(sum(values) / most, len(values))
    return low * most, high * most


def paired(values: Sequence[float], others: Sequence[float], metric: Metric, confidence: Confidence = ONE_LOOK) -> Ends:
    """95% interval of the mean difference `values` - `others`, prompt by prompt the same; as `interval`.

    Bonett and Price's in place of Wilson's.
    """
    differences = np.subtract(values, others)
    most = _counted_to(differences, metric)
    if most is None:
        return _within(confidence.student(differences.tolist()), -metric.most, metric.most)
    gained, lost = (float(np.maximum(0, signed).sum()) / most for signed in (differences, -differences))
    low, high = bonett_price(gained, lost, len(differences), confidence.z)
    return low * most, high * most


def _within(ends: Ends, least: float, most: float) -> Ends:
    """The part of an interval that the mean of limited scores can lie in."""
    low, high = ends
    if low is None or high is None or math.isinf(most):
        return ends
    return float(np.maximum(least, low)), float(np.minimum(most, high))  # NaN stays NaN


def _counted_to(values: Sequence[float] | np.ndarray, metric: Metric) -> float | None:
    """The highest score, where scores are as good as counts; None: Student's it is.

    They are where each is 0 or 1, and where all of several limited ones are the same: Student's has no width then.
    """
    if len(values) < 2:
        return None
    if metric.binary:
        return 1.0
    return metric.most if metric.most < math.inf and min(values) == max(values) else None
