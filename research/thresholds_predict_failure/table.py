"""A study's results as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from probe.thresholds.predict import LEAST, TOP
from research.thresholds_predict_failure.results import BOUNDS, DRIFT, PASSKEY
from research.thresholds_predict_failure.score import Estimate, Score, advantage, resamples, score, share
from research.thresholds_predict_failure.variants import REFERENCE

MULTIPLES = (2, 4, 8)
"""Thresholds of 'fails by that length', in trained windows."""
NEAR_MULTIPLES = (1.25, 1.5, 2)
"""The same where L is below 4 M."""
_UNJUDGED = "not judged: at chance inside M"
RULE = "standard"
"""The headline's, as the paper reads."""


def settings(results: xr.Dataset) -> dict[str, Any]:
    """What the study was asked for."""
    return json.loads(results.attrs["settings"])


def tables(results: xr.Dataset) -> str:
    """Every table as Markdown, each under a line that says what it shows."""
    return "\n\n".join(f"**{title}**\n\n{_markdown(rows)}" for title, rows in all_rows(results))


def all_rows(results: xr.Dataset) -> list[tuple[str, list[Sequence[str]]]]:
    """Every table that there is: what it shows, and its rows as texts, the head first."""
    others = without_reference(results)
    parts = (
        ("The comparison chosen beforehand, and the highest of all", _leading_rows(others)),
        ("Rank correlation of predicted with measured failure length", _correlation_rows(others)),
        ("Share of right calls of 'fails by that length'", _call_rows(others)),
        ("Rank correlation by number of dims, and the share of pairs called", _top_rows(others)),
        ("Rank correlation by measured criterion", _criterion_rows(others)),
        (
            "Measured over predicted length, where both fail: median (10% to 90% of pairs); calls too late",
            _ratio_rows(others),
        ),
        ("Negative control: the same inside the window", _control_rows(results) if "false" in results else []),
        ("Failure lengths by method config, median over seeds (least to most)", _config_rows(results)),
    )
    return [(title, rows) for title, rows in parts if rows]


def without_reference(results: xr.Dataset) -> xr.Dataset:
    """What is scored: Origin's own prediction follows the stated M by construction, and is a description."""
    return results.sel(config=[name for name in results["config"].values.tolist() if name != REFERENCE])


def scored(results: xr.Dataset, criterion: str = "either", **which: Any) -> Score:
    """The score of one kind of prediction, `which` naming prompt, rule and perhaps top, against a criterion."""
    results = without_reference(results)
    predicted = predicted_lengths(results, **which)
    return score(predicted, _measured(results, criterion), _thresholds(results))


def arithmetic(results: xr.Dataset, bound: str = BOUNDS[0]) -> np.ndarray:
    """The arithmetic prediction (config, seed), the same for every seed."""
    return np.repeat(results["arithmetic"].sel(bound=bound).values[:, None], results.sizes["seed"], axis=1)


def predicted_lengths(results: xr.Dataset, **which: Any) -> np.ndarray:
    """Predicted lengths (config, seed), NaN for no call: the headline's kind, but for what `which` names."""
    tops = results["top"].values.tolist()
    chosen = {"top": TOP if TOP in tops else tops[0], "prompt": headline(results), "rule": RULE, **which}
    return results["predicted"].sel(chosen).transpose("config", "seed").values


def headline(results: xr.Dataset) -> str:
    """The prompt of the headline's predictions: the repeated word, or what else there is."""
    prompts = results["prompt"].values.tolist()
    return "repeated" if "repeated" in prompts else prompts[0]


def drifting(results: xr.Dataset) -> bool:
    """Whether lengths were predicted by drift."""
    return DRIFT in results["rule"].values.tolist()


def bounds(results: xr.Dataset) -> list[str]:
    """The arithmetic predictions there are."""
    return results["bound"].values.tolist()


def _measured(results: xr.Dataset, criterion: str = "either") -> np.ndarray:
    return results["measured"].sel(criterion=criterion).transpose("config", "seed").values


def _thresholds(results: xr.Dataset) -> tuple[int, ...]:
    asked = settings(results)
    trained, length = asked["trained_length"], asked["length"]
    every = (int(multiple * trained) for multiple in (MULTIPLES if length >= 4 * trained else NEAR_MULTIPLES))
    return tuple(threshold for threshold in every if threshold <= length)


def _kinds(results: xr.Dataset) -> list[dict[str, str]]:
    return [
        {"prompt": p, "rule": r} for p in results["prompt"].values.tolist() for r in results["rule"].values.tolist()
    ]


def _leading_rows(results: xr.Dataset) -> list[Sequence[str]]:
    """The headline's kind against 'either', whatever it scores; below it what scores highest, chosen by its score."""
    tops, once = results["top"].values.tolist(), np.ones((1, results.sizes["config"]))
    chosen = {"prompt": headline(results), "rule": RULE, "top": TOP if TOP in tops else tops[0], "criterion": "either"}
    every = [
        {**kind, "top": top, "criterion": name}
        for kind in _kinds(results)
        for top in (tops[:1] if kind["rule"] == DRIFT else tops)
        for name in results["criterion"].values.tolist()
    ]
    values = [score(*_lengths_of(results, **each), (), once).correlation.value for each in every]
    label = "chosen beforehand" if (chosen["prompt"], chosen["top"]) == ("repeated", TOP) else "in its place"
    cases = [(label, chosen)]
    if not np.isnan(values).all():
        cases.append((f"highest of {np.isfinite(values).sum()} defined", every[int(np.nanargmax(values))]))
    rows: list[Sequence[str]] = [
        ("kind", "prompt", "rule", "dims asked", "measured by", "called", "Spearman", "arithmetic there", "difference")
    ]
    for label, which in cases:
        predicted, measured = _lengths_of(results, **which)
        found = score(predicted, measured, ())
        other, difference = advantage(predicted, arithmetic(results), measured)
        top = "" if which["rule"] == DRIFT else str(which["top"])
        named = (label, which["prompt"], which["rule"], top, which["criterion"], f"{found.called:z.2f}")
        rows.append((*named, *map(str, (found.correlation, other, difference))))
    return rows


def _lengths_of(results: xr.Dataset, criterion: str, **which: Any) -> tuple[np.ndarray, np.ndarray]:
    """Predicted and measured (config, seed)."""
    return predicted_lengths(results, **which), _measured(results, criterion)


def _correlation_rows(results: xr.Dataset) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [
        ("prompt", "rule", "dims", "too few dims", "inside", "called", "Spearman", "arithmetic there", "difference")
    ]
    for kind in _kinds(results):
        predicted, qualified = predicted_lengths(results, **kind), results["qualified"].sel(kind).values
        none = np.broadcast_to(qualified < LEAST, predicted.shape)
        inside = np.isnan(predicted) & ~none
        found = scored(results, **kind)
        other, difference = advantage(predicted, arithmetic(results), _measured(results))
        dims = (f"{np.median(qualified):.0f}", f"{none.mean():z.2f}", f"{inside.mean():z.2f}")
        estimates = map(str, (found.correlation, other, difference))
        shown = ("", "", "") if kind["rule"] == DRIFT else dims
        rows.append((*kind.values(), *shown, f"{found.called:z.2f}", *estimates))
    for bound in bounds(results):
        plain = score(arithmetic(results, bound), _measured(results), ())
        rows.append((f"arithmetic, {bound}", "", "", "", "", "1.00", str(plain.correlation), "", ""))
    return rows


def _call_rows(results: xr.Dataset) -> list[Sequence[str]]:
    trained = settings(results)["trained_length"]
    rows: list[Sequence[str]] = [("prompt", "rule", "fails by", "right", "always-yes", "always-no", "over the better")]
    scores = [((kind["prompt"], kind["rule"]), scored(results, **kind)) for kind in _kinds(results)]
    for bound in bounds(results):
        plain = score(arithmetic(results, bound), _measured(results), _thresholds(results))
        scores.append(((f"arithmetic, {bound}", ""), plain))
    for names, found in scores:
        for threshold, right in found.right.items() if found.called else ():
            yes = found.yes[threshold]
            gain = str(found.gain[threshold])
            rows.append((*names, f"{threshold / trained:g} M", str(right), f"{yes:z.2f}", f"{1 - yes:z.2f}", gain))
    return rows


def scores_by_top(results: xr.Dataset) -> dict[tuple[str, str], dict[int, Score]]:
    """Scores by number of dims, for every (prompt, rule) that asks for one and calls anything."""
    tops = results["top"].values.tolist()
    kinds = [kind for kind in _kinds(results) if kind["rule"] != DRIFT]
    found = {(k["prompt"], k["rule"]): {t: scored(results, top=t, **k) for t in tops} for k in kinds}
    return {kind: scores for kind, scores in found.items() if any(one.called for one in scores.values())}


def _top_rows(results: xr.Dataset) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("prompt", "rule", *map(str, results["top"].values.tolist()))]
    for kind, scores in scores_by_top(results).items():
        rows.append((*kind, *(f"{one.correlation} of {one.called:z.2f}" for one in scores.values())))
    return rows


def _criterion_rows(results: xr.Dataset) -> list[Sequence[str]]:
    heads = [head for bound in bounds(results) for head in (f"arithmetic, {bound}", "difference")]
    prompt, length = headline(results), settings(results)["length"]
    by_drift = predicted_lengths(results, rule=DRIFT) if drifting(results) else None
    rows: list[Sequence[str]] = [
        (
            "measured by",
            f"thresholds ({prompt}, {RULE})",
            "interval by method",
            *([] if by_drift is None else [f"drift ({prompt})"]),
            *heads,
        )
    ]
    cases = [(name, _measured(results, name)) for name in results["criterion"].values.tolist()]
    judged = [(name, measured, measured > 0) for name, measured in cases]
    judged += [(f"{name}, where it fails", measured, measured <= length) for name, measured in cases]
    for name, measured, where in judged:
        lengths = np.where(where, predicted_lengths(results), np.nan)
        found = [score(lengths, measured, (), drawn).correlation for drawn in (None, _method_resamples(results))]
        if by_drift is not None:
            found.append(score(np.where(where, by_drift, np.nan), measured, ()).correlation)
        for bound in bounds(results):
            found.extend(advantage(lengths, arithmetic(results, bound), measured))
        rows.append((name, *map(str, found)))
    return rows


def _method_resamples(results: xr.Dataset) -> np.ndarray | None:
    """Resamples in which a method's configs are drawn together; None for fewer than 3 methods."""
    methods = [config.split()[0] for config in results["config"].values.tolist()]
    kinds = list(dict.fromkeys(methods))
    return resamples(len(kinds))[:, [kinds.index(method) for method in methods]] if len(kinds) > 2 else None


def _ratio_rows(results: xr.Dataset) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("prompt", "rule", "pairs", "measured / predicted", "late, of all called")]
    measured, length = _measured(results), settings(results)["length"]
    each = [((k["prompt"], k["rule"]), predicted_lengths(results, **k)) for k in _kinds(results)]
    for names, predicted in (*each, ((f"arithmetic, {BOUNDS[0]}", ""), arithmetic(results))):
        both = (predicted <= length) & (measured <= length)
        if both.any():
            low, middle, high = np.quantile(measured[both] / predicted[both], [0.1, 0.5, 0.9])
            rows.append(
                (*names, str(both.sum()), f"{middle:z.2f} ({low:z.2f} to {high:z.2f})", str(late(predicted, measured)))
            )
    return rows


def late(predicted: np.ndarray, measured: np.ndarray) -> Estimate:
    """The share of the called pairs that fail before the predicted length, or though none is predicted."""
    return share(predicted, measured, predicted > measured)


def _control_rows(results: xr.Dataset) -> list[Sequence[str]]:
    """Dims found inside the window and at M, the share of places with false predictions, and of calls at M."""
    rows: list[Sequence[str]] = [
        (
            "prompt",
            "rule",
            "observable inside (least to most)",
            "at M with as many positions",
            "places with no fewer than at M",
            "false predictions, Origin",
            "others: mean (most)",
            "predicted to fail beyond M",
        )
    ]
    length = settings(results)["length"]
    for kind in _kinds(results):
        at = results[["inside", "matched", "false"]].sel(kind)
        false = at["false"].mean("seed")
        own, others = false.sel(config=REFERENCE), without_reference(false.to_dataset())["false"]
        found = [_percentages(at[name].values) for name in ("inside", "matched")]
        tried = np.isfinite(at["inside"].values)
        many = (at["inside"] > 0) & (at["inside"] >= at["matched"])
        called = predicted_lengths(without_reference(results), **kind) <= length
        rows.append(
            (
                *kind.values(),
                *found,
                f"{many.values[tried].mean():z.2f}" if tried.any() else "",
                _number(own.values),
                f"{_number(others.mean().values)} ({_number(others.max().values)})",
                f"{called.mean():z.2f}",
            )
        )
    return rows


def _percentages(shares: np.ndarray) -> str:
    """Median and range of shares; empty where none is known."""
    known = shares[np.isfinite(shares)]
    if not known.size:
        return ""
    middle, low, high = (f"{100 * each:z.1f}%" for each in (np.median(known), known.min(), known.max()))
    return f"{middle} ({low} to {high})"


def _number(value: np.ndarray) -> str:
    return "-" if np.isnan(value) else f"{value:z.2f}"


def _config_rows(results: xr.Dataset) -> list[Sequence[str]]:
    length, prompt = settings(results)["length"], headline(results)
    columns = {f"measured by {name}" if name != PASSKEY else "by passkey": name for name in _tasks(results)}
    each = {head.replace("nll", "NLL"): _measured(results, name) for head, name in columns.items()}
    unknown = dict.fromkeys(each, _UNJUDGED)
    each[f"predicted ({prompt}, {RULE})"] = predicted_lengths(results)
    if drifting(results):
        each[f"predicted ({prompt}, {DRIFT})"] = predicted_lengths(results, rule=DRIFT)
    each["arithmetic"] = arithmetic(results)
    dips = results["dips"].sel(criterion="either").transpose("config", "seed").values if "dips" in results else None
    rows: list[Sequence[str]] = [("config", *each, *(["dips before"] if dips is not None else []))]
    for row, config in enumerate(results["config"].values.tolist()):
        dipping = [] if dips is None else [_dipping(dips[row])]
        label = f"{config} (descriptive)" if config == REFERENCE else config
        rows.append(
            (
                label,
                *(_span(values[row], length, unknown.get(head, "no call")) for head, values in each.items()),
                *dipping,
            )
        )
    return rows


def _dipping(dips: np.ndarray) -> str:
    """How many seeds fail at lengths below the one from which on they fail; empty for none."""
    return f"{np.count_nonzero(dips)} of {len(dips)} seeds" if dips.any() else ""


def _tasks(results: xr.Dataset) -> list[str]:
    """What failure was measured by."""
    return [name for name in results["criterion"].values.tolist() if name != "either"]


def _span(lengths: np.ndarray, length: int, unknown: str) -> str:
    """Median and range of lengths in words; `length` + 1 is none, `unknown` is said where half of them are NaN."""
    called = lengths[~np.isnan(lengths)]
    if 2 * len(called) <= len(lengths):
        return unknown
    middle, *ends = (
        "none" if value > length else f"{value:.0f}"
        for value in (np.quantile(called, 0.5, method="lower"), called.min(), called.max())
    )
    return middle if len(set(ends)) == 1 else f"{middle} ({ends[0]} to {ends[1]})"


def _markdown(rows: list[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])
