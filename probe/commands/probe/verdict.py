"""The summary of a run as types, and its verdict: methods ranked, tables of them, and sentences with their counts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import xarray as xr
from pydantic.dataclasses import dataclass

from mesa.plan import Plan, restarts
from probe.commands import Findings, RunFacts, tell
from probe.figures.section import Table, filled, plain_table
from probe.files import read_result
from probe.glossary import about, explained, template, window
from probe.options import head_name
from probe.run_folder import REPORTED
from probe.statistics import confidence_of, shown, tally
from probe.store.reader import StoredRun, open_run, store_mark
from probe.store.result_file import Number, ResultFile, formerly, having, percent
from probe.thresholds.analysis import recorded_method
from probe.thresholds.failure import NLL, PASSKEY, Failure, PredictedFailure
from probe.thresholds.onset import ALPHA, DriftOnset, crossing_texts, excluded, ranges
from probe.thresholds.result import (
    MEAN,
    Difference,
    DriftResult,
    Evidence,
    Level,
    LevelByStages,
    LongestScores,
    MethodResult,
    PromptDrift,
    Scores,
)
from probe.thresholds.stated_window import FITS, MIN_ACCURACY, NATS_ABOVE, TOO_SMALL, StatedWindow, times_of_m


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
    """Each is (layer, head)."""
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
    """The names of the columns of the table of methods."""
    cells: list[list[str]]
    rows: list[Row]
    """The table in numbers, a row a method, by rank."""
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


# The answer in rows and sentences

_HEADS = 4  # of a set, that are named
_RESTARTS = 4  # positions that are named
_NONE = "–"
_SCORES = {"NLL": "tail_nll", "passkey": "passkey"}


MethodRows = Sequence[Row]
RANKED = (
    "Ranked by longest passing length, then by mean tail NLL less the reference's on the same texts, at the longest "
    "length measured. A method shares the rank of those before it unless it is clearly worse than one of them: the "
    "paired 95% interval of the difference lies above 0. Methods that cannot be evaluated come last. In brackets: 95% "
    "intervals; (a, b] means that failure begins after a and by b tokens."
)
"""The rule that `ranked` obeys."""
SERVED = (
    "Served by: programs that compute the method by their options alone, on most models; `mesa-lens config METHOD "
    "--length N` prints these for one model."
)


def ranked(evidence: Evidence, findings: Findings) -> list[Row]:
    """A row a method, the best first; `rank` is None where nothing was measured, or the model is at chance."""
    rows = sorted((_row(evidence, result, findings) for result in evidence.methods), key=_key)
    sharing: list[Row] = []
    for rank, row in enumerate(rows, 1):
        if row.longest_passing is None:
            continue
        if (
            not sharing
            or row.longest_passing != sharing[0].longest_passing
            or any(_is_worse(row, other) for other in sharing)
        ):
            sharing = []
        row.rank = sharing[0].rank if sharing else rank
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
    if measured and measured.evaluated_by:
        longest_passing = measured.longest if measured.length is None else measured.before or 0
    onsets = [] if isinstance(drift, str) else having(drift.prompts[evidence.prompt].methods, method=method)
    return Row(
        method=method,
        is_reference=is_reference,
        measured=measured,
        longest_passing=longest_passing,
        nll=_nll_at_longest(result.longest, is_reference),
        predicted=findings.predicted.get(method),
        drift=onsets[0] if onsets else None,
        heads=findings.heads.get(method),
    )


def _nll_at_longest(longest: LongestScores | None, is_reference: bool) -> NllAtLongest | None:
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
    nll = row.nll
    mean = math.inf if nll is None else nll.difference.mean if nll.difference else nll.mean
    return -1.0 - row.longest_passing, mean  # differences: of runs in stages, methods have other numbers of texts


def _is_worse(row: Row, other: Row) -> bool:
    """Whether the tail NLL is above the other's, its interval too; without an interval no two methods differ."""
    less = row.nll.less.get(other.method) if row.nll else None
    return less is not None and less.low > 0


def method_table(evidence: Evidence, rows: Sequence[Row]) -> Table:
    """A line a row, as `ranked` orders them."""
    reference = evidence.reference
    longest = evidence.measured_lengths[-1] if evidence.measured_lengths else None
    is_predicted = any(row.predicted for row in rows)
    columns = {
        "rank": [str(row.rank or _NONE) for row in rows],
        "method": [row.method for row in rows],
        "measured failure": [failure_text(row.measured) for row in rows],
        **({"predicted failure": [str(row.predicted or _NONE) for row in rows]} if is_predicted else {}),
        f"NLL at {longest} (minus {reference}); lower is better" if longest else "NLL": [_nll(row) for row in rows],
        **(
            {"NLL minus truncation": [difference_to_truncation(row) for row in rows]}
            if any(map(to_truncation, rows))
            else {}
        ),
        "drift onset": [_drift_onset(row.drift) for row in rows],
    }
    if any(row.heads for row in rows):
        columns["smallest set of heads"] = [_heads_cell(row.heads) for row in rows]
    columns["served by"] = [_served_by(evidence.method_configs.get(row.method, {})) for row in rows]
    return Table("", tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _served_by(config: Mapping[str, Any]) -> str:
    """The servers whose options compute a method, from what was recorded of it."""
    method = recorded_method(config)
    return (", ".join(method.served_by) if method else "") or _NONE


def score_table(evidence: Evidence) -> Table:
    """Each method's drift onset, or threshold onset by the rule `paper`, and its scores by length."""
    rows = [
        (
            row.method,
            str(evidence.onset_of(row)),
            *(_number_cell(getattr(row.scores[at], name)) for name, at in _score_columns(evidence)),
        )
        for row in evidence.methods
    ]
    return Table("", ("method", onset_title(evidence.onset_by), *_columns(evidence)), tuple(rows))


def interval_table(evidence: Evidence) -> Table:
    """`score_table` with the scores' 95% intervals."""
    table = score_table(evidence)
    cells = [[score_text(row.scores[at], name) for name, at in _score_columns(evidence)] for row in evidence.methods]
    rows = tuple((*row[:2], *texts) for row, texts in zip(table.rows, cells, strict=True))
    return Table("scores [95% interval]", table.head, rows, "curves-scores")


def failure_text(failure: Failure | None) -> str:
    """The measured failure in words."""
    return "not measured" if failure is None else str(failure)


def onset_title(rule: str) -> str:
    """What the onset by a rule is called."""
    return "threshold onset" if rule == "paper" else "drift onset"


def difference_table(evidence: Evidence) -> Table | None:
    """Each method's scores minus the reference's on the same prompts; None where nothing was compared."""
    rows = []
    for row in evidence.methods:
        less = [getattr(row.scores[length], f"{name}_difference") for name, length in _score_columns(evidence)]
        if any(less):
            rows.append((row.method, *("-" if one is None else difference(one) for one in less)))
    title = f"scores minus {evidence.reference}'s on the same prompts [95% interval, paired]"
    return Table(title, ("method", *_columns(evidence)), tuple(rows), "curves-differences") if rows else None


def drift_table(onsets: Sequence[DriftOnset], prompt: str, name: str = "") -> Table:
    """Every method's drift onset on a prompt, the layers it is detected in and the share of false detections."""
    head = (
        "method",
        "drift onset",
        "in layers",
        "layers not evaluated",
        "begins before M",
        "false detections",
        "in any layer",
    )
    rows = [
        (
            onset.method,
            onset.text if onset.length is None else position(onset),
            ranges(onset.layers) or _NONE,
            ranges(onset.untrusted) or _NONE,
            _NONE if onset.before is None else str(onset.before),
            _NONE if onset.false_positive_rate is None else f"{onset.false_positive_rate:.1%}",
            _NONE if onset.any_false_positive_rate is None else f"{onset.any_false_positive_rate:.0%}",
        )
        for onset in onsets
    ]
    return Table(f"drift on prompt {prompt}, in tokens, with 95% intervals over dims", head, tuple(rows), name)


def crossing_table(hidden: xr.DataArray, search: xr.Dataset, pairs: Sequence[tuple[int, int]]) -> Table:
    """Of one prompt's hidden states, score, threshold, limit and where each method crosses that, by layer:dim."""
    rows = []
    for layer, dim in pairs:
        at = search.sel(layer=layer, dim=dim)
        scores = [f"{float(at[name]):z.{digits}f}" for name, digits in (("score", 1), ("threshold", 2), ("limit", 2))]
        rows.append((f"{layer}:{dim}", *scores, *crossing_texts(at).values))
    head = ("layer:dim", "score", "threshold", "limit", *search["method"].values)
    where = f"{hidden.name} on prompt {hidden['prompt'].item()}" if "prompt" in hidden.coords else hidden.name
    title = f"thresholds of {where}, and where each method crosses their limits"
    return Table(title, head, tuple(rows))


def crossings_at_restarts(search: xr.Dataset, plans: Mapping[str, Plan]) -> list[str]:
    """Of one prompt's `search`, how many of a method's crossings lie where states settle after it restarts positions.

    A sentence a method that restarts them, by its plan, and crosses.
    """
    settling, sentences = max(search.attrs["warm_up"], search.attrs["smoothing"]), []
    for method in search["method"].values.tolist():
        begins = np.array([*restarts(plans[method])] if method in plans else [])
        at = search.sel({"method": method})
        crossings = at["crossing"].where(at["threshold_dim"] & ~excluded(at)).values
        crossings = crossings[np.isfinite(crossings)]
        if not begins.size or not crossings.size:
            continue
        after = crossings[:, None] - begins
        near = int(((after >= 0) & (after < settling)).any(axis=1).sum())
        most = (
            [*map(str, begins)] if len(begins) <= _RESTARTS else [*map(str, begins[:_RESTARTS]), "…", str(begins[-1])]
        )
        sentences.append(
            f"{method} restarts positions at {', '.join(most)}: {near} of its {len(crossings)} crossings of threshold "
            f"dims lie within {settling} tokens of such a restart, where states settle as at the start of a prompt."
        )
    return sentences


def threshold_doubt(evidence: Evidence) -> str:
    """Whether the negative control leaves the threshold dims in doubt; empty where it does not."""
    control = evidence.control
    if isinstance(control, str):
        return f"Cannot tell whether threshold dims are above chance: no negative control ({control})."
    share = control.prompts[evidence.prompt].as_many
    if share <= ALPHA:
        return ""
    return f"Cannot tell threshold dims from chance: {share:.0%} of the positions inside M have as many as M, or more."


def position(onset: DriftOnset) -> str:
    """Where a method's states drift, with its interval where that is wider."""
    if onset.low == onset.high == onset.length:
        return str(onset.length)
    return f"{onset.length} [{onset.low}, {onset.high or 'none'}]"


def difference(less: Difference) -> str:
    """A paired difference with its interval."""
    return shown(less.mean, less.low, less.high, "+z.2f")


def difference_to_truncation(row: Row) -> str:
    """The tail NLL minus truncation's, with its interval; a dash where it was not measured."""
    less = to_truncation(row)
    return _NONE if less is None else difference(less)


def score_text(scores: Scores, name: str) -> str:
    """A score with its interval, where it has one; a dash where it was not measured."""
    value, (low, high) = getattr(scores, name), getattr(scores, f"{name}_interval")
    return _NONE if math.isnan(value) else shown(value, low, high, "z.2f")


def _heads_cell(smallest: HeadSet | None) -> str:
    """How many heads recover how much, such as '2 (L1H3, L1H5): 92% [80, 104]'; a dash where none were searched."""
    if smallest is None:
        return _NONE
    names = ", ".join(head_name(*head) for head in smallest.heads[:_HEADS])
    more = ", …" if len(smallest.heads) > _HEADS else ""
    share = percent(smallest.share, smallest.low, smallest.high)
    state = "" if smallest.is_enough else "not enough: " if smallest.finished else "search not done: "
    return f"{state}{len(smallest.heads)} ({names}{more}): {share}"


def _nll(row: Row) -> str:
    nll = row.nll
    if nll is None:
        return "not measured"
    less = "" if row.is_reference or nll.difference is None else f" ({difference(nll.difference)})"
    return f"{nll.mean:z.2f}{less}"


def _drift_onset(onset: DriftOnset | None) -> str:
    if onset is None:
        return "not evaluated"
    return onset.text if onset.layer is None else f"{position(onset)}, layer {onset.layer}"


def _score_columns(evidence: Evidence) -> list[tuple[str, int]]:
    """The scores' names and the lengths that they are of, in the columns' order."""
    return [(name, length) for name in _SCORES.values() for length in evidence.methods[0].scores]


def _columns(evidence: Evidence) -> list[str]:
    return [f"{label} {length}" for label in _SCORES for length in evidence.methods[0].scores]


def _number_cell(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:z.2f}"


MAX_NAMED = 4
"""More methods than these are counted."""
_PROMPTS = (("window", "text", "tail NLL"), ("sample", "passkey", "passkey"))


def what_fails(evidence: Evidence, rows: MethodRows) -> str:
    """Between which lengths the reference fails, or that it does not, is at chance or was not measured."""
    reference, trained = reference_of(rows), evidence.trained_length
    name, measured = model_name(reference.method), reference.measured
    if measured is None:
        return f"Nothing was measured by length (--samples 0). {window(trained, evidence.trained_length_by)}."
    if reference.longest_passing is None and evidence.level:
        return f"Cannot tell: {name} is at chance inside M. {level(evidence.level, name)}"
    prompts = counted(evidence)
    if measured.length is None:
        none = f"No failure{_by(evidence, measured)} {_up_to(evidence, measured)}, for {name} ({prompts})."
        return _joined(none, _dips([reference]), _alone(evidence, measured), *_open([reference]))
    rules = [*_reasons(evidence, measured), _alone(evidence, measured)]
    if measured.high is None or measured.after is None:
        none = f"not at all up to {measured.longest}: {prompts} cannot tell"
        where = f"after {measured.after} tokens" if measured.after else "at any length"
        return _joined(f"{_capital(name)} may fail {where}, or {none}.", "On average:", *rules)
    times = times_of_m(evidence.stated_window, *filter(None, (measured.after, measured.high)))
    interval = "95% interval" if measured.sampled else "no interval"
    return _joined(
        f"Failure begins {measured.begins} ({', '.join(filter(None, [times, interval]))}) for {name}.", *rules
    )


def what_fixes(evidence: Evidence, rows: MethodRows) -> str:
    """Which methods fail later than the reference or not at all, the best at the longest length, and truncation."""
    reference, others = reference_of(rows), [row for row in rows if not row.is_reference]
    name = model_name(reference.method)
    if not others:
        return "No other method was run."
    if reference.measured is None:
        return "Nothing was measured by length."
    if reference.longest_passing is None:
        return f"Cannot tell: {name} is at chance inside M ({measured_on(evidence)})."
    if reference.failure.length is None:
        return f"Nothing to fix: {_unfailing(evidence, reference)}"
    passing = reference.longest_passing
    unmeasured = [
        row for row in others if row.measured is None or row.longest_passing == row.measured.longest <= passing
    ]
    beyond = f" beyond {passing} tokens" if passing and any(row.measured for row in others) else ""
    missing = f"measured{beyond} yet"
    if len(unmeasured) == len(others):
        return f"No other method is {missing}."
    left = f"Not {missing}: {several(unmeasured)}." if unmeasured else ""
    others = [row for row in others if row not in unmeasured]
    better = [row for row in others if (row.longest_passing or 0) > passing]
    if not better:
        first = f"No method{' measured so far' if unmeasured else ''} fixes it"
        return _joined(f"{first}: none fails later than {name} ({counted(evidence)}).", left)
    unfailing = [row for row in better if row.failure.length is None]
    longest = max((row.failure.longest for row in unfailing), default=0)
    lasting = [row for row in unfailing if row.failure.longest == longest]
    part = [row for row in better if row.failure.length is not None]
    unsure = reference.failure.high is None
    return _joined(
        f"Cannot tell whether there is anything to fix: {name} may not fail." if unsure else "",
        *(_lasting(evidence, lasting, reference, unsure) if lasting else ()),
        f"{several(part)} fail{verb(part)} later than {name}, {_fails(part)}." if part else "",
        _shorter([row for row in unfailing if row not in lasting]),
        *against_truncation(evidence, others, unfailing),
        _by_passkeys(evidence, lasting) if _advised(lasting, unsure) else "",
        left,
    )


def where(evidence: Evidence, rows: MethodRows) -> str:
    """Where the reference's states first leave their in-window range, and which heads are enough to fix it."""
    reference = reference_of(rows)
    if reference.longest_passing is not None and reference.failure.length is None:
        return _joined(f"No failure to locate: {_unfailing(evidence, reference)}", *_drift(evidence, reference))
    sets = [(row.method, row.heads) for row in rows if row.heads and row.heads.is_enough and row.heads.is_clear]
    smallest = min(sets, key=lambda pair: len(pair[1].heads), default=None)
    return _joined(*_drift(evidence, reference), _heads(*smallest) if smallest else "")


def how_sure(evidence: Evidence, rows: MethodRows) -> str:
    """False detections of drift, what guessing scores, and what was not evaluated."""
    unevaluated = _unevaluated(evidence, rows)
    return _joined(
        _control(rows),
        _by_chance(reference_of(rows)),
        level(evidence.level, model_name(reference_of(rows).method)) if evidence.level else "",
        *(f"Not evaluated: {what}." for what in unevaluated),
        "" if unevaluated else "Everything was evaluated.",
    )


def model_name(method: str) -> str:
    """The method in a sentence: origin is the unmodified model."""
    return "the unmodified model" if method == "origin" else method


def _capital(text: str) -> str:
    return "The unmodified model" if text == "the unmodified model" else text


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _unfailing(evidence: Evidence, reference: Row) -> str:
    """That the reference does not fail, by what can be evaluated, and what its prompts leave open."""
    measured = reference.failure
    by = f"{_by(evidence, measured)} up to {measured.longest} tokens ({counted(evidence)})"
    none = f"{model_name(reference.method)} does not fail{by}."
    return _joined(none, _dips([reference]), *_open([reference]))


def _drift(evidence: Evidence, reference: Row) -> list[str]:
    """Where the reference's hidden states begin to drift, on which prompts."""
    onset, name = reference.drift, model_name(reference.method)
    if onset is None:
        return [f"Cannot tell: drift of hidden states was not evaluated ({evidence.drift})."]
    if onset.reason:
        return [f"Cannot tell: drift of {name} was not evaluated on {_prompt(evidence)} ({onset.reason})."]
    if onset.length is None:
        return [f"No drift is detected in the hidden states of {name} on {_prompt(evidence)}: {onset.text}."]
    prompts = evidence.drift.prompts.items() if isinstance(evidence.drift, DriftResult) else ()
    without = [_text_name(prompt) for prompt, drift in prompts if _is_none(drift, onset.method)]
    others = f", not detected on {listed(without)}" if without else ""
    leave = "leave" if onset.high is not None else "may leave"
    return [
        f"Drift onset: position {position(onset)}, first in layer {onset.layer}.",
        f"There the hidden states of {name} {leave} the range that they keep inside M.",
        f"Detected on {_prompt(evidence)}{others}.",
        "" if onset.before is None else f"The drift begins before M, at position {onset.before}.",
    ]


def _heads(method: str, heads: HeadSet) -> str:
    """What a method recovers in its smallest set of heads alone."""
    count = f"{len(heads.heads)} head{'s' * (len(heads.heads) > 1)}"
    names = f" ({listed([head_name(*head) for head in heads.heads])})" if len(heads.heads) <= MAX_NAMED else ""
    lost = "excess loss" if heads.measure == "nll" else f"excess loss of the {heads.measure}'s answer"
    share = percent(heads.share, heads.low, heads.high)
    rest = "" if math.isnan(heads.rest[0]) else f" In all other heads it recovers {percent(*heads.rest)}."
    return (
        f"{method} in {count} alone{names} recovers {share} of the {lost} at {heads.length} tokens "
        f"(n = {heads.items}).{rest}"
    )


def _prompt(evidence: Evidence) -> str:
    """What the headline prompt is: the paper's is one word, repeated."""
    word = f" ('{evidence.word}')" if evidence.word else ""
    return f"one repeated word{word}" if evidence.prompt == "repeated" else _text_name(evidence.prompt)


def _text_name(prompt: str) -> str:
    """A prompt in a sentence; the mean over several texts is ordinary text."""
    return "ordinary text" if prompt == MEAN else f"prompt {prompt}"


def _is_none(drift: PromptDrift, method: str) -> bool:
    """Whether a method was evaluated on a prompt, and no drift detected."""
    onset = next(onset for onset in drift.methods if onset.method == method)
    return onset.length is None and not onset.reason


def _lasting(evidence: Evidence, rows: MethodRows, reference: Row, unsure: bool) -> list[str]:
    """Those that do not fail up to the longest length, and the lowest tail NLL there.

    Their use is advised unless the reference's failure is `unsure`, or tail NLL alone judges them and not all of them
    are better than truncation.
    """
    measured, names = rows[0].failure, several(rows)
    longest, prompts = _up_to(evidence, measured), counted(evidence)
    if not _advised(rows, unsure):
        do = "does" if len(rows) == 1 else "do"
        texts = [f"{names} {do} not fail{_by(evidence, measured)} {longest} ({prompts}).", _alone(evidence, measured)]
    else:
        use = f"any of {names}" if len(rows) > MAX_NAMED else listed([row.method for row in rows], "or")
        none = {1: "it does not fail", 2: "neither fails"}.get(len(rows), "none of them fails")
        texts = [f"Use {use}: {none} {longest} ({prompts}).", _alone(evidence, measured)]
    texts += [_dips(rows), *_open(rows)]
    nll = rows[0].nll
    if nll is None or nll.difference is None:
        return texts
    sharing = [row for row in rows if row.rank == rows[0].rank]
    unclear = f" (not clearly below {several(sharing[1:])})" if len(sharing) > 1 else ""
    lowest = f"{rows[0].method} has the lowest mean tail NLL there" if len(rows) > 1 else "Its mean tail NLL there is"
    return [
        *texts,
        f"{lowest}{unclear}{',' * (len(rows) > 1)} {_below(nll.difference)} {model_name(reference.method)}.",
    ]


def _shorter(rows: MethodRows) -> str:
    """Methods without a failure that are measured to shorter lengths than others."""
    if not rows:
        return ""
    each = listed([f"{row.method} to {row.failure.longest}" for row in rows]) + " tokens"
    unsure = [row for row in rows if row.failure.after is not None]
    doubt = f" For {several(unsure)}, an earlier failure is not ruled out." if unsure else ""
    return (
        "Not failing either, but measured only to shorter lengths: "
        f"{each if len(rows) <= MAX_NAMED else several(rows)}.{doubt}"
    )


def _advised(rows: MethodRows, unsure: bool) -> bool:
    """Whether the use of methods that do not fail is advised; see `_lasting`."""
    if unsure or not rows or rows[0].failure.chance:
        return False
    return rows[0].failure.evaluated_by != (NLL,) or all(map(beats, rows))


def _by_passkeys(evidence: Evidence, rows: MethodRows) -> str:
    """Why methods are advised that do not beat truncation by tail NLL; empty where none was compared."""
    rows = [row for row in rows if to_truncation(row) and not beats(row)]
    if evidence.level is None or not rows:
        return ""
    use = f"The case for {several(rows)} rests on passkeys ({_number_of(evidence, 'sample')})"
    return f"{use}: truncation cannot see those before its last {evidence.level.length} tokens."


def _below(less: Difference) -> str:
    """How far below or above a loss is, such as '4.38 [4.05, 4.71] nats/token below'."""
    if less.mean > 0:
        return f"{shown(less.mean, less.low, less.high, 'z.2f')} nats/token above"
    return f"{shown(-less.mean, -less.high, -less.low, 'z.2f')} nats/token below"


def _fails(rows: MethodRows) -> str:
    """Where methods fail: one by one, or before the longest length where they are many."""
    if len(rows) > MAX_NAMED:
        by = f"all by {max(row.failure.longest for row in rows)} tokens"
        return by if all(row.failure.high for row in rows) else f"{by}, if ever"
    *texts, last = [row.failure.begins for row in rows]
    return listed([*(text.replace(" tokens", "") for text in texts), last])  # the unit once


def _up_to(evidence: Evidence, measured: Failure) -> str:
    times = times_of_m(evidence.stated_window, measured.longest)
    of_all = "the longest length measured"
    if measured.longest < max(evidence.measured_lengths, default=0):
        of_all = "the longest at which it was measured"
    return f"up to {measured.longest} tokens{f' ({times})' if times else ''}, {of_all}"


def _by(evidence: Evidence, measured: Failure) -> str:
    """By what a method does not fail, where something else was measured and judges nothing."""
    return f" by {measured.evaluated_by[0]}" if measured.evaluated_by and _left(evidence) else ""


def _left(evidence: Evidence) -> list[str]:
    """What was measured and judges nothing."""
    known = [NLL, *([PASSKEY] if evidence.level and evidence.level.passkeys is not None else [])]
    return [rule for rule in known if rule not in evidence.evaluated_by]


def _dips(rows: MethodRows) -> str:
    """At which lengths methods fail that do not fail at a longer one; empty for none."""
    if len(rows) == 1:
        dips = rows[0].failure.dips
        return f"It does fail at {listed(dips)} tokens, but not beyond." if dips else ""
    each = [f"{row.method} does fail at {listed(row.failure.dips)} tokens" for row in rows if row.failure.dips]
    return f"{_capital(listed(each))}, but not beyond." if each else ""


def _open(rows: MethodRows) -> list[str]:
    """Of methods that do not fail, after which length their prompts do not rule a failure out."""
    open_ = [row for row in rows if row.failure.after is not None]
    if len(rows) == 1 and open_:
        after = open_[0].failure.after
        return [f"A failure{f' after {after} tokens' if after else ''} is not ruled out."]
    doubt = f"For {several(open_)}, an earlier failure is not ruled out." if open_ else ""
    return [doubt, "" if rows[0].failure.sampled else "One prompt rules no failure out."]


def _reasons(evidence: Evidence, measured: Failure) -> list[str]:
    """Which rule fails at every measured length from which on, of a method that does fail."""
    at = evidence.level.length if evidence.level else "M"
    above = f"its tail NLL is over {NATS_ABOVE} nats/token above that at {at} ({_number_of(evidence, 'window')})"
    fewer = f"it finds fewer than half of {_number_of(evidence, 'sample')}"
    rules = [(measured.by_nll, above), (measured.by_passkey, fewer)]
    known: dict[int, list[str]] = {}
    for length, rule in rules:
        if length is not None:
            known.setdefault(length, []).append(rule)
    some = f"It fails by tail NLL at some lengths and by passkey accuracy at the others ({counted(evidence)})."
    return [
        f"At every length measured from {at} tokens on, {', and '.join(texts)}." for at, texts in known.items()
    ] or [some]


def _alone(evidence: Evidence, measured: Failure) -> str:
    """What judges nothing, with the counts that this rests on; or that the one thing measured judges alone."""
    level, left = evidence.level, _left(evidence)
    if not measured.evaluated_by or level is None:
        return ""
    if NLL in left:
        texts = f"{level.tail_nll:z.2f} at {level.length} tokens ({_number(level.prompts.get('window'), 'text')})"
        return f"Tail NLL is at chance, {texts}, and is not evaluated."
    if PASSKEY not in left:
        return f"Evaluated by {measured.evaluated_by[0]} alone." if len(measured.evaluated_by) == 1 else ""
    counts = f"{_hits(level)} found at {level.length} tokens"
    scores = next(result.scores for result in evidence.methods if result.method == evidence.reference)
    more = [at for at, score in scores.items() if at != level.length and score.passkey >= MIN_ACCURACY]
    than = f", though half or more at {listed(more)}" if more else ""
    is_chance = "is at chance" if PASSKEY in evidence.at_chance else "is not evaluated"
    return f"Passkey accuracy {is_chance}: {counts}{than}."


def _control(rows: MethodRows) -> str:
    """Of the tests of a layer in a window inside M, where nothing breaks, those with a false detection of drift."""
    tried = [row for row in rows if row.drift is not None and row.drift.tried]
    if not tried:
        return "Control: none could be made inside M, so false detections are unknown."
    false, tests = (sum(getattr(row.drift, name) for row in tried) for name in ("false_positives", "tried"))
    text = f"{false} false detection{'s' * (false != 1)} in {tests} tests inside M"
    control = f"Control: {text} ({several(tried)}; a test is a layer in a window)."
    if any(row.drift.untrusted for row in rows if row.drift):
        control += " Which layers are evaluated was decided by other windows."
    return control


def _by_chance(reference: Row) -> str:
    """In how many models without a break the reference's drift would be as clear; empty where none is detected."""
    chance = reference.drift.chance if reference.drift else None
    if reference.drift is None or chance is None:
        return ""
    effective, moving = reference.drift.effective_dims, ""
    if effective is not None:
        moving = (
            f"; those of layer {reference.drift.layer} move as about {_number(round(effective), 'independent one')}"
        )
    share = "fewer than 1 in 10,000" if chance < 1e-4 else f"at most {chance:.2%} of"
    return (
        f"If positions were independent, chance alone would give drift this clear in {share} models, and in far more "
        f"where dims move together{moving}."
    )


def level(level: Level, name: str) -> str:
    """What guessing scores, and the reference, of this name, inside M."""
    prompts = level.prompts
    guess = "that of guessing is unknown" if level.guess is None else f"guessing gives {level.guess:z.2f}"
    texts = f"{level.tail_nll:z.2f} ({_number(prompts['window'], 'text')})"
    hits = "" if level.passkeys is None else f"It finds {_hits(level, 'passkeys')} there."
    return _joined(f"At {level.length} tokens {name} has a tail NLL of {texts}; {guess}.", hits)


def _hits(level: Level, things: str = "") -> str:
    """Passkeys found inside M, with the interval that all looks share."""
    looks = level.looks if isinstance(level, LevelByStages) else ()
    return tally(level.passkeys or 0, level.prompts["sample"], things, confidence_of({"looks": looks}).z)


def _unevaluated(evidence: Evidence, rows: MethodRows) -> list[str]:
    """What failure is not evaluated by, and whose drift is not evaluated, with the reasons."""
    level, left = evidence.level, []
    if not level:
        left.append("failure by length (not measured)")
    elif NLL in evidence.at_chance:
        left.append(f"{NLL} (at chance inside M)")
    if level and level.passkeys is not None and PASSKEY not in evidence.evaluated_by:
        left.append(f"{PASSKEY} ({_hits(level)} found inside M)")
    if level and level.passkeys is None:  # of a run in stages, until each method has them
        left.append(f"{PASSKEY} (not measured, or not under every method)")
    if isinstance(evidence.drift, str):
        return [*left, "drift"]
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        if row.drift and row.drift.reason:
            reasons.setdefault(row.drift.reason, []).append(row)
    left += [f"drift of {several(unevaluated)} ({reason})" for reason, unevaluated in reasons.items()]
    doubtful = [row for row in rows if row.drift and row.drift.untrusted and not row.drift.reason]
    if doubtful:
        named = sorted({doubt for row in doubtful if row.drift for doubt in row.drift.untrusted.values()})
        left.append(f"drift of {several(doubtful)} in single layers ({listed(named, 'or')})")
    return left


def against_truncation(evidence: Evidence, rows: MethodRows, lasting: MethodRows | None = None) -> list[str]:
    """Which methods beat truncation by tail NLL, and which of the `lasting` (None: of all) are worse, as sentences.

    Empty where none was compared.
    """
    compared = [row for row in rows if to_truncation(row) is not None]
    if not compared:
        return []
    if all(math.isnan(less.high) for row in compared if (less := to_truncation(row))):
        return ["One text cannot tell a method from truncation."]
    better = [row for row in compared if beats(row)]
    worse = [row for row in (rows if lasting is None else lasting) if is_worse(row)]
    one = f"{compared[0].method} does not clearly beat"
    texts = _number_of(evidence, "window")
    none = f"{one if len(compared) == 1 else 'No method clearly beats'} truncation by tail NLL ({texts})."
    return [
        f"By tail NLL ({texts}), {_named(better)} beat{verb(better)} truncation." if better else none,
        f"{_named(worse)} {'is' if len(worse) == 1 else 'are'} worse than truncation." if worse else "",
    ]


def about_truncation(evidence: Evidence, rows: MethodRows) -> list[str]:
    """What truncation is, where methods are compared with it."""
    if evidence.level is None or not any(to_truncation(row) for row in rows):
        return []
    name, length = model_name(reference_of(rows).method), evidence.level.length
    return [
        f"Truncation: {name} on the last {length} tokens; what the tokenizer puts first is among them. Its tail NLL is "
        f"that at {length} tokens, of the same texts. A tail NLL no better than that shows no use of earlier tokens."
    ]


def _named(rows: MethodRows) -> str:
    """The methods with their differences, counted where they are many."""
    if len(rows) > MAX_NAMED:
        return f"{len(rows)} methods"
    return listed([f"{row.method} ({difference_to_truncation(row)} nats/token)" for row in rows])


def several(rows: MethodRows) -> str:
    """The methods, counted where they are many."""
    return f"{len(rows)} methods" if len(rows) > MAX_NAMED else listed([row.method for row in rows])


def counted(evidence: Evidence) -> str:
    """How many prompts each length was measured with, of what judges: '20 texts and 20 passkeys'."""
    return _prompts(evidence, evidence.evaluated_by)


def measured_on(evidence: Evidence) -> str:
    """How many prompts each length was measured with, whatever judges; empty where nothing was measured."""
    return _prompts(evidence, [rule for _, _, rule in _PROMPTS]) if evidence.level else ""


def _prompts(evidence: Evidence, rules: Sequence[str]) -> str:
    there = evidence.level.prompts if evidence.level else {}
    return listed([_number_of(evidence, key) for key, _, rule in _PROMPTS if key in there and rule in rules])


def _number_of(evidence: Evidence, key: str) -> str:
    """How many prompts of a kind each length has: '20 texts', and in stages, where they differ, '4 to 20 texts'."""
    level, name = evidence.level, next(name for kind, name, _ in _PROMPTS if kind == key)
    if isinstance(level, LevelByStages) and level.fewest.get(key) != level.most.get(key):
        return f"{level.fewest[key]} to {level.most[key]} {name}s"
    return _number(level.prompts.get(key) if level else None, name)


def _number(count: int | None, name: str) -> str:
    return f"{name}s" if count is None else f"{count} {name}{'s' * (count > 1)}"


def verb(rows: MethodRows) -> str:
    """The verb's ending."""
    return "s" if len(rows) == 1 else ""


def listed(names: Sequence[object], word: str = "and") -> str:
    """Names as text, such as 'a, b and c'."""
    *most, last = map(str, names)
    return f"{', '.join(most)} {word} {last}" if most else last


FAILS, FIXES, WHERE, SURE = "What fails", "What fixes it", "Where inside", "How sure"
"""Headings of the sentences."""
TAIL_NLL = "Tail NLL is the loss on the last M/4 tokens, the same ones at every length."


def facts_of(evidence: Evidence) -> RunFacts:
    """What other commands are told of a run."""
    measured = next(result.measured for result in evidence.methods if result.method == evidence.reference)
    fails = None if measured is None else bool(measured.evaluated_by) and measured.length is not None
    return RunFacts(evidence.model, evidence.trained_length, evidence.method_configs, evidence.reference, fails)


def findings_in(folder: Path, facts: RunFacts) -> Findings:
    """What other commands wrote into a run's folder, for its verdict."""
    findings = Findings({}, {}, [])
    for of_command in tell("findings").values():
        heads, predicted, notes = of_command(folder, facts)
        findings = Findings(findings.heads | heads, findings.predicted | predicted, findings.notes + notes)
    return findings


def verdict(evidence: Evidence, findings: Findings) -> Verdict:
    """Of a run's evidence, and of what other commands wrote into its folder."""
    rows = ranked(evidence, findings)
    sentences = {
        FAILS: what_fails(evidence, rows),
        FIXES: what_fixes(evidence, rows),
        WHERE: where(evidence, rows),
        SURE: how_sure(evidence, rows),
    }
    sentences = checked(sentences, evidence.stated_window, measured_on(evidence))
    table = method_table(evidence, rows)
    return Verdict(
        about=f"{about_run(evidence)} {TAIL_NLL}",
        sentences=[Sentence(heading, text) for heading, text in sentences.items()],
        head=list(table.head),
        cells=list(map(list, table.rows)),
        rows=rows,
        notes=[
            RANKED,
            *findings.notes,
            *about_truncation(evidence, rows),
            *_following(evidence),
            *_not_installed(evidence),
            *_in_stages(evidence),
            SERVED,
        ],
    )


def about_run(evidence: Evidence) -> str:
    """What M, what states it, and the reference are."""
    return about(
        evidence.model, evidence.trained_length, evidence.reference, evidence.trained_length_by, evidence.as_trained
    )


def checked(sentences: dict[str, str], stated: StatedWindow | None, prompts: str) -> dict[str, str]:
    """The sentences with what the measured lengths say of the passed M; where it is wrong, nothing else is said.

    prompts: how many each length was measured with, such as '20 texts and 20 passkeys'.
    """
    if stated is None or stated.outcome == FITS:
        return sentences
    if stated.is_wrong:
        return {
            FAILS: stated.text,
            FIXES: "Not evaluated: failure is measured against the loss at M.",
            WHERE: "Not evaluated: drift is measured against the range of hidden states inside M.",
            SURE: f"Measured on {prompts}. Differences are paired, text by text; brackets hold 95% intervals.",
        }
    key = FAILS if stated.outcome == TOO_SMALL or stated.signs else SURE
    return sentences | {key: f"{sentences[key]} {stated.text}"}


def _in_stages(evidence: Evidence) -> list[str]:
    """Of a run in stages, what its intervals allow for, and what its first pass shows."""
    if not isinstance(level := evidence.level, LevelByStages):
        return []
    looks = listed(level.looks)
    sentences = [
        "Measured in stages (--minutes): lengths and methods have as many prompts as it took to decide, or as there "
        f"was time for; the same command goes on. Intervals are looked at with {looks} prompts, and hold at all looks "
        "together with 95% (Bonferroni). Means over different numbers of texts are not comparable, differences are. "
        "Passkeys count once every method has them at its longest length."
    ]
    return [*sentences, *([f"{level.by_position} (one text)."] if level.by_position else [])]


def _not_installed(evidence: Evidence) -> list[str]:
    """Of methods whose package is gone, that their plans are not known."""
    names = [
        name
        for name, config in evidence.method_configs.items()
        if "trained_length" in config and not recorded_method(config)
    ]
    if not names or isinstance(evidence.drift, str):
        return []
    return [
        f"{listed(names)}: not installed here, or with other parameters. Drift is evaluated as if positions never "
        "restarted."
    ]


def _following(evidence: Evidence) -> list[str]:
    """Where positions or frequencies follow the prompt's length, that states and onsets are of one length alone."""
    names = evidence.follows_length
    if not names:
        return []
    states = (
        f"Hidden states and drift onsets here are those of prompts of {evidence.pass_length} tokens, not of shorter "
        "ones; losses"
    )
    return [
        f"Under {listed(names)}, positions or frequencies depend on prompt length. "
        f"{'Losses' if isinstance(evidence.drift, str) else states} and passkeys are measured at each length."
    ]


def terminal_text(summary: Summary) -> str:
    """The verdict, then the scores it rests on, for a terminal."""
    tables = [score_table(summary), difference_table(summary)]
    return "\n\n".join([repr(summary.verdict), *(plain_table(table) for table in tables if table)])
