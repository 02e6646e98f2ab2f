"""Tables of a summary: the ranked methods, scores and their differences to the reference, drift prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.evaluation.summary import Table
from probe.statistics import shown
from probe.store.results import percent, predicted_text
from probe.thresholds.drift_onset import ranges
from probe.thresholds.threshold_onset import ALPHA
from probe.verdict.rows import onset_of, to_crop

_HEADS = 4  # of a set, that are named
_NONE = "–"
_SCORES = {"NLL": "tail_nll", "passkey": "passkey"}


def method_table(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line a row, as `ranked` orders them."""
    reference = summary["reference"]
    longest = summary["measured_lengths"][-1] if summary["measured_lengths"] else None
    is_predicted = any(row["predicted"] for row in rows)
    columns = {
        "rank": [str(row["rank"] or _NONE) for row in rows],
        "method": [row["method"] for row in rows],
        "measured failure": [row["measured"]["text"] for row in rows],
        **({"predicted failure": [predicted_text(row["predicted"]) for row in rows]} if is_predicted else {}),
        f"NLL at {longest} (less {reference}'s); lower is better" if longest else "NLL": [_nll(row) for row in rows],
        **({"NLL less crop's": [difference_to_crop(row) for row in rows]} if any(map(to_crop, rows)) else {}),
        "drift onset": [_drift_onset(row["drift"]) for row in rows],
    }
    if any(row["heads"] for row in rows):
        columns["smallest set of heads"] = [_heads(row["heads"]) for row in rows]
    return Table("", tuple(columns), tuple(zip(*columns.values(), strict=True)))


def score_table(summary: Mapping[str, Any]) -> Table:
    """Each method's drift onset, or threshold onset by the rule `paper`, and its scores by length."""
    rows = [
        (
            row["method"],
            onset_of(summary, row)["text"],
            *(_number(row["scores"][at][name]) for name, at in _places(summary)),
        )
        for row in summary["methods"]
    ]
    return Table("", ("method", onset_title(summary["onset_by"]), *_columns(summary)), tuple(rows))


def onset_title(rule: str) -> str:
    """What the onset by a rule is called."""
    return "threshold onset" if rule == "paper" else "drift onset"


def difference_table(summary: Mapping[str, Any]) -> Table | None:
    """Each method's scores less the reference's on the same prompts; None where nothing was compared."""
    rows = []
    for row in summary["methods"]:
        less = [row["scores"][length].get(f"{name}_difference") for name, length in _places(summary)]
        if any(less):
            rows.append((row["method"], *("-" if one is None else difference(one) for one in less)))
    title = f"difference to {summary['reference']} on the same prompts [95% interval, paired]"
    return Table(title, ("method", *_columns(summary)), tuple(rows)) if rows else None


def drift_table(calls: Sequence[Mapping[str, Any]], prompt: str) -> Table:
    """The call of every method on a prompt, with the layers called and the share of false alarms."""
    head = (
        "method",
        "drift onset",
        "in layers",
        "layers not judged",
        "begins before M",
        "false alarms",
        "in any layer",
    )
    rows = [
        (
            call["method"],
            call["text"] if call["length"] is None else position(call),
            ranges(call["layers"]) or _NONE,
            ranges(call["untrusted"]) or _NONE,
            _NONE if call["before"] is None else str(call["before"]),
            _NONE if call["false_alarms"] is None else f"{call['false_alarms']:.1%}",
            _NONE if call["any_false_alarm"] is None else f"{call['any_false_alarm']:.0%}",
        )
        for call in calls
    ]
    return Table(f"drift on prompt {prompt}, in tokens, with 95% intervals over dims", head, tuple(rows))


def threshold_doubt(summary: Mapping[str, Any]) -> str:
    """Whether the negative control leaves the threshold dims in doubt; empty where it does not."""
    control = summary["control"]
    if isinstance(control, str):
        return f"Cannot tell whether threshold dims are above chance: no negative control ({control})."
    share = control["prompts"][summary["prompt"]]["as_many"]
    if share <= ALPHA:
        return ""
    return f"Cannot tell threshold dims from chance: {share:.0%} of the positions inside M have as many as M, or more."


def position(call: Mapping[str, Any]) -> str:
    """Where a method's states drift, with its interval where that is wider."""
    if call["low"] == call["high"] == call["length"]:
        return str(call["length"])
    return f"{call['length']} [{call['low']}, {call['high'] or 'none'}]"


def difference(less: Mapping[str, Any]) -> str:
    """A paired difference with its interval."""
    return shown(less["mean"], less["low"], less["high"], "+z.2f")


def difference_to_crop(row: Mapping[str, Any]) -> str:
    """The tail NLL less crop's, with its interval; a dash where it was not measured."""
    less = to_crop(row)
    return _NONE if less is None else difference(less)


def score_text(scores: Mapping[str, Any], name: str) -> str:
    """A score with its interval, where it has one; a dash where it was not measured."""
    low, high = scores.get(f"{name}_interval", (None, None))
    return _NONE if scores[name] is None else shown(scores[name], low, high, "z.2f")


def _heads(smallest: Mapping[str, Any] | None) -> str:
    """How many heads restore how much, such as '2 (1.3, 1.5): 92% [80, 104]'; a dash where none were searched."""
    if smallest is None:
        return _NONE
    names = ", ".join(f"{layer}.{head}" for layer, head in smallest["heads"][:_HEADS])
    more = ", …" if len(smallest["heads"]) > _HEADS else ""
    share = percent(smallest["share"], smallest["low"], smallest["high"])
    state = "" if smallest["is_enough"] else "not enough: " if smallest.get("finished", True) else "search not done: "
    return f"{state}{len(smallest['heads'])} ({names}{more}): {share}"


def _nll(row: Mapping[str, Any]) -> str:
    nll = row["nll"]
    if nll is None:
        return "not measured"
    less = "" if row["is_reference"] or nll["difference"] is None else f" ({difference(nll['difference'])})"
    return f"{nll['mean']:z.2f}{less}"


def _drift_onset(call: Mapping[str, Any] | None) -> str:
    if call is None:
        return "not judged"
    return call["text"] if call["layer"] is None else f"{position(call)}, layer {call['layer']}"


def _places(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The scores' names and the lengths that they are of, in the columns' order."""
    return [(name, length) for name in _SCORES.values() for length in summary["methods"][0]["scores"]]


def _columns(summary: Mapping[str, Any]) -> list[str]:
    return [f"{label} {length}" for label in _SCORES for length in summary["methods"][0]["scores"]]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:z.2f}"
