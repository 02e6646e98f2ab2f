"""p and q from the even texts, everything else from the odd ones: how far predictions are off, beside arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mesa.plan import reach
from probe.predict.calibration import ORIGIN, QUERIES, REFERENCE, Calibration, Losses, window_means
from probe.predict.law import POWERS, Law, excess_curve, failure_length, far_keys_by_length
from probe.predict.plan import PredictPlan
from probe.predict.prediction import auc
from probe.thresholds.stated_window import NATS_ABOVE

DRAWS = 1000


def judge(plan: PredictPlan, losses: Losses, fitted: str) -> dict[str, Any]:
    """Laws from the even texts, judged on the odd ones; the config `fitted` is judged apart from the others."""
    halves = [{key: values[begin::2] for key, values in losses.items()} for begin in (0, 1)]
    trained, lengths = plan.trained_length, plan.lengths
    fit, test = (Calibration.of(trained, plan.gap_tokens, plan.longest, half) for half in halves)
    refusals = [half.refusal() for half in (fit, test)]
    if any(refusals):
        return {"model": plan.request.model, "texts": len(plan.texts), "refusals": refusals}
    law = fit.law(np.ones(fit.texts))
    powers = {"p by gaps": law.power, "count of far keys (p = 0)": 0.0, "largest distance (p = 12)": 12.0}
    if fitted in plan.methods:
        powers["p by Leaky-ReRoPE, k = 2"] = fitted_power(plan, halves[0], law, fitted)
    names = [name for name in plan.methods if name not in (ORIGIN, fitted)]
    far = {name: far_keys_by_length(plan.methods[name], lengths, QUERIES) for name in plan.methods}
    weights = np.ones(test.texts)
    measured = {name: _measured(plan, halves[1], name) for name in plan.methods}
    costs = {name: _cost(plan, halves[1], name) for name in plan.methods}

    def predicted(power: float, counts: np.ndarray) -> np.ndarray:
        curve = excess_curve(np.average(test.differences(), axis=0, weights=counts), trained)
        rule = Law(trained, curve, power, law.scale_power)
        return np.array([rule.at(far[name]) + np.average(costs[name], weights=counts) for name in names])

    rng = np.random.default_rng(0)
    draws = [
        (rng.integers(0, len(names), len(names)), rng.multinomial(test.texts, np.full(test.texts, 1 / test.texts)))
        for _ in range(DRAWS)
    ]
    truth = [np.array([np.average(measured[name], axis=0, weights=counts) for name in names]) for _, counts in draws]
    whole = np.array([measured[name].mean(0) for name in names])
    rules = {}
    for rule, power in powers.items():
        estimates = [predicted(power, counts) for _, counts in draws]
        resampled = [
            _scores(estimate[rows], values[rows], lengths)
            for estimate, values, (rows, _) in zip(estimates, truth, draws, strict=True)
        ]
        rules[rule] = {"power": power, **_summary(_scores(predicted(power, weights), whole, lengths), resampled)}
    bounds = {
        f"arithmetic: largest distance {word} M": _bound(plan, names, compare)
        for word, compare in (("at least", np.greater_equal), ("more than", np.greater))
    }
    for rule, excess in bounds.items():
        resampled = [
            _scores(excess[rows], values[rows], lengths) for values, (rows, _) in zip(truth, draws, strict=True)
        ]
        rules[rule] = _summary(_scores(excess, whole, lengths), resampled)
        del rules[rule]["rms"]
    best = predicted(law.power, weights)
    return {
        "model": plan.request.model,
        "trained_length": trained,
        "lengths": lengths,
        "texts": {"fitted": fit.texts, "judged": test.texts},
        "power": law.power,
        "power_over_no_gap_and_masked": fit.powers(law.excess, np.ones(fit.texts)),
        "scale_power": law.scale_power,
        "rules": rules,
        "configs": {
            name: {
                "predicted": best[number].round(4).tolist(),
                "measured": whole[number].round(4).tolist(),
                "failure": [failure_length(lengths, side[number]) for side in (best, whole)],
            }
            for number, name in enumerate(names)
        },
        "origin": measured[ORIGIN].mean(0).round(4).tolist(),
        "gaps": {
            f"{boundary} {gap}": [
                round(float(test.harm((boundary, gap), masked=masked).mean()), 4) for masked in (False, True)
            ]
            for boundary, gap in test.gaps
        },
    }


def fitted_power(plan: PredictPlan, losses: Losses, law: Law, name: str) -> float:
    """The power that fits the excess of one method by length best."""
    far = far_keys_by_length(plan.methods[name], plan.lengths, QUERIES)
    measured = _measured(plan, losses, name).mean(0) - _cost(plan, losses, name).mean()

    def squares(power: float) -> float:
        return float(((Law(plan.trained_length, law.excess, power).at(far) - measured) ** 2).sum())

    return float(min(POWERS, key=squares))


def _measured(plan: PredictPlan, losses: Losses, name: str) -> np.ndarray:
    """Excess over the reference (text, length)."""
    rows = []
    for length in plan.lengths:
        prompt = length if (name, length) in losses else plan.longest
        own, reference = (
            window_means(losses[key], key[1], length, plan.trained_length)
            for key in ((name, prompt), (REFERENCE, plan.longest))
        )
        rows.append(own - reference)
    return np.array(rows).T


def _cost(plan: PredictPlan, losses: Losses, name: str) -> np.ndarray:
    trained = plan.trained_length
    inside = [window_means(losses[key, trained], trained, trained, trained) for key in (name, ORIGIN)]
    return inside[0] - inside[1]


def _bound(plan: PredictPlan, names: Sequence[str], compare: Callable[..., Any]) -> np.ndarray:
    """1 where a query of the prompt sees such a distance, else 0: (config, length), for `_scores`."""
    return np.array(
        [
            [
                float(compare(float(reach(plan.methods[name].plan(length)).max()), plan.trained_length))
                for length in plan.lengths
            ]
            for name in names
        ]
    )


def _scores(predicted: np.ndarray, measured: np.ndarray, lengths: Sequence[int]) -> dict[str, float]:
    """rms (nats/token), AUC of fails or holds, and the share of configs right within one length."""
    steps = [
        [
            len(lengths) if (length := failure_length(lengths, row)) is None else list(lengths).index(length)
            for row in side
        ]
        for side in (predicted, measured)
    ]
    rank = auc(predicted.ravel(), measured.ravel() >= NATS_ABOVE)
    return {
        "rms": float(np.sqrt(((predicted - measured) ** 2).mean())),
        "auc": np.nan if rank is None else rank,
        "within_one_step": float(np.mean(np.abs(np.array(steps[0]) - steps[1]) <= 1)),
    }


def _summary(value: Mapping[str, float], resampled: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Each score with its 95% interval over configs and texts."""
    return {
        name: [value[name], *np.nanquantile([draw[name] for draw in resampled], [0.025, 0.975]).tolist()]
        for name in value
    }
