"""A study's results as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from probe.study_score import Estimate, Score, advantage, score

TOP = 10
"""Dims that a headline prediction is the median of, as in a probe run."""
MULTIPLES = (2, 4, 8)
"""Thresholds of 'fails by that length', in trained windows."""
HEADLINE = {"prompt": "repeated", "rule": "standard"}


def settings(results: xr.Dataset) -> dict[str, Any]:
    """What the study was asked for."""
    return json.loads(results.attrs["settings"])


def tables(results: xr.Dataset) -> str:
    """Every table, each under a line that says what it shows."""
    parts = (
        ("Rank correlation of predicted with measured failure length", _correlation_rows(results)),
        ("Share of right calls of 'fails by that length'", _call_rows(results)),
        ("Rank correlation by number of dims", _top_rows(results)),
        ("Rank correlation by measured criterion", _criterion_rows(results)),
        ("Measured over predicted length, where both fail: median (10% to 90% of pairs)", _ratio_rows(results)),
        ("Failure lengths by method config, median over seeds (least to most)", _config_rows(results)),
    )
    return "\n\n".join(f"**{title}**\n\n{_markdown(rows)}" for title, rows in parts)


def scored(results: xr.Dataset, criterion: str = "either", **which: Any) -> Score:
    """The score of one kind of prediction, `which` naming prompt, rule and perhaps top, against a criterion."""
    predicted = predicted_lengths(results, **which)
    return score(predicted, _measured(results, criterion), _thresholds(results))


def arithmetic(results: xr.Dataset) -> np.ndarray:
    """The arithmetic prediction (config, seed), the same for every seed."""
    return np.repeat(results["arithmetic"].values[:, None], results.sizes["seed"], axis=1)


def predicted_lengths(results: xr.Dataset, **which: Any) -> np.ndarray:
    """Predicted lengths (config, seed), NaN for no call: the headline's kind, but for what `which` names."""
    tops = results["top"].values.tolist()
    chosen = {"top": TOP if TOP in tops else tops[0], **HEADLINE, **which}
    return results["predicted"].sel(chosen).transpose("config", "seed").values


def _measured(results: xr.Dataset, criterion: str = "either") -> np.ndarray:
    return results["measured"].sel(criterion=criterion).transpose("config", "seed").values


def _thresholds(results: xr.Dataset) -> tuple[int, ...]:
    asked = settings(results)
    every = (multiple * asked["trained_length"] for multiple in MULTIPLES)
    return tuple(threshold for threshold in every if threshold <= asked["length"])


def _kinds(results: xr.Dataset) -> list[dict[str, str]]:
    return [
        {"prompt": p, "rule": r} for p in results["prompt"].values.tolist() for r in results["rule"].values.tolist()
    ]


def _correlation_rows(results: xr.Dataset) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [
        ("prompt", "rule", "dims", "no dim", "inside", "called", "Spearman", "arithmetic there", "difference")
    ]
    for kind in _kinds(results):
        predicted, qualified = predicted_lengths(results, **kind), results["qualified"].sel(kind).values
        none = np.broadcast_to(qualified == 0, predicted.shape)
        inside = np.isnan(predicted) & ~none
        found = scored(results, **kind)
        other, difference = advantage(predicted, arithmetic(results), _measured(results))
        shares = (f"{value:.2f}" for value in (none.mean(), inside.mean(), found.called))
        estimates = map(str, (found.correlation, other, difference))
        rows.append((kind["prompt"], kind["rule"], f"{np.median(qualified):.0f}", *shares, *estimates))
    plain = score(arithmetic(results), _measured(results), _thresholds(results))
    return [*rows, ("arithmetic", "", "", "", "", "1.00", str(plain.correlation), "", "")]


def _call_rows(results: xr.Dataset) -> list[Sequence[str]]:
    trained = settings(results)["trained_length"]
    rows: list[Sequence[str]] = [("prompt", "rule", "fails by", "right", "always-yes", "always-no", "over the better")]
    scores = [((kind["prompt"], kind["rule"]), scored(results, **kind)) for kind in _kinds(results)]
    plain = score(arithmetic(results), _measured(results), _thresholds(results))
    for names, found in (*scores, (("arithmetic", ""), plain)):
        for threshold, right in found.right.items() if found.called else ():
            yes = found.yes[threshold]
            gain = str(found.gain[threshold])
            rows.append((*names, f"{threshold / trained:g} M", str(right), f"{yes:.2f}", f"{1 - yes:.2f}", gain))
    return rows


def correlation_by_top(results: xr.Dataset) -> dict[tuple[str, str], dict[int, Estimate]]:
    """Rank correlations by number of dims, for every (prompt, rule) that calls anything."""
    tops = results["top"].values.tolist()
    found = {(k["prompt"], k["rule"]): {t: scored(results, top=t, **k) for t in tops} for k in _kinds(results)}
    return {
        kind: {top: one.correlation for top, one in scores.items()}
        for kind, scores in found.items()
        if any(one.called for one in scores.values())
    }


def _top_rows(results: xr.Dataset) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("prompt", "rule", *map(str, results["top"].values.tolist()))]
    return rows + [(*kind, *map(str, each.values())) for kind, each in correlation_by_top(results).items()]


def _criterion_rows(results: xr.Dataset) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("measured by", "thresholds (repeated, standard)", "arithmetic", "difference")]
    predicted, either = predicted_lengths(results), _measured(results)
    failing = np.where(either > settings(results)["length"], np.nan, predicted)
    cases = [(name, predicted, _measured(results, name)) for name in results["criterion"].values.tolist()]
    for name, lengths, measured in (*cases, ("either, where it fails", failing, either)):
        found = score(lengths, measured, ())
        rows.append((name, str(found.correlation), *map(str, advantage(lengths, arithmetic(results), measured))))
    return rows


def _ratio_rows(results: xr.Dataset) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("prompt", "rule", "pairs", "measured / predicted")]
    measured, length = _measured(results), settings(results)["length"]
    each = [((k["prompt"], k["rule"]), predicted_lengths(results, **k)) for k in _kinds(results)]
    for names, predicted in (*each, (("arithmetic", ""), arithmetic(results))):
        both = (predicted <= length) & (measured <= length)
        if both.any():
            low, middle, high = np.quantile(measured[both] / predicted[both], [0.1, 0.5, 0.9])
            rows.append((*names, str(both.sum()), f"{middle:.2f} ({low:.2f} to {high:.2f})"))
    return rows


def _config_rows(results: xr.Dataset) -> list[Sequence[str]]:
    length = settings(results)["length"]
    rows: list[Sequence[str]] = [
        ("config", "measured by NLL", "by passkey", "predicted (repeated, standard)", "arithmetic")
    ]
    nll, passkey, predicted = _measured(results, "nll"), _measured(results, "passkey"), predicted_lengths(results)
    for row, config in enumerate(results["config"].values.tolist()):
        spans = [_span(values[row], length) for values in (nll, passkey, predicted, arithmetic(results))]
        rows.append((config, *spans))
    return rows


def _span(lengths: np.ndarray, length: int) -> str:
    """Median and range of lengths in words; `length` + 1 is none."""
    called = lengths[~np.isnan(lengths)]
    if 2 * len(called) <= len(lengths):
        return "no call"
    middle, *ends = (
        "none" if value > length else f"{value:.0f}"
        for value in (np.quantile(called, 0.5, method="lower"), called.min(), called.max())
    )
    return middle if len(set(ends)) == 1 else f"{middle} ({ends[0]} to {ends[1]})"


def _markdown(rows: list[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])
