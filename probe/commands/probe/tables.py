"""Tables of a summary: the ranked methods, scores and their differences from the reference, drift prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from mesa.plan import Plan, restarts
from probe.commands.probe.result import HeadSet, Row
from probe.commands.probe.rows import to_truncation
from probe.heads import head_name
from probe.statistics import shown
from probe.store.results import percent
from probe.tables import Table
from probe.thresholds.drift_onset import DriftOnset, ranges
from probe.thresholds.failure import Failure
from probe.thresholds.result import Difference, Evidence, Scores
from probe.thresholds.threshold_onset import ALPHA, crossing_texts, excluded

_HEADS = 4  # of a set, that are named
_RESTARTS = 4  # positions that are named
_NONE = "–"
_SCORES = {"NLL": "tail_nll", "passkey": "passkey"}


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
        columns["smallest set of heads"] = [_heads(row.heads) for row in rows]
    return Table("", tuple(columns), tuple(zip(*columns.values(), strict=True)))


def score_table(evidence: Evidence) -> Table:
    """Each method's drift onset, or threshold onset by the rule `paper`, and its scores by length."""
    rows = [
        (
            row.method,
            str(evidence.onset_of(row)),
            *(_number(getattr(row.scores[at], name)) for name, at in _score_columns(evidence)),
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
        "layers not judged",
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


def _heads(smallest: HeadSet | None) -> str:
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
        return "not judged"
    return onset.text if onset.layer is None else f"{position(onset)}, layer {onset.layer}"


def _score_columns(evidence: Evidence) -> list[tuple[str, int]]:
    """The scores' names and the lengths that they are of, in the columns' order."""
    return [(name, length) for name in _SCORES.values() for length in evidence.methods[0].scores]


def _columns(evidence: Evidence) -> list[str]:
    return [f"{label} {length}" for label in _SCORES for length in evidence.methods[0].scores]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:z.2f}"
