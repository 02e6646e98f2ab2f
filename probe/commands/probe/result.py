"""The summary of a run as types."""

from __future__ import annotations

import math
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic.dataclasses import dataclass

from probe.files import read_result
from probe.glossary import explained, template
from probe.run_folder import REPORTED
from probe.store.reader import StoredRun, open_run, store_mark
from probe.store.result_file import Number, ResultFile, formerly
from probe.tables import Table, filled, plain_table
from probe.thresholds.drift_onset import DriftOnset
from probe.thresholds.failure import Failure, PredictedFailure
from probe.thresholds.result import Difference, Evidence


@dataclass(frozen=True)
class NllAtLongest:
    """Tail NLL at the longest measured length, nats/token, with its 95% interval over texts."""

    length: int
    mean: Number
    low: Number
    high: Number
    difference: Difference | None
    """Less the reference's on the same texts: 0 of the reference itself."""
    less: dict[str, Difference]
    """Less each other method's."""
    truncation: Annotated[Difference | None, formerly("crop", "truncation")]
    """Less truncation's; None where that was not measured, or not beyond M."""


@dataclass(frozen=True)
class HeadSet:
    """The smallest set of heads that is enough, or the largest tried, and the excess loss recovered in it."""

    heads: list[tuple[int, int]]
    """(layer, head)."""
    is_enough: bool
    finished: bool
    """Whether the search ended."""
    share: Number
    """Of the loss, on `items` items that the set was not chosen on; low, high: 95%."""
    low: Number
    high: Number
    random: Number
    """By as many random heads: the median."""
    rest: tuple[Number, Number, Number] = field(default=(math.nan, math.nan, math.nan), kw_only=True)
    """By all heads but these, with its 95% interval; NaN where that was not measured."""
    length: int
    measure: str
    items: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass
class Row:
    """A method in the verdict."""

    method: str
    is_reference: bool
    measured: Failure | None
    longest_passing: int | None
    """The longest measured length at which the method works; 0: none, None: nothing can be evaluated."""
    nll: NllAtLongest | None
    predicted: PredictedFailure | None
    drift: DriftOnset | None
    """On the first prompt; None where drift could not be evaluated in this run."""
    heads: HeadSet | None
    rank: int | None = None
    """None where nothing can be evaluated."""

    @property
    def failure(self) -> Failure:
        """`measured`, in a run that measured by length."""
        assert self.measured is not None
        return self.measured


@dataclass(frozen=True)
class Sentence:
    """What fails, what fixes it, where inside, or how sure that is."""

    heading: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """The answer of a run. It shows itself: a table in a notebook, a text in a terminal."""

    about: str
    """What M and the reference are."""
    sentences: list[Sentence]
    head: list[str]
    """Of the table of methods, ranked."""
    cells: list[list[str]]
    rows: list[Row]
    """The same in numbers."""
    notes: list[str]
    """How the numbers came about, what is missing and how to get it."""

    @property
    def predicted(self) -> dict[str, PredictedFailure]:
        """By method what `mesa-lens predict` computed for it, where it did."""
        return {row.method: row.predicted for row in self.rows if row.predicted}

    def html(self, opening: str = "") -> str:
        """Sentences, table and notes as a part of a page; every text escaped. opening: HTML that goes before."""
        return template("commands/probe/verdict.html").render(verdict=self, opening=opening)

    def __repr__(self) -> str:
        """Sentences, table and notes, for a terminal."""
        sentences = [filled(f"{sentence.heading}: {sentence.text}") for sentence in self.sentences]
        table = plain_table(Table("", tuple(self.head), tuple(map(tuple, self.cells))))
        return "\n\n".join([filled(self.about), "\n".join(sentences), table, "\n".join(map(filled, self.notes))])

    def _repr_html_(self) -> str:
        return self.html(f"<p>{explained(self.about)}</p>")


@dataclass(frozen=True, kw_only=True)
class Summary(Evidence):
    """The summary of a probe run: the verdict, and everything that it rests on."""

    verdict: Verdict
    store: Any
    """The mark of the store that it is of."""
    version: Literal[3] = 3


SUMMARY = ResultFile(Path("summary.json"), Summary, 2)
"""Next to the store."""


def run_summary(folder: Path, run: StoredRun | None = None) -> Summary | None:
    """The summary in a run's folder; None unless the report is complete, of this version and of the very store there.

    run: that store, where it is open already.
    """
    if not all((folder / name).exists() for name in REPORTED):
        return None
    try:
        path = folder / SUMMARY.path
        summary = SUMMARY.parse(read_result(path), path)
        return summary if summary.store == store_mark((run or open_run(folder)).hidden.attrs) else None
    except (OSError, ValueError):  # not complete, or there is no store
        return None
