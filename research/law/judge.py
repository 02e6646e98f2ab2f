"""p and q from the even texts, everything else from the odd ones: how far predictions are off, beside arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mesa.plan import relative_positions
from probe.commands.predict.formula import (
    ORIGIN,
    POWERS,
    QUERIES,
    REFERENCE,
    Calibration,
    Law,
    Losses,
    excess_curve,
    failure_length,
    far_keys_by_length,
    resampled,
    scored_queries,
    window_means,
)
from probe.commands.predict.run import PredictPlan, auc
from probe.statistics import student
from probe.thresholds.stated_window import NATS_ABOVE

DRAWS = 1000
GAPS = "p by gaps"
SCORES = ("rms", "auc", "within_one_step")
BOUNDS = {
    "arithmetic: largest distance at least M": np.greater_equal,
    "arithmetic: largest distance more than M": np.greater,
}


def judge(plan: PredictPlan, losses: Losses, fitted: str, others: Losses | None = None) -> dict[str, Any]:
    """Laws from the even texts, judged on the odd ones; the config `fitted` is judged apart from the others.

    A single text serves both: then p and q rest on its gaps and on Origin alone, and intervals are over configs.
    others: losses of other texts; then p and q come from these, and all texts are judged. by_judged_texts: what p and q
    these would have had.
    """
    step = min(2, len(plan.texts))
    halves = [{key: values[begin % step :: step] for key, values in losses.items()} for begin in (0, 1)]
    if others is not None:
        halves = [others, dict(losses)]
    trained, lengths = plan.trained_length, plan.lengths
    fit, test = (Calibration.of(trained, plan.gap_tokens, plan.longest, half) for half in halves)
    refusals = [half.refusal() for half in (fit, test)]
    if any(refusals):
        return {"model": plan.request.model, "texts": len(plan.texts), "refusals": refusals}
    ones = np.ones(fit.texts)
    law = fit.law(ones)
    names = [name for name in plan.methods if name not in (ORIGIN, fitted)]
    far = {name: far_keys_by_length(plan.methods[name], lengths, QUERIES) for name in plan.methods}
    measured = {name: _measured(plan, halves[1], name) for name in plan.methods}
    costs = {name: _cost(plan, halves[1], name) for name in plan.methods}
    powers = {GAPS: law.power, "count of far keys (p = 0)": 0.0, "largest distance (p = 12)": 12.0}
    if fitted in plan.methods:
        powers["p by Leaky-ReRoPE, k = 2"] = fitted_power(plan, halves[0], law, fitted)
    laws = {rule: fit.fit_scale_power(replace(law, power=power), ones) for rule, power in powers.items()}

    def predicted(rule: Law, counts: np.ndarray) -> np.ndarray:
        curve = excess_curve(np.average(test.differences(), axis=0, weights=counts), trained)
        excess = [replace(rule, excess=curve).at(far[name]) for name in names]
        return np.array(
            [part + np.average(costs[name], weights=counts) for part, name in zip(excess, names, strict=True)]
        )

    def truth(counts: np.ndarray) -> np.ndarray:
        return np.array([np.average(measured[name], axis=0, weights=counts) for name in names])

    rng = np.random.default_rng(0)
    draws = [(np.arange(len(names)), np.ones(test.texts))]
    for _ in range(DRAWS):
        counts = rng.multinomial(test.texts, np.full(test.texts, 1 / test.texts)).astype(float)
        draws.append((rng.integers(0, len(names), len(names)), counts))
    scores: dict[str, list[dict[str, float]]] = {rule: [] for rule in (*laws, *BOUNDS)}
    bounds = {rule: _bound(plan, names, compare) for rule, compare in BOUNDS.items()}
    for rows, counts in draws:
        values = truth(counts)
        for rule in laws:
            scores[rule].append(_scores(predicted(laws[rule], counts)[rows], values[rows], lengths))
        for rule in bounds:
            scores[rule].append(_scores(bounds[rule][rows], values[rows], lengths))
    best, whole = predicted(laws[GAPS], draws[0][1]), truth(draws[0][1])
    alone = test.law(np.ones(test.texts))
    curve = excess_curve(test.differences().mean(0), trained)
    final = replace(laws[GAPS], excess=curve)
    return {
        "model": plan.request.model,
        "trained_length": trained,
        "lengths": lengths,
        "texts": {"fitted": fit.texts, "judged": test.texts},
        "power_over_no_gap_and_masked": fit.fit_powers(law.excess, ones),
        "misfit": {"value": round(fit.gap_rms(law), 4), "gaps": len(fit.gaps), "units": "nats/token"},
        "by_judged_texts": {
            "power": alone.power,
            "scale_power": alone.scale_power,
            "misfit": _rounded(test.gap_rms(alone)),
        },
        "rules": {
            rule: {
                **({"power": laws[rule].power, "scale_power": laws[rule].scale_power} if rule in laws else {}),
                **{
                    name: _ends([draw[name] for draw in scores[rule]])
                    for name in SCORES
                    if rule in laws or name != "rms"
                },
            }
            for rule in scores
        },
        "less_arithmetic": {
            name: _ends(
                [one[name] - max(scores[rule][at][name] for rule in BOUNDS) for at, one in enumerate(scores[GAPS])]
            )
            for name in SCORES[1:]
        },
        "coverage": _coverage(plan, fit, test, laws[GAPS], {name: (measured[name], costs[name]) for name in names}),
        "curve": {"position": list(range(trained - 1, plan.longest - 1)), "excess": curve.round(4).tolist()},
        "configs": {
            name: {
                "z": far[name].mean(far[name].weighted_sums(final.power, final.scale_power)).round(1).tolist(),
                "predicted": best[number].round(4).tolist(),
                "measured": whole[number].round(4).tolist(),
                "failure": [failure_length(lengths, side[number]) for side in (best, whole)],
            }
            for number, name in enumerate(names)
        },
        "gaps": [
            {
                "boundary": at[0],
                "gap": at[1],
                "predicted": round(value, 4),
                **{
                    word: [*map(_rounded, (harm.mean(), *student(harm.tolist())))]
                    for word, harm in (
                        (word, test.gap_cost(at, masked=masked))
                        for word, masked in (("over_no_gap", False), ("over_masked", True))
                    )
                },
            }
            for at, value in zip(test.gaps, final.at(test.gap_keys).tolist(), strict=True)
        ],
    }


def _coverage(
    plan: PredictPlan,
    fit: Calibration,
    test: Calibration,
    law: Law,
    configs: dict[str, tuple[np.ndarray, np.ndarray]],
) -> dict[str, Any]:
    """How often the predicted 95% interval of a config and length has the measured mean, or meets its interval.

    configs: measured excess (text, length) and cost (text,). As `mesa-lens predict` draws them: over resampled texts,
    and with the gaps' misfit as a factor on Z.
    """
    if test.texts < 2:
        return {}
    draws = zip(resampled(fit.texts, DRAWS // 5), resampled(test.texts, DRAWS // 5, seed=1), strict=True)
    draws = [(fit.law(first), second) for first, second in draws]
    factors = np.random.default_rng(0).choice(fit.needed_factors(law), len(draws))
    curves = [
        excess_curve(np.average(test.differences(), axis=0, weights=counts), plan.trained_length) for _, counts in draws
    ]
    counted: dict[str, list[bool]] = {
        f"{kind} {side}": [] for kind in ("has_mean", "meets_interval") for side in ("far", "near")
    }
    for name, (measured, costs) in configs.items():
        far = far_keys_by_length(plan.methods[name], plan.lengths, QUERIES)
        values = [
            replace(one, excess=curve).at(far, factor) + np.average(costs, weights=counts)
            for (one, counts), curve, factor in zip(draws, curves, factors, strict=True)
        ]
        low, high = np.quantile(values, [0.025, 0.975], axis=0)
        below, above = np.array([student(column.tolist()) for column in measured.T]).T
        mean = measured.mean(0)
        for at, is_far in enumerate(far.mean(far.sums[0]) > 0):
            side = "far" if is_far else "near"
            counted[f"has_mean {side}"].append(bool(low[at] <= mean[at] <= high[at]))
            counted[f"meets_interval {side}"].append(bool(low[at] <= above[at] and below[at] <= high[at]))
    return {name: [sum(hits), len(hits)] for name, hits in counted.items()}


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
    """1 where a scored query sees such a distance, else 0: (config, length), for `_scores`."""

    def largest(name: str, length: int) -> float:
        queries = scored_queries(length, plan.trained_length, QUERIES)
        return float(relative_positions(plan.methods[name].plan(length), queries, np.arange(length)).max())

    return np.array(
        [[float(compare(largest(name, length), plan.trained_length)) for length in plan.lengths] for name in names]
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


def _ends(values: Sequence[float]) -> list[float]:
    """The first value, of all configs and texts, and the 95% interval of the others, resampled."""
    return [_rounded(values[0]), *map(_rounded, np.nanquantile(values[1:], [0.025, 0.975]))]


def _rounded(value: float | None) -> float:
    return round(float("nan") if value is None else float(value), 4)
