"""A study's results as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from probe.thresholds.onset import MIN_EVALUATED_DIMS, TOP
from research.thresholds_predict_failure.results import BOUNDS, DRIFT, REFERENCE
from research.thresholds_predict_failure.score import Estimate, Score, advantage, resamples, score, share

RULE = "standard"
"""The headline's rule, as the paper reads."""
Row = Sequence[str]
_AT_CHANCE = "not evaluated: at chance inside M"


def settings(results: xr.Dataset) -> dict[str, Any]:
    """What was studied."""
    return json.loads(results.attrs["settings"])


def tables(results: xr.Dataset) -> str:
    """Every table as Markdown, each under a line that says what it shows."""
    return "\n\n".join(f"**{title}**\n\n{_markdown(rows)}" for title, rows in all_rows(results) if rows)


def all_rows(results: xr.Dataset) -> list[tuple[str, list[Row]]]:
    """Every table: its title, and its rows as texts, the head first. Origin's own onset is not scored."""
    others = without_reference(results)
    ratios = "Measured length over onset, where both are: median (10% to 90% of pairs); calls too late"
    by_config = "Failure lengths by method config, median over seeds (least to most)"
    return [
        ("The comparison chosen beforehand, and the highest of all", _leading_rows(others)),
        ("Rank correlation of onset with measured failure length", _correlation_rows(others)),
        ("Share of right calls of 'fails by that length'", _call_rows(others)),
        ("Rank correlation by number of dims, and the share of pairs called", _top_rows(others)),
        ("Rank correlation by measured criterion", _criterion_rows(others)),
        (ratios, _ratio_rows(others)),
        ("Negative control: the same inside the window", _control_rows(results) if "false" in results else []),
        (by_config, _config_rows(results) if "dips" in results else []),
    ]


def without_reference(results: xr.Dataset) -> xr.Dataset:
    """What is scored: Origin's own onset follows the stated M by construction, and is a description."""
    return results.sel(config=[name for name in results["config"].values.tolist() if name != REFERENCE])


def arithmetic(results: xr.Dataset, bound: str = BOUNDS[0]) -> np.ndarray:
    """The lengths by arithmetic (config, seed), the same for every seed."""
    return np.repeat(results["arithmetic"].sel(bound=bound).values[:, None], results.sizes["seed"], axis=1)


def onset_lengths(results: xr.Dataset, **which: Any) -> np.ndarray:
    """Onsets (config, seed), NaN for no call: the headline's kind, but for what `which` names."""
    chosen = {"top": _top(results), "prompt": headline(results), "rule": RULE, **which}
    return results["onset"].sel(chosen).transpose("config", "seed").values


def measured_lengths(results: xr.Dataset, criterion: str = "either") -> np.ndarray:
    """Measured lengths (config, seed), NaN where they are not evaluated."""
    return results["measured"].sel(criterion=criterion).transpose("config", "seed").values


def scored(results: xr.Dataset, criterion: str = "either", **which: Any) -> Score:
    """The score of one kind of onset, `which` naming prompt, rule and perhaps top, against a criterion."""
    results = without_reference(results)
    return score(onset_lengths(results, **which), measured_lengths(results, criterion), _thresholds(results))


def headline(results: xr.Dataset) -> str:
    """The prompt of the headline's onsets: the repeated word, or what else there is."""
    prompts = results["prompt"].values.tolist()
    return "repeated" if "repeated" in prompts else prompts[0]


def scores_by_top(results: xr.Dataset) -> dict[tuple[str, str], dict[int, Score]]:
    """Scores by number of dims, for every (prompt, rule) that has such a number and calls anything."""
    tops = results["top"].values.tolist()
    kinds = [kind for kind in _kinds(results) if kind["rule"] != DRIFT]
    result = {(kind["prompt"], kind["rule"]): {t: scored(results, top=t, **kind) for t in tops} for kind in kinds}
    return {kind: scores for kind, scores in result.items() if any(one.called for one in scores.values())}


def late(onset: np.ndarray, measured: np.ndarray) -> Estimate:
    """The share of the called pairs that fail before their onset, or though there is none."""
    return share(onset, measured, onset > measured)


def _top(results: xr.Dataset) -> int:
    tops = results["top"].values.tolist()
    return TOP if TOP in tops else tops[0]


def _bounds(results: xr.Dataset) -> list[str]:
    return results["bound"].values.tolist()


def _criteria(results: xr.Dataset) -> list[str]:
    return results["criterion"].values.tolist()


def _kinds(results: xr.Dataset) -> list[dict[str, str]]:
    prompts, rules = results["prompt"].values.tolist(), results["rule"].values.tolist()
    return [{"prompt": prompt, "rule": rule} for prompt in prompts for rule in rules]


def _thresholds(results: xr.Dataset) -> tuple[int, ...]:
    """Lengths of 'fails by that length'."""
    trained, length = (settings(results)[name] for name in ("trained_length", "length"))
    multiples = (2, 4, 8) if length >= 4 * trained else (1.25, 1.5, 2)
    return tuple(at for multiple in multiples if (at := int(multiple * trained)) <= length)


def _leading_rows(results: xr.Dataset) -> list[Row]:
    """The headline's kind against 'either', whatever it scores; below it what scores highest, chosen by its score."""
    tops, once = results["top"].values.tolist(), np.ones((1, results.sizes["config"]))

    def lengths(criterion: str, **which: Any) -> tuple[np.ndarray, np.ndarray]:
        return onset_lengths(results, **which), measured_lengths(results, criterion)

    first = {"prompt": headline(results), "rule": RULE, "top": _top(results), "criterion": "either"}
    every = [
        {**kind, "top": top, "criterion": criterion}
        for kind in _kinds(results)
        for top in (tops[:1] if kind["rule"] == DRIFT else tops)
        for criterion in _criteria(results)
    ]
    values = [score(*lengths(**case), (), once).correlation.value for case in every]
    beforehand = (first["prompt"], first["top"]) == ("repeated", TOP)
    cases = [("chosen beforehand" if beforehand else "in its place", first)]
    if not np.isnan(values).all():
        cases.append((f"highest of {np.isfinite(values).sum()} defined", every[int(np.nanargmax(values))]))
    head = "kind, prompt, rule, dims asked, measured by, called, Spearman, arithmetic there, difference"
    rows: list[Row] = [head.split(", ")]
    for label, case in cases:
        onset, measured = lengths(**case)
        result = score(onset, measured, ())
        estimates = (result.correlation, *advantage(onset, arithmetic(results), measured))
        top = "" if case["rule"] == DRIFT else str(case["top"])
        named = (label, case["prompt"], case["rule"], top, case["criterion"], f"{result.called:z.2f}")
        rows.append((*named, *map(str, estimates)))
    return rows


def _correlation_rows(results: xr.Dataset) -> list[Row]:
    head = "prompt, rule, dims, too few dims, inside, called, Spearman, arithmetic there, difference"
    rows: list[Row] = [head.split(", ")]
    for kind in _kinds(results):
        onset, qualified = onset_lengths(results, **kind), results["qualified"].sel(kind).values
        too_few = np.broadcast_to(qualified < MIN_EVALUATED_DIMS, onset.shape)
        inside = np.isnan(onset) & ~too_few
        result = scored(results, **kind)
        estimates = (result.correlation, *advantage(onset, arithmetic(results), measured_lengths(results)))
        dims = (f"{np.median(qualified):.0f}", f"{too_few.mean():z.2f}", f"{inside.mean():z.2f}")
        dims = ("", "", "") if kind["rule"] == DRIFT else dims
        rows.append((*kind.values(), *dims, f"{result.called:z.2f}", *map(str, estimates)))
    for bound in _bounds(results):
        plain = score(arithmetic(results, bound), measured_lengths(results), ())
        rows.append((f"arithmetic, {bound}", "", "", "", "", "1.00", str(plain.correlation), "", ""))
    return rows


def _call_rows(results: xr.Dataset) -> list[Row]:
    trained, at = settings(results)["trained_length"], _thresholds(results)
    scores = [((kind["prompt"], kind["rule"]), scored(results, **kind)) for kind in _kinds(results)]
    for bound in _bounds(results):
        scores.append(((f"arithmetic, {bound}", ""), score(arithmetic(results, bound), measured_lengths(results), at)))
    rows: list[Row] = [("prompt", "rule", "fails by", "right", "always-yes", "always-no", "over the better")]
    for names, result in scores:
        for threshold, right in result.right.items() if result.called else ():
            yes, gain = result.yes[threshold], str(result.gain[threshold])
            rows.append((*names, f"{threshold / trained:g} M", str(right), f"{yes:z.2f}", f"{1 - yes:z.2f}", gain))
    return rows


def _top_rows(results: xr.Dataset) -> list[Row]:
    rows: list[Row] = [("prompt", "rule", *map(str, results["top"].values.tolist()))]
    for kind, scores in scores_by_top(results).items():
        rows.append((*kind, *(f"{one.correlation} of {one.called:z.2f}" for one in scores.values())))
    return rows


def _criterion_rows(results: xr.Dataset) -> list[Row]:
    prompt, length = headline(results), settings(results)["length"]
    heads = [head for bound in _bounds(results) for head in (f"arithmetic, {bound}", "difference")]
    first = ("measured by", f"thresholds ({prompt}, {RULE})", "interval by method", f"drift ({prompt})")
    rows: list[Row] = [(*first, *heads)]
    measured = {name: measured_lengths(results, name) for name in _criteria(results)}
    cases = [(name, lengths, lengths > 0) for name, lengths in measured.items()]
    cases += [(f"{name}, where it fails", lengths, lengths <= length) for name, lengths in measured.items()]
    for name, lengths, where in cases:
        onset = np.where(where, onset_lengths(results), np.nan)
        by_drift = np.where(where, onset_lengths(results, rule=DRIFT), np.nan)
        result = [score(onset, lengths, (), drawn).correlation for drawn in (None, _method_resamples(results))]
        result.append(score(by_drift, lengths, ()).correlation)
        for bound in _bounds(results):
            result.extend(advantage(onset, arithmetic(results, bound), lengths))
        rows.append((name, *map(str, result)))
    return rows


def _method_resamples(results: xr.Dataset) -> np.ndarray | None:
    """Resamples in which a method's configs are drawn together; None for fewer than 3 methods."""
    methods = [config.split()[0] for config in results["config"].values.tolist()]
    kinds = list(dict.fromkeys(methods))
    return resamples(len(kinds))[:, [kinds.index(method) for method in methods]] if len(kinds) > 2 else None


def _ratio_rows(results: xr.Dataset) -> list[Row]:
    rows: list[Row] = [("prompt", "rule", "pairs", "measured / onset", "late, of all called")]
    measured, length = measured_lengths(results), settings(results)["length"]
    cases = [((kind["prompt"], kind["rule"]), onset_lengths(results, **kind)) for kind in _kinds(results)]
    for names, onset in (*cases, ((f"arithmetic, {BOUNDS[0]}", ""), arithmetic(results))):
        both = (onset <= length) & (measured <= length)
        if both.any():
            low, middle, high = np.quantile(measured[both] / onset[both], [0.1, 0.5, 0.9])
            ratio = f"{middle:z.2f} ({low:z.2f} to {high:z.2f})"
            rows.append((*names, str(both.sum()), ratio, str(late(onset, measured))))
    return rows


def _control_rows(results: xr.Dataset) -> list[Row]:
    """Dims found inside the window and at M, the share of places with false onsets, and of calls at M."""
    head = "prompt, rule, threshold dims inside (least to most), at M with as many positions"
    head += ", places with no fewer than at M; false onsets, Origin; others: mean (most); onset beyond M"
    inside, *others = head.split("; ")
    rows: list[Row] = [[*inside.split(", "), *others]]
    length = settings(results)["length"]
    for kind in _kinds(results):
        at = results[["inside", "matched", "false"]].sel(kind)
        false = at["false"].mean("seed")
        rest = without_reference(false.to_dataset())["false"]
        tried = np.isfinite(at["inside"].values)
        many = ((at["inside"] > 0) & (at["inside"] >= at["matched"])).values[tried]
        called = onset_lengths(without_reference(results), **kind) <= length
        rows.append(
            (
                *kind.values(),
                *(_percentages(at[name].values) for name in ("inside", "matched")),
                f"{many.mean():z.2f}" if tried.any() else "",
                _number(false.sel(config=REFERENCE).values),
                f"{_number(rest.mean().values)} ({_number(rest.max().values)})",
                f"{called.mean():z.2f}",
            )
        )
    return rows


def _percentages(shares: np.ndarray) -> str:
    """Median and range of shares; empty where none is known."""
    known = shares[np.isfinite(shares)]
    if not known.size:
        return ""
    middle, low, high = (f"{100 * value:z.1f}%" for value in (np.median(known), known.min(), known.max()))
    return f"{middle} ({low} to {high})"


def _number(value: np.ndarray) -> str:
    return "-" if np.isnan(value) else f"{value:z.2f}"


def _config_rows(results: xr.Dataset) -> list[Row]:
    length, prompt = settings(results)["length"], headline(results)
    titles = {"nll": "measured by NLL", "passkey": "by passkey"}
    columns = {titles[name]: (measured_lengths(results, name), _AT_CHANCE) for name in _criteria(results)[1:]}
    columns |= {f"onset ({prompt}, {rule})": (onset_lengths(results, rule=rule), "no call") for rule in (RULE, DRIFT)}
    columns["arithmetic"] = (arithmetic(results), "no call")
    dips = results["dips"].sel(criterion="either").transpose("config", "seed").values
    rows: list[Row] = [("config", *columns, "dips before")]
    for row, config in enumerate(results["config"].values.tolist()):
        label = f"{config} (descriptive)" if config == REFERENCE else config
        count = np.count_nonzero(dips[row])
        dipping = f"{count} of {len(dips[row])} seeds" if count else ""
        rows.append((label, *(_span(values[row], length, none) for values, none in columns.values()), dipping))
    return rows


def _span(lengths: np.ndarray, length: int, unknown: str) -> str:
    """Median and range of lengths; `length` + 1 is none; `unknown` where half of them are NaN."""
    called = lengths[~np.isnan(lengths)]
    if 2 * len(called) <= len(lengths):
        return unknown
    middle, *ends = (
        "none" if value > length else f"{value:.0f}"
        for value in (np.quantile(called, 0.5, method="lower"), called.min(), called.max())
    )
    return middle if len(set(ends)) == 1 else f"{middle} ({ends[0]} to {ends[1]})"


def _markdown(rows: Sequence[Row]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])
