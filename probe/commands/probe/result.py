"""The summary of a run as types, with the rows of its verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic.dataclasses import dataclass

from probe.commands import Findings
from probe.files import read_result
from probe.glossary import explained, template
from probe.run_folder import REPORTED
from probe.store.reader import StoredRun, open_run, store_mark
from probe.store.result_file import Number, ResultFile, formerly, having
from probe.tables import Table, filled, plain_table
from probe.thresholds.drift_onset import DriftOnset
from probe.thresholds.failure import Failure, PredictedFailure
from probe.thresholds.result import Difference, Evidence, LongestScores, MethodResult


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
    """The longest measured length at which the method works; 0: none, None: nothing can be judged."""
    nll: NllAtLongest | None
    predicted: PredictedFailure | None
    drift: DriftOnset | None
    """On the first prompt; None where drift could not be judged in this run."""
    heads: HeadSet | None
    rank: int | None = None
    """None where nothing can be judged."""

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
"""Beside the store."""


def run_summary(folder: Path, run: StoredRun | None = None) -> Summary | None:
    """The summary in a run's folder; None unless the report is whole, of this version and of the very store there.

    run: that store, where it is open already.
    """
    if not all((folder / name).exists() for name in REPORTED):
        return None
    try:
        path = folder / SUMMARY.path
        summary = SUMMARY.parse(read_result(path), path)
        return summary if summary.store == store_mark((run or open_run(folder)).hidden.attrs) else None
    except (OSError, ValueError):  # not whole, or there is no store
        return None


MethodRows = Sequence[Row]
RANKED = (
    "Ranked by longest passing length, then by mean tail NLL at the longest length measured. A method shares the rank "
    "of those before it unless it is clearly worse than one of them: the paired 95% interval of the difference lies "
    "above 0. Methods that cannot be judged come last. In brackets: 95% intervals; (a, b] means that failure begins "
    "after a and by b tokens."
)
"""The rule that `ranked` obeys."""


def ranked(evidence: Evidence, findings: Findings) -> list[Row]:
    """A row a method, the best first; `rank` is None where nothing was measured, or the model is at chance."""
    rows = sorted((_row(evidence, result, findings) for result in evidence.methods), key=_key)
    sharing: list[Row] = []
    for place, row in enumerate(rows, 1):
        if row.longest_passing is None:
            continue
        if (
            not sharing
            or row.longest_passing != sharing[0].longest_passing
            or any(_is_worse(row, other) for other in sharing)
        ):
            sharing = []
        row.rank = sharing[0].rank if sharing else place
        sharing.append(row)
    return rows


def reference_of(rows: Sequence[Row]) -> Row:
    """The row of the method that the others are compared with."""
    return next(row for row in rows if row.is_reference)


def to_truncation(row: Row) -> Difference | None:
    """A method's tail NLL at the longest length minus truncation's; None: not measured, or not beyond M."""
    return row.nll.truncation if row.nll else None


def beats(row: Row) -> bool:
    """Whether a method's tail NLL at the longest length is below truncation's on the same texts, its interval too."""
    less = to_truncation(row)
    return less is not None and less.high < 0


def is_worse(row: Row) -> bool:
    """Whether a method's tail NLL at the longest length is above truncation's on the same texts, its interval too."""
    less = to_truncation(row)
    return less is not None and less.low > 0


def _row(evidence: Evidence, result: MethodResult, findings: Findings) -> Row:
    method, measured, drift, longest_passing = result.method, result.measured, evidence.drift, None
    is_reference = method == evidence.reference
    if measured and measured.judged_by:
        longest_passing = measured.longest if measured.length is None else measured.before or 0
    onsets = [] if isinstance(drift, str) else having(drift.prompts[evidence.prompt].methods, method=method)
    return Row(
        method=method,
        is_reference=is_reference,
        measured=measured,
        longest_passing=longest_passing,
        nll=_nll(result.longest, is_reference),
        predicted=findings.predicted.get(method),
        drift=onsets[0] if onsets else None,
        heads=findings.heads.get(method),
    )


def _nll(longest: LongestScores | None, is_reference: bool) -> NllAtLongest | None:
    """Tail NLL at the longest length, less the reference's on the same texts (0 of itself), others', truncation's."""
    if longest is None or math.isnan(longest.tail_nll):
        return None
    difference = longest.tail_nll_difference or (Difference(0.0, 0.0, 0.0) if is_reference else None)
    ends = longest.tail_nll_interval
    return NllAtLongest(
        longest.length, longest.tail_nll, *ends, difference, longest.less, longest.tail_nll_to_truncation
    )


def _key(row: Row) -> tuple[float, float]:
    if row.longest_passing is None:
        return 1.0, 0.0
    return -1.0 - row.longest_passing, math.inf if row.nll is None else row.nll.mean


def _is_worse(row: Row, other: Row) -> bool:
    """Whether the tail NLL is above the other's, its interval too; without an interval no two methods differ."""
    less = row.nll.less.get(other.method) if row.nll else None
    return less is not None and less.low > 0
