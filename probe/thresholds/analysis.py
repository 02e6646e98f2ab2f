"""Everything read from a run, worked out once: thresholds, predictions, control, measured failures; and its summary."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import xarray as xr

from probe.evaluation.summary import intervals
from probe.store.reader import Run
from probe.store.select import hook_values, reference_method
from probe.thresholds.failure import Measured, measured_failure
from probe.thresholds.predict import Prediction, best, negative_control, predict
from probe.thresholds.search import CrossingRule, search

TOP = 10
"""Dims that a prediction is the median of."""

_MULTIPLES = (1, 2, 4)


@dataclass(frozen=True)
class Analysis:
    """A run and what was read from it.

    prompt: the first one, whose best dims make the headline predictions. predictions: by prompt.
    control: the negative control, or why it could not be made. measured: None if nothing was measured by length.
    """

    run: Run
    hidden: xr.DataArray
    reference: str
    prompt: str
    found: xr.Dataset
    predictions: dict[str, list[Prediction]]
    control: xr.Dataset | str
    measured: Measured | None

    @property
    def trained_length(self) -> int:
        """The trained window M, in tokens."""
        return self.run.trained_length

    @property
    def best(self) -> list[tuple[int, int]]:
        """The (layer, dim) pairs of the headline predictions, best first."""
        return best(self.found.sel(prompt=self.prompt), TOP)


def analyse(run: Run, hook: str | None = None, rule: CrossingRule | None = None) -> Analysis:
    """Reads thresholds, predictions and measured failures from a run, for `hook` (default: its first).

    The reference is Origin, or the run's first method. Raises ValueError for an unknown hook and where `search` does.
    """
    trained = run.trained_length
    hidden = hook_values(run, hook)
    reference = reference_method(hidden["method"].values.tolist())
    rule = rule or CrossingRule.scaled(trained)
    found = search(hidden, trained, rule, reference)
    try:
        control: xr.Dataset | str = negative_control(hidden, trained, trained // 2, rule, reference)
    except ValueError as error:
        control = str(error)
    prompts = hidden["prompt"].values.tolist()
    predictions = {prompt: predict(found.sel(prompt=prompt), TOP) for prompt in prompts}
    measured = None if run.evaluation is None else measured_failure(run.evaluation, trained, reference)
    return Analysis(run, hidden, reference, prompts[0], found, predictions, control, measured)


def summarize(analysis: Analysis) -> dict[str, Any]:
    """The analysis as plain numbers and texts, for summary.json."""
    found, attrs = analysis.found, analysis.run.hidden.attrs
    at_best = found.sel(prompt=analysis.prompt)
    return {
        "model": attrs.get("model"),
        "model_revision": attrs.get("model_revision"),
        "trained_length": analysis.trained_length,
        "captured_length": found.attrs["length"],
        "hook": found.attrs["hook"],
        "prompt": analysis.prompt,
        "reference": analysis.reference,
        "rule": {name: found.attrs[name] for name in CrossingRule.__dataclass_fields__},
        "searched": found.attrs["searched"],
        "qualified": {prompt: int(found["qualified"].sel(prompt=prompt)) for prompt in analysis.predictions},
        "best": [
            {
                "layer": layer,
                "dim": dim,
                **{name: float(at_best[name].sel(layer=layer, dim=dim)) for name in ("score", "threshold", "limit")},
            }
            for layer, dim in analysis.best
        ],
        "methods": [_method_row(analysis, name) for name in analysis.hidden["method"].values.tolist()],
        "control": _control_rows(analysis.control),
        "failure_rule": None if analysis.measured is None else analysis.measured.rule,
        "passkey_judged": analysis.measured is not None and analysis.measured.passkey_judged,
        "measured_lengths": [] if analysis.measured is None else list(analysis.measured.lengths),
        "method_configs": json.loads(attrs.get("method_configs", "{}")),
        "versions": json.loads(attrs.get("versions", "{}")),
        "created": attrs.get("created"),
    }


def table(summary: dict[str, Any]) -> str:
    """The summary's methods as a plain-text table, one line a method."""
    multiples = list(summary["methods"][0]["scores"])
    head = ["method", "predicted", "measured", *(f"NLL {m}" for m in multiples), *(f"passkey {m}" for m in multiples)]
    rows = [head]
    for row in summary["methods"]:
        scores = [_number(row["scores"][m][name]) for name in ("tail_nll", "passkey") for m in multiples]
        rows.append([row["method"], row["predicted"]["text"], row["measured"]["text"], *scores])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _method_row(analysis: Analysis, method: str) -> dict[str, Any]:
    """A method's predicted and measured failure lengths, and its scores at 1, 2 and 4 M."""
    by_prompt = {prompt: _of(each, method) for prompt, each in analysis.predictions.items()}
    predicted = by_prompt[analysis.prompt]
    row: dict[str, Any] = {
        "method": method,
        "predicted": {**asdict(predicted), "text": str(predicted)},
        "predicted_by_prompt": {prompt: str(each) for prompt, each in by_prompt.items()},
        "measured": {"text": "not measured"},
        "scores": {_multiple(m): {"tail_nll": None, "passkey": None} for m in _MULTIPLES},
    }
    evaluation, measured = analysis.run.evaluation, analysis.measured
    if evaluation is None or measured is None:
        return row
    failure = _of(measured.failures, method)
    row["measured"] = {
        "length": failure.length,
        "by_nll": failure.by_nll,
        "by_passkey": failure.by_passkey,
        "text": f"none up to {measured.lengths[-1]}" if failure.length is None else str(failure.length),
    }
    for multiple in _MULTIPLES:
        length = multiple * analysis.trained_length
        if length in measured.lengths:
            scores = evaluation.sel({"method": method, "length": length})
            means = {name: float(scores[name].mean()) for name in ("tail_nll", "passkey") if name in scores}
            row["scores"][_multiple(multiple)].update({**means, **intervals(scores)})
    return row


def _control_rows(control: xr.Dataset | str) -> list[dict[str, Any]] | str:
    if isinstance(control, str):
        return control
    return [
        {"comparison": str(row["comparison"].item())}
        | {name: int(row[name]) for name in ("at", "first", "last", "searched")}
        | {"qualified": dict(zip(row["prompt"].values.tolist(), row["qualified"].values.tolist(), strict=True))}
        | {"share": dict(zip(row["prompt"].values.tolist(), row["share"].values.tolist(), strict=True))}
        for row in (control.isel(comparison=index) for index in range(control.sizes["comparison"]))
    ]


def _of(each: Any, method: str) -> Any:
    """The one of `each` that is about `method`."""
    return next(one for one in each if one.method == method)


def _multiple(multiple: int) -> str:
    return "M" if multiple == 1 else f"{multiple}M"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
