"""The methods of a run in their order: how far each holds, its tail NLL, its drift, the heads that are enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probe.interventions.result import Located
from probe.law.result import Prediction
from probe.store.result_file import as_json, having

Rows = Sequence[Mapping[str, Any]]
RANKED = (
    "Ranked by the longest measured length that a method holds at, then by mean tail NLL at the longest length. A "
    "method shares the rank of those before it unless it is worse than one of them: the 95% interval of the "
    "difference, text by text, lies above 0. What cannot be judged comes last. In brackets: 95% intervals; (a, b]: it "
    "fails after a and at most at b tokens."
)
"""The rule that `ranked` obeys."""


def ranked(
    summary: Mapping[str, Any], located: Located | None, prediction: Prediction | None = None
) -> list[dict[str, Any]]:
    """A row a method, the best first; `rank` is None where nothing was measured, or the model is at chance."""
    rows = sorted((_row(summary, row, located, prediction) for row in summary["methods"]), key=_key)
    sharing: list[dict[str, Any]] = []
    for place, row in enumerate(rows, 1):
        if row["held"] is None:
            row["rank"] = None
            continue
        if not sharing or row["held"] != sharing[0]["held"] or any(_is_worse(row, other) for other in sharing):
            sharing = []
        row["rank"] = sharing[0]["rank"] if sharing else place
        sharing.append(row)
    return rows


def onset_of(summary: Mapping[str, Any], row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The onset of a method's row in a summary, by the rule that its report was made with."""
    return row["threshold_onset" if summary["onset_by"] == "paper" else "drift_onset"]


def predicted_failures(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """By method what `mesa-lens predict` computed for it, where it did, of a verdict."""
    return {row["method"]: row["predicted"] for row in verdict["rows"] if row["predicted"]}


def same_model(summary: Mapping[str, Any], located: Located | None) -> Located | None:
    """What was located, if it was on the run's own model and window, of the methods that have the run's parameters."""
    if located is None or (located.model, located.trained_length) != (summary["model"], summary["trained_length"]):
        return None
    configs, methods = summary.get("method_configs") or {}, located.methods

    def is_same(name: str) -> bool:
        one, other = methods.get(name, {}), configs.get(name, {})
        return all(one[key] == other[key] for key in one.keys() & other.keys())  # as far as both tell

    gaps = [gap for gap in located.loss_gaps if is_same(next(iter(methods))) and is_same(gap.method)]
    return replace(located, loss_gaps=gaps)


def predicts(prediction: Prediction, summary: Mapping[str, Any]) -> bool:
    """Whether a prediction is of the run's own model and window."""
    return (prediction.model, prediction.trained_length) == (summary["model"], summary["trained_length"])


def reference_of(rows: Rows) -> Mapping[str, Any]:
    """The row of the method that the others are compared with."""
    return next(row for row in rows if row["is_reference"])


def beats(row: Mapping[str, Any]) -> bool:
    """Whether a method's tail NLL at the longest length is below crop's on the same texts, its interval too."""
    less = to_crop(row)
    return less is not None and less["high"] is not None and less["high"] < 0


def is_worse(row: Mapping[str, Any]) -> bool:
    """Whether a method's tail NLL at the longest length is above crop's on the same texts, its interval too."""
    return _lies_above(to_crop(row))


def to_crop(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A method's tail NLL at the longest length less crop's; None where it was not measured, or not beyond M."""
    return (row["nll"] or {}).get("crop")


def smallest_set(located: Located, method: str) -> dict[str, Any] | None:
    """Of the method's clearest loss, NLL before all else, the smallest set of heads that is enough, or the largest.

    heads: (layer, head) pairs. share, low, high: restored of the loss, on so many items: the half that the set was not
    chosen on. random: by as many random heads. finished: whether the search ended.
    """
    gaps = having(located.loss_gaps, method=method, judged=True)
    sets = [(gap, row) for gap in gaps for row in having(located.smallest, **gap.labels) if row.heads]
    if not sets:
        return None
    gap, row = max(sets, key=lambda pair: (pair[0].measure == "nll", pair[0].low))
    at = {name: getattr(row, name)[row.size - 1] for name in ("share", "low", "high", "random")}
    return {
        "heads": [list(head) for head in row.heads[: row.size]],
        "is_enough": row.enough is not None,
        "finished": row.finished,
        **{name: value if math.isfinite(value) else None for name, value in at.items()},  # JSON has no NaN
        "length": gap.length,
        "measure": gap.measure,
        "items": gap.items // 2,
    }


def _row(
    summary: Mapping[str, Any], row: Mapping[str, Any], located: Located | None, prediction: Prediction | None
) -> dict[str, Any]:
    """held: the longest measured length at which the method works; 0: none, None: nothing can be judged.

    drift: the method's call on the first prompt; None where drift could not be judged in this run.
    """
    method, measured, drift, held = row["method"], row["measured"], summary["drift"], None
    if measured.get("judged_by"):
        held = measured["longest"] if measured["length"] is None else measured["before"] or 0
    calls = [] if isinstance(drift, str) else drift["prompts"][summary["prompt"]]["methods"]
    return {
        "method": method,
        "is_reference": method == summary["reference"],
        "measured": measured,
        "held": held,
        "nll": _nll(row["longest"], method == summary["reference"]),
        "predicted": predicted_failure(summary, method, prediction),
        "drift": next((call for call in calls if call["method"] == method), None),
        "heads": None if located is None else smallest_set(located, method),
    }


def predicted_failure(summary: Mapping[str, Any], method: str, prediction: Prediction | None) -> dict[str, Any] | None:
    """The predicted failure length with its ends and the longest length; None for another model, M or parameters.

    The reference has none: its own losses are what the prediction rests on.
    """
    if prediction is None or method == summary["reference"] or not predicts(prediction, summary):
        return None
    row = prediction.methods.get(method)
    if not row or not row.failure or row.config != (summary.get("method_configs") or {}).get(method):
        return None
    return {**as_json(row.failure), "longest": prediction.longest}


def _nll(longest: Mapping[str, Any] | None, is_reference: bool) -> dict[str, Any] | None:
    """Tail NLL at the longest length, less the reference's on the same texts (0 of itself), others', and crop's."""
    if longest is None or longest.get("tail_nll") is None:
        return None
    itself = {"mean": 0.0, "low": 0.0, "high": 0.0} if is_reference else None
    ends = dict(zip(("low", "high"), longest["tail_nll_interval"], strict=True))
    differences = {"difference": longest.get("tail_nll_difference", itself), "less": longest["less"]}
    crop = longest.get("tail_nll_to_crop")
    return {"length": longest["length"], "mean": longest["tail_nll"], **ends, **differences, "crop": crop}


def _key(row: Mapping[str, Any]) -> tuple[float, float]:
    if row["held"] is None:
        return 1.0, 0.0
    return -1.0 - row["held"], math.inf if row["nll"] is None else row["nll"]["mean"]


def _is_worse(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the tail NLL is above the other's, its interval too; without an interval no two methods differ."""
    return _lies_above((row["nll"] or {}).get("less", {}).get(other["method"]))


def _lies_above(less: Mapping[str, Any] | None) -> bool:
    return less is not None and less["low"] is not None and less["low"] > 0
