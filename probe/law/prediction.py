"""What is predicted of each method, and how it compares with what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mesa.methods import Method
from probe.law.calibration import ORIGIN, QUERIES, REFERENCE, Calibration, Losses, resampled, window_means
from probe.law.formula import Law, failure_length, far_keys_by_length, length_grid
from probe.law.plan import PredictPlan
from probe.statistics import student
from probe.thresholds.stated_window import NATS_ABOVE

DRAWS = 200
"""Resamplings of the texts for every interval."""
_CURVE = 200  # stored points of Origin's excess


def predict(plan: PredictPlan, losses: Losses) -> dict[str, Any]:
    """Everything that follows from the losses of all passes, ready for JSON; docs/law.md names the keys."""
    calibration = Calibration.of(plan.trained_length, plan.gap_tokens, plan.longest, losses)
    summary: dict[str, Any] = {
        "model": plan.request.model,
        "trained_length": plan.trained_length,
        "lengths": list(plan.lengths),
        "texts": len(plan.texts),
        "refusal": calibration.refusal(),
        "misfit": None,
        "methods": {},
    }
    weights = resampled(len(plan.texts), DRAWS)
    draws = [] if summary["refusal"] else [calibration.law(weight) for weight in weights]
    factors = [1.0]
    if draws:
        needed = calibration.needed_factors(draws[0])
        factors += np.random.default_rng(0).choice(needed, DRAWS).tolist()
        misfit = calibration.gap_rms(draws[0])
        summary["misfit"] = {
            "rms": misfit,
            "too_large": misfit >= NATS_ABOVE,
            "units": "nats/token",
            "gaps": len(calibration.gaps),
            "largest_cost": float(max(calibration.gap_cost(at, masked=False).mean() for at in calibration.gaps)),
        }
        summary["law"] = _law(calibration, draws, needed)
    for name, method in plan.methods.items():
        row: dict[str, Any] = {"config": method.describe(), "refusal": plan.refused.get(name, "") or summary["refusal"]}
        if not row["refusal"]:
            row |= _predicted(plan, losses, name, method, draws, factors, weights)
        if plan.request.check or name == ORIGIN:
            row["measured"], row["measured_failure"] = _measured(plan, losses, name)
        summary["methods"][name] = row
    if plan.request.check and not summary["refusal"]:
        both = {
            name: row
            for name, row in summary["methods"].items()
            if name not in (ORIGIN, REFERENCE) and {"predicted", "measured"} <= row.keys()
        }
        both = {str(row["config"]): row for row in reversed(both.values())}  # a config that has two names counts once
        far = {name: row for name, row in both.items() if row["has_far_keys"]}
        groups = {"all methods": both, "those with distances beyond M": far}
        summary["agreement"] = {text: agreement(rows, plan.lengths) for text, rows in groups.items()}
    return summary


def agreement(methods: Mapping[str, Mapping[str, Any]], lengths: Sequence[int]) -> dict[str, Any]:
    """Predicted against measured excess of these rows of the summary.

    points: (method, length) pairs. fails: methods that fail by measurement. rms, bias: nats/token, predicted less
    measured. auc: whether the predicted excess ranks pairs that fail above those that hold; None where all do the same.
    exact, within_one_step: methods whose failure length is right, exactly and within one of the lengths (none counts as
    the step after the longest).
    """
    predicted, measured = (
        np.array([[entry["excess"] for entry in row[side]] for row in methods.values()])
        for side in ("predicted", "measured")
    )
    if not methods:
        return {"methods": 0, "points": 0}
    steps = [
        abs(_step(first, lengths) - _step(second, lengths)) for first, second in zip(predicted, measured, strict=True)
    ]
    errors = predicted - measured
    return {
        "methods": len(methods),
        "fails": sum(failure_length(lengths, row) is not None for row in measured),
        "points": errors.size,
        "rms": float(np.sqrt((errors**2).mean())),
        "bias": float(errors.mean()),
        "auc": auc(predicted.ravel(), measured.ravel() >= NATS_ABOVE),
        "exact": sum(step == 0 for step in steps),
        "within_one_step": sum(step <= 1 for step in steps),
    }


def _step(excess: np.ndarray, lengths: Sequence[int]) -> int:
    length = failure_length(lengths, excess)
    return len(lengths) if length is None else list(lengths).index(length)


def auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """The share of (positive, negative) pairs in which the positive has the higher score, ties half."""
    above, below = scores[positive], scores[~positive]
    if not len(above) or not len(below):
        return None
    difference = above[:, None] - below[None, :]
    return float(((difference > 0) + (difference == 0) / 2).mean())


def _law(calibration: Calibration, draws: Sequence[Law], needed: np.ndarray) -> dict[str, Any]:
    first = draws[0]
    ones = np.ones(calibration.texts)
    raw, controlled = calibration.fit_powers(first.excess, ones)
    positions = np.unique(np.geomspace(1, len(first.excess), _CURVE).round().astype(int)) - 1
    return {
        "power": _with_ends([law.power for law in draws]),
        "power_over_no_gap": raw,
        "power_over_masked": controlled,
        "scale_power": _with_ends([law.scale_power for law in draws]) if calibration.has_log_n else None,
        "needed_factors": np.quantile(needed, [0.025, 0.975]).tolist(),
        "origin_fails": failure_length(range(calibration.trained_length, calibration.longest), first.excess),
        "excess": {
            "position": (positions + calibration.trained_length - 1).tolist(),
            "value": first.excess[positions].tolist(),
            "ends": np.quantile([law.excess[positions] for law in draws[1:]], [0.025, 0.975], axis=0).tolist(),
        },
        "gaps": [
            {
                "boundary": boundary,
                "gap": gap,
                "predicted": value,
                "over_no_gap": float(calibration.gap_cost((boundary, gap), masked=False).mean()),
                "over_masked": float(calibration.gap_cost((boundary, gap), masked=True).mean()),
            }
            for (boundary, gap), value in zip(calibration.gaps, first.at(calibration.gap_keys).tolist(), strict=True)
        ],
    }


def _predicted(
    plan: PredictPlan,
    losses: Losses,
    name: str,
    method: Method,
    draws: Sequence[Law],
    factors: Sequence[float],
    weights: Sequence[np.ndarray],
) -> dict[str, Any]:
    """Excess and NLL by length, and the failure length, with 95% intervals over resampled texts and gaps."""
    trained, longest = plan.trained_length, plan.longest
    inside = [window_means(losses[key, trained], trained, trained, trained) for key in (name, ORIGIN)]
    costs = [float(np.average(inside[0] - inside[1], weights=weight)) for weight in weights]
    grid = length_grid(plan.lengths, trained)
    far = far_keys_by_length(method, grid, QUERIES)
    if any(law.is_beyond(far) for law in draws):
        return {"refusal": f"keys are further away than any of Origin's within {longest} tokens; try longer --lengths"}
    excess = np.array([law.at(far, times) + cost for law, times, cost in zip(draws, factors, costs, strict=True)])
    rows = []
    for length in plan.lengths:
        values = excess[:, grid.index(length)]
        level = window_means(losses[REFERENCE, longest], longest, length, trained)
        levels = [float(np.average(level, weights=weight)) for weight in weights]
        nll = _with_ends(values + levels)
        rows.append({"length": length, "excess": float(values[0]), "excess_ends": _ends(values), "nll": nll})
    failures = [failure_length(grid, row) for row in excess]
    return {
        "cost_inside": costs[0],
        "has_far_keys": bool(far.sums.any()),
        "predicted": rows,
        "failure": _failure(failures, longest),
    }


def _measured(plan: PredictPlan, losses: Losses, name: str) -> tuple[list[dict[str, Any]], int | None]:
    """Excess and NLL by length, as they were measured, with Student's 95% intervals; and the failure length."""
    rows = []
    for length in plan.lengths:
        prompt = length if (name, length) in losses else plan.longest
        nll = window_means(losses[name, prompt], prompt, length, plan.trained_length)
        excess = nll - window_means(losses[REFERENCE, plan.longest], plan.longest, length, plan.trained_length)
        row = {"length": length, "excess": float(excess.mean()), "excess_ends": student(excess.tolist())}
        rows.append({**row, "nll": {"value": float(nll.mean()), "ends": student(nll.tolist())}})
    return rows, failure_length(plan.lengths, np.array([row["excess"] for row in rows]))


def _failure(failures: Sequence[int | None], longest: int) -> dict[str, Any]:
    """The failure length with the ends of its interval; None: none up to the longest length."""
    ends = np.quantile(
        [longest + 1 if length is None else length for length in failures[1:]], [0.025, 0.975], method="nearest"
    )
    low, high = (None if end > longest else int(end) for end in ends)
    return {"length": failures[0], "ends": [low, high]}


def _with_ends(values: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """The first value, of all texts, with the 95% interval of the others, of resampled texts."""
    return {"value": float(values[0]), "ends": _ends(values)}


def _ends(values: Sequence[float] | np.ndarray) -> list[float]:
    return np.quantile(values[1:], [0.025, 0.975]).tolist()
