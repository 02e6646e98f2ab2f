"""What `mesa-lens eval` measured, as its summary.json and harness.json hold it. No torch."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from probe.eval_tasks.base import Score
from probe.files import JsonObject
from probe.store.result_file import Number, ResultFile, RunSummary


class EvalKey(NamedTuple):
    """What a row of the journal is of; length in tokens."""

    task: str
    method: str
    length: int


class Sample(NamedTuple):
    """A score of one prompt or text, a row of samples.csv."""

    task: str
    method: str
    length: int
    sample: int
    metric: str
    score: float
    seconds: float | None = None
    peak_mib: float | None = None


@dataclass(frozen=True)
class PairedDifference:
    """A mean less the reference's on the n samples of both, with its paired 95% interval; NaN where there is none."""

    reference: str
    mean: Number
    low: Number
    high: Number
    n: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The mean of a metric over the samples of a task, under a method, at a length."""

    task: str
    about: str = ""
    """The task in words."""
    metric: str
    unit: str
    of_prompts: bool = False
    """Whether it is the same for every method; tables leave it out."""
    method: str
    length: int
    """In tokens."""
    mean: Number
    low: Number
    """95% interval over samples; NaN where there is none."""
    high: Number
    n: int
    """Number of samples."""
    difference: PairedDifference | None = None
    """None for the reference, and where it was not run."""


@dataclass(frozen=True, kw_only=True)
class Evaluated(RunSummary):
    """The summary of `mesa-lens eval`."""

    sizes: dict[str, str] = field(default_factory=dict)
    """Of tasks, in words."""
    out_of_memory: list[EvalKey]
    """Left out, since a prompt did not fit."""
    failed: list[EvalKey] = field(default_factory=list)
    """Left out, since no worker could finish them."""
    tasks_left: int
    cells: list[Cell]
    """Lengths in order."""
    version: Literal[1] = 1


@dataclass(frozen=True)
class HarnessScores:
    """The scores of lm-eval's tasks."""

    model: str
    max_length: int
    """Of a prompt, in tokens."""
    results: dict[str, dict[str, dict[str, Number]]]
    """lm-eval's numbers by method, part of a task, and lm-eval's name, such as 'acc,none'.

    Also `shots`, `documents`, and `documents_cut`, those with a prompt that was cut on the left.
    """
    limit: int | None = None
    """Documents of a task; None: all."""
    failed: list[EvalKey] = field(default_factory=list)
    """Left out, since no worker could finish them."""
    origin: dict[str, str] | None = None
    """Of weights and tokenizer, as `mesa.models.origin` tells them; None: not recorded, by an earlier version."""
    version: Literal[1] = 1


_SCORES = TypeAdapter(list[Score])


def scores_of(row: JsonObject) -> list[Score]:
    """The scores in a row of the journal. Raises pydantic's ValidationError for others."""
    return _SCORES.validate_python(row["scores"])


EVALUATED = ResultFile(Path("summary.json"), Evaluated, by="eval")
HARNESS_SCORES = ResultFile(Path("harness.json"), HarnessScores, by="eval")
"""In the folder that `mesa-lens eval` writes to."""
