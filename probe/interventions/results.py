"""The summary of a locate run: gaps, effects, smallest sets and attributions with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from probe.experiment.journal import Journal, Rows
from probe.files import write_json
from probe.interventions.head_search import (
    ENOUGH,
    MOST,
    halves,
    has_runs,
    is_searchable,
    paired,
    random_sets,
    set_key,
    target_loss,
)
from probe.interventions.interventions import Heads, by_layer
from probe.interventions.loss_gap import PairedLosses, Share
from probe.interventions.request import ORIGIN, Group, LocatePlan
from probe.interventions.tasks import remaining
from probe.statistics import rank_correlation
from probe.store.results import LOCATED

_EFFECT = ("kind", "way", "hook", "span", "layer", "head")
_CLAMP = ("kind", "way", "rule", "which", "span", "layer")
_SET = ("share", "low", "high", "random_low", "random", "random_high")


def summarize(plan: LocatePlan, journal: Journal) -> dict[str, Any]:
    """The summary of a plan, ready for JSON; shares only where the gap is judged.

    What is there for some items alone is scored on these; `items` says on how many.
    """
    rows, tables = journal.rows, ("gaps", "effects", "inside", "smallest", "attribution", "agreement")
    summary: dict[str, Any] = {
        "model": plan.request.model,
        "trained_length": plan.trained_length,
        "seed": plan.request.seed,
        "executor": plan.request.executor,
        "versions": {package: version(package) for package in ("mesa-lens", "torch", "transformers")},
        "layers": plan.layers,
        "heads": plan.config.num_attention_heads,
        "methods": {name: method.describe() for name, method in plan.methods.items()},
        "tasks_left": remaining(plan, rows),
        **{name: [] for name in tables},
    }
    for group in sorted(plan.items, key=lambda group: group[1]):
        summary["inside"] += _inside(plan, rows, group)
        for name in (name for name in plan.compared if has_runs(plan, rows, group, name)):
            gap = paired(plan, rows, group, name).gap
            labels = {"method": name, "length": group[1], "measure": group[0]}
            values = {"broken": gap.baseline, "mended": gap.method, **_ends(gap.low, gap.high)}
            summary["gaps"].append({**labels, **values, "judged": gap.judged, "items": len(plan.items[group])})
            if gap.judged:
                effects = _effects(plan, rows, group, name)
                attribution = _attribution(plan, rows, group, name)
                entries = {
                    "effects": effects,
                    "attribution": attribution,
                    "smallest": _smallest(plan, rows, group, name),
                    "agreement": _agreement(effects, attribution),
                }
                for table, new in entries.items():
                    summary[table] += [{**labels, **entry} for entry in new]
    return summary


def write(plan: LocatePlan, journal: Journal, out: Path) -> dict[str, Any]:
    """The summary, which is written to the run's folder if there is a row to tell of."""
    summary = summarize(plan, journal)
    if journal.rows:
        write_json(out / LOCATED, summary)
    return summary


def _effects(plan: LocatePlan, rows: Rows, group: Group, name: str) -> list[dict[str, Any]]:
    """What each weave and patch of a method, and each clamp of Origin, restores or loses again."""
    numbers_of: dict[tuple[Any, ...], list[int]] = {}
    for key in rows:
        is_effect = key[:2] == group and key[2] in (name, ORIGIN) and key[4] in ("weave", "patch", "clamp")
        if is_effect and key[8] != "inside" and int(key[3]) < len(plan.items[group]):
            numbers_of.setdefault((key[2], *key[4:]), []).append(int(key[3]))
    effects, losses_of = [], dict[tuple[int, ...], PairedLosses]()
    for (method, *parts), unordered in numbers_of.items():
        numbers = tuple(sorted(unordered))
        if numbers not in losses_of:
            losses_of[numbers] = paired(plan, rows, group, name, numbers)
        entry: dict[str, Any] = dict(zip(_CLAMP if parts[0] == "clamp" else _EFFECT, parts, strict=True))
        losses = [rows[(*group, method, number, *parts)]["nll"] for number in numbers]
        share = losses_of[numbers].share(losses, restores=entry["way"] not in ("without", "break"))
        place = {key: None if entry.get(key, -1) == -1 else entry[key] for key in ("layer", "head")}
        effects.append({**entry, **place, "loss": float(np.mean(losses)), **_share(share), "items": len(numbers)})
    return effects


def _inside(plan: LocatePlan, rows: Rows, group: Group) -> list[dict[str, Any]]:
    """What clamping costs inside the window: loss less that of the plain run, nats/token, with its interval."""
    plain = [n for n in range(len(plan.items[group])) if (*group, ORIGIN, n, "run-inside") in rows]
    clamps = {key[4:] for key in rows if key[:3] == (*group, ORIGIN) and key[4] == "clamp" and key[8] == "inside"}
    costs = []
    for parts in sorted(clamps):
        numbers = [number for number in plain if (*group, ORIGIN, number, *parts) in rows]
        without = [rows[(*group, ORIGIN, number, "run-inside")]["nll"] for number in numbers]
        cost = PairedLosses([rows[(*group, ORIGIN, number, *parts)]["nll"] for number in numbers], without).gap
        entry = {key: value for key, value in zip(_CLAMP, parts, strict=True) if key in ("way", "rule", "which")}
        labels = {"length": group[1], "measure": group[0]}
        costs.append({**labels, **entry, "cost": cost.size, "low": cost.low, "high": cost.high})
    return costs


def _attribution(plan: LocatePlan, rows: Rows, group: Group, name: str) -> list[dict[str, Any]]:
    """The share of the gap that each patch would restore to first order."""
    falls: dict[tuple[Any, ...], dict[int, float]] = {}
    for key, row in rows.items():
        if key[:3] == (*group, name) and key[4] == "attribution" and int(key[3]) < len(plan.items[group]):
            for *place, fall in row["falls"]:
                falls.setdefault(tuple(place), {})[int(key[3])] = fall
    shares = []
    for (_, _, hook, _, layer, head), by_number in falls.items():
        losses = paired(plan, rows, group, name, sorted(by_number))
        means = PairedLosses(losses.baseline.mean(1, keepdims=True), losses.method.mean(1, keepdims=True))
        reduced = means.baseline - np.array([by_number[number] for number in sorted(by_number)])[:, None]
        place = {"hook": hook, "layer": layer, "head": None if head == -1 else head}
        shares.append({**place, **_share(means.share(reduced.tolist())), "items": len(by_number)})
    return shares


def _smallest(plan: LocatePlan, rows: Rows, group: Group, name: str) -> list[dict[str, Any]]:
    """By candidates, most first: the greedy sets in order, and random ones, on the items that they were not chosen on.

    finished: whether the search ended, by its own half of the items. enough: the heads it ended with, if they restore
    `ENOUGH` of the other half too. Without heads: no search, since one half shows no loss.
    """
    sizes: dict[str, int] = {}
    for key in rows:
        if key[:5] == (*group, name, -1, "chosen"):
            sizes[str(key[5])] = max(int(key[6]), sizes.get(str(key[5]), 0))
    if not sizes and "smallest" not in plan.request.kinds:
        return []
    if not is_searchable(plan, rows, group, name):
        return [{"heads": [], **{key: [] for key in _SET}, "candidates": 0, "finished": True, "enough": None}]
    choosing, scoring = halves(len(plan.items[group]))
    scored, target = (
        paired(plan, rows, group, name, scoring),
        target_loss(paired(plan, rows, group, name, choosing).gap),
    )

    def losses(heads: Heads, numbers: Sequence[int]) -> list[list[float]]:
        return [rows[set_key(group, name, number, heads)]["nll"] for number in numbers]

    searches = []
    for candidates_key, last in sizes.items():
        row = rows[(*group, name, -1, "chosen", candidates_key, last)]
        heads, candidates = ([(layer, head) for layer, head in row[key]] for key in ("heads", "candidates"))
        steps = range(1, last + 1)
        shares = [scored.share(losses(by_layer(heads[:size]), scoring)) for size in steps]
        random = [
            [scored.share(losses(drawn, scoring)).value for drawn in random_sets(candidates, size)] for size in steps
        ]
        ends = np.quantile(np.array(random), [0.025, 0.5, 0.975], axis=1).tolist()
        reached = float(np.mean(losses(by_layer(heads), choosing))) <= target
        searches.append(
            {
                "heads": [list(head) for head in heads],
                "candidates": len(candidates),
                **{key: [_share(share)[key] for share in shares] for key in _SET[:3]},
                **dict(zip(_SET[3:], ends, strict=True)),
                "finished": reached or last == min(len(candidates), MOST),
                "enough": last if reached and shares[-1].value >= ENOUGH else None,
            }
        )
    return sorted(searches, key=lambda entry: -entry["candidates"])


def _agreement(effects: Sequence[dict[str, Any]], attribution: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rank correlation of attribution with patching by hook, where both were run; interval over resampled places."""
    patched = {
        (row["hook"], row["layer"], row["head"]): row["share"]
        for row in effects
        if (row["kind"], row["way"], row["span"]) == ("patch", "mend", "all")
    }
    correlations = []
    for hook in sorted({row["hook"] for row in attribution}):
        rows = [row for row in attribution if row["hook"] == hook]
        pairs = [(row["share"], patched.get((hook, row["layer"], row["head"]))) for row in rows]
        pairs = [pair for pair in pairs if None not in pair]
        if len(pairs) >= 3:
            value, low, high = rank_correlation(*zip(*pairs, strict=True))
            correlation = {"hook": hook, "spearman": value, "low": low, "high": high, "places": len(pairs)}
            correlations.append({"what": "attribution", "with": "patch", **correlation})
    return correlations


def _share(share: Share) -> dict[str, float | None]:
    """A share ready for JSON, which has no NaN."""
    return {"share": None if np.isnan(share.value) else share.value, **_ends(share.low, share.high)}


def _ends(low: float, high: float) -> dict[str, float | None]:
    return {"low": None if np.isnan(low) else low, "high": None if np.isnan(high) else high}
