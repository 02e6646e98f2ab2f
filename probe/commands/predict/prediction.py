"""What is predicted of each method, and how it compares with what was measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mesa.methods import Method
from probe.commands.predict.calibration import ORIGIN, QUERIES, REFERENCE, Calibration, Losses, resampled, window_means
from probe.commands.predict.formula import Law, failure_length, far_keys_by_length, length_grid
from probe.commands.predict.kind import kind_of, student_estimate
from probe.commands.predict.plan import PredictPlan
from probe.commands.predict.result import (
    Agreement,
    AtLength,
    Curve,
    Estimate,
    FailureEstimate,
    FittedLaw,
    GapCost,
    Interval,
    MethodPrediction,
    Misfit,
    Prediction,
)
from probe.experiment.run import origin_of
from probe.store.results import number
from probe.thresholds.stated_window import NATS_ABOVE

DRAWS = 200
"""Resamplings of the texts for every interval."""
_CURVE = 200  # stored points of Origin's excess


def predict(plan: PredictPlan, losses: Losses) -> Prediction:
    """Everything that follows from the losses of all passes."""
    calibration = Calibration.of(plan.trained_length, plan.gap_tokens, plan.longest, losses)
    weights = resampled(len(plan.texts), DRAWS)
    refusal, law, misfit, draws, factors = calibration.refusal(), None, None, list[Law](), [1.0]
    if not refusal:
        draws = [calibration.law(weight) for weight in weights]
        needed = calibration.needed_factors(draws[0])
        factors += np.random.default_rng(0).choice(needed, DRAWS).tolist()
        law, misfit = _law(calibration, draws, needed), _misfit(calibration, draws[0])
        law = replace(law, kind=kind_of(losses, plan.trained_length, plan.gap_tokens, plan.longest))
    methods = {}
    for name, method in plan.methods.items():
        why, values = plan.refused.get(name, "") or refusal, {}
        if not why:
            why, values = _predicted(plan, losses, name, method, draws, factors, weights)
        if plan.request.check or name == ORIGIN:
            values |= _measured(plan, losses, name)
        methods[name] = MethodPrediction(method.describe(), why, **values)
    agreement = _agreements(methods, plan.lengths) if plan.request.check and not refusal else {}
    return replace(started(plan), refusal=refusal, misfit=misfit, methods=methods, law=law, agreement=agreement)


def started(plan: PredictPlan, tasks_left: int = 0) -> Prediction:
    """What is known before everything is measured."""
    request, lengths = plan.request, list(plan.lengths)
    return Prediction(
        model=request.model,
        trained_length=plan.trained_length,
        lengths=lengths,
        texts=len(plan.texts),
        refusal="",
        misfit=None,
        methods={},
        tasks_left=tasks_left,
        origin=origin_of(plan),
        text_source=plan.text_source,
    )


def agreement(methods: Collection[MethodPrediction], lengths: Sequence[int]) -> Agreement:
    """Predicted against measured excess of these methods."""
    if not methods:
        return Agreement(0, 0)
    predicted, measured = (
        np.array([[entry.excess for entry in getattr(row, side)] for row in methods])
        for side in ("predicted", "measured")
    )
    steps = [abs(_step(one, lengths) - _step(other, lengths)) for one, other in zip(predicted, measured, strict=True)]
    errors = predicted - measured
    return Agreement(
        methods=len(methods),
        points=errors.size,
        fails=sum(failure_length(lengths, row) is not None for row in measured),
        rms=float(np.sqrt((errors**2).mean())),
        bias=float(errors.mean()),
        auc=number(auc(predicted.ravel(), measured.ravel() >= NATS_ABOVE)),
        exact=sum(step == 0 for step in steps),
        within_one_step=sum(step <= 1 for step in steps),
    )


def _agreements(methods: Mapping[str, MethodPrediction], lengths: Sequence[int]) -> dict[str, Agreement]:
    both = [row for name, row in methods.items() if name not in (ORIGIN, REFERENCE) and row.predicted and row.measured]
    both = list({str(row.config): row for row in reversed(both)}.values())  # a config that has two names counts once
    far = [row for row in both if row.has_far_keys]
    groups = {"all methods": both, "those with distances beyond M": far}
    return {text: agreement(rows, lengths) for text, rows in groups.items()}


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


def _misfit(calibration: Calibration, law: Law) -> Misfit:
    rms = calibration.gap_rms(law)
    return Misfit(rms, rms >= NATS_ABOVE, "nats/token", len(calibration.gaps), float(calibration.costs()[0].max()))


def _law(calibration: Calibration, draws: Sequence[Law], needed: np.ndarray) -> FittedLaw:
    first = draws[0]
    raw, controlled = calibration.fit_powers(first.excess, np.ones(calibration.texts))
    positions = np.unique(np.geomspace(1, len(first.excess), _CURVE).round().astype(int)) - 1
    low, high = np.quantile([law.excess[positions] for law in draws[1:]], [0.025, 0.975], axis=0).tolist()
    return FittedLaw(
        power=_estimate([law.power for law in draws]),
        power_over_no_gap=raw,
        power_over_masked=controlled,
        scale_power=_estimate([law.scale_power for law in draws]) if calibration.has_log_n else None,
        needed_factors=_ends(needed),
        origin_fails=failure_length(range(calibration.trained_length, calibration.longest), first.excess),
        excess=Curve(
            (positions + calibration.trained_length - 1).tolist(), first.excess[positions].tolist(), (low, high)
        ),
        gaps=[
            GapCost(*at, value, *costs)
            for at, value, costs in zip(
                calibration.gaps, first.at(calibration.gap_keys).tolist(), calibration.costs().T.tolist(), strict=True
            )
        ],
    )


def _predicted(
    plan: PredictPlan,
    losses: Losses,
    name: str,
    method: Method,
    draws: Sequence[Law],
    factors: Sequence[float],
    weights: Sequence[np.ndarray],
) -> tuple[str, dict[str, Any]]:
    """Why nothing is predicted, else empty; and fields of a `MethodPrediction`: intervals over texts and gaps."""
    trained, longest = plan.trained_length, plan.longest
    inside = [window_means(losses[key, trained], trained, trained, trained) for key in (name, ORIGIN)]
    costs = [float(np.average(inside[0] - inside[1], weights=weight)) for weight in weights]
    grid = length_grid(plan.lengths, trained)
    far = far_keys_by_length(method, grid, QUERIES)
    if any(law.is_beyond(far) for law in draws):
        return f"keys are further away than any of Origin's within {longest} tokens; try longer --lengths", {}
    excess = np.array([law.at(far, times) + cost for law, times, cost in zip(draws, factors, costs, strict=True)])
    rows = []
    for length in plan.lengths:
        values = excess[:, grid.index(length)]
        level = window_means(losses[REFERENCE, longest], longest, length, trained)
        levels = [float(np.average(level, weights=weight)) for weight in weights]
        rows.append(AtLength(length, float(values[0]), _ends(values[1:]), _estimate(values + levels)))
    return "", {
        "cost_inside": costs[0],
        "has_far_keys": bool(far.sums.any()),
        "predicted": rows,
        "failure": _failure([failure_length(grid, row) for row in excess], longest),
    }


def _measured(plan: PredictPlan, losses: Losses, name: str) -> dict[str, Any]:
    """Fields of a `MethodPrediction`, as they were measured: Student's intervals."""
    rows = []
    for length in plan.lengths:
        prompt = length if (name, length) in losses else plan.longest
        nll = window_means(losses[name, prompt], prompt, length, plan.trained_length)
        excess = nll - window_means(losses[REFERENCE, plan.longest], plan.longest, length, plan.trained_length)
        difference = student_estimate(excess)
        rows.append(AtLength(length, difference.value, difference.ends, student_estimate(nll)))
    failure = failure_length(plan.lengths, np.array([row.excess for row in rows]))
    return {"measured": rows, "measured_failure": failure}


def _failure(failures: Sequence[int | None], longest: int) -> FailureEstimate:
    ends = np.quantile(
        [longest + 1 if length is None else length for length in failures[1:]], [0.025, 0.975], method="nearest"
    )
    low, high = (None if end > longest else int(end) for end in ends)
    return FailureEstimate(failures[0], (low, high))


def _estimate(values: Sequence[float] | np.ndarray) -> Estimate:
    """The first value, of all texts, with the 95% interval of the others, of resampled texts."""
    return Estimate(float(values[0]), _ends(values[1:]))


def _ends(values: Sequence[float] | np.ndarray) -> Interval:
    low, high = np.quantile(values, [0.025, 0.975]).tolist()
    return low, high
