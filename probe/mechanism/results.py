"""What a locate run found: gaps, effects, smallest sets and attributions with their intervals, from its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from probe.evaluation.intervals import rank_correlation
from probe.experiment.journal import Journal
from probe.files import write_json
from probe.mechanism.cells import FOLDER, has_runs, paired
from probe.mechanism.interventions import by_layer
from probe.mechanism.request import ORIGIN, Group, LocatePlan
from probe.mechanism.restoration import Paired, Share
from probe.mechanism.smallest import ENOUGH, MOST, can_be_searched, enough_of, halves, random_sets, set_cell
from probe.mechanism.unfinished import left

_EFFECT = ("kind", "way", "hook", "span", "layer", "head")
_CLAMP = ("kind", "way", "rule", "which", "span", "layer")


def summarize(made: LocatePlan, journal: Journal) -> dict[str, Any]:
    """The summary of what the journal holds of a plan, ready for JSON; shares only where broken and mended differ.

    What is there for some items alone is judged on these; an effect's `items` says on how many.
    """
    summary: dict[str, Any] = {
        "model": made.request.model,
        "trained_length": made.trained_length,
        "seed": made.request.seed,
        "executor": made.request.executor,
        "versions": {package: version(package) for package in ("mesa-lens", "torch", "transformers")},
        "layers": made.layers,
        "heads": made.config.num_attention_heads,
        "methods": {name: method.describe() for name, method in made.methods.items()},
        **journal.provenance,
        "cells_left": left(made, journal),
        **{name: [] for name in ("gaps", "effects", "inside", "smallest", "attribution", "agreement")},
    }
    for group in sorted(made.items, key=lambda each: each[1]):
        summary["inside"] += _inside(made, journal, group)
        for name in made.mending:
            if not has_runs(made, journal, group, name):
                continue
            gap = paired(made, journal, group, name).gap
            here = {"method": name, "length": group[1], "measure": group[0]}
            values = {key: None if np.isnan(value) else value for key, value in asdict(gap).items()}
            summary["gaps"].append({**here, **values, "judged": gap.judged, "items": len(made.items[group])})
            if gap.judged:
                effects = _effects(made, journal, group, name)
                attribution = _attribution(made, journal, group, name)
                summary["effects"] += [{**here, **each} for each in effects]
                summary["attribution"] += [{**here, **each} for each in attribution]
                summary["smallest"] += [{**here, **each} for each in _smallest(made, journal, group, name)]
                summary["agreement"] += [{**here, **each} for each in _agreement(effects, attribution)]
    return summary


def write(made: LocatePlan, journal: Journal, out: Path) -> dict[str, Any]:
    """The summary, which is written to the run's folder if there is anything to tell."""
    summary = summarize(made, journal)
    if journal.rows:
        write_json(out / FOLDER / "summary.json", summary)
    return summary


def _effects(made: LocatePlan, journal: Journal, group: Group, name: str) -> list[dict[str, Any]]:
    """What each weave and patch of a method, and each clamp of Origin, restores or loses again."""
    by_cell: dict[tuple[Any, ...], list[int]] = {}
    for cell in journal.rows:
        if cell[:2] == group and cell[2] in (name, ORIGIN) and cell[4] in ("weave", "patch", "clamp"):
            by_cell.setdefault((cell[2], *cell[4:]), []).append(int(cell[3]))
    found, judges = [], {}
    for (owner, *parts), numbers in by_cell.items():
        numbers = tuple(number for number in sorted(numbers) if number < len(made.items[group]))
        names = _CLAMP if parts[0] == "clamp" else _EFFECT
        each: dict[str, Any] = dict(zip(names, parts, strict=True))
        if not numbers or (parts[0] == "clamp" and each["span"] == "inside"):
            continue
        if numbers not in judges:
            judges[numbers] = paired(made, journal, group, name, numbers)
        losses = [journal.rows[(*group, owner, number, *parts)]["nll"] for number in numbers]
        share = judges[numbers].share(losses, restores=each["way"] not in ("without", "break"))
        places = {key: None if each.get(key, -1) == -1 else each[key] for key in ("layer", "head")}
        found.append({**each, **places, "loss": float(np.mean(losses)), **_plain(share), "items": len(numbers)})
    return found


def _inside(made: LocatePlan, journal: Journal, group: Group) -> list[dict[str, Any]]:
    """What clamping costs inside the window: loss less that of the plain run, nats/token, with its interval."""
    numbers = [n for n in range(len(made.items[group])) if (*group, ORIGIN, n, "run-inside") in journal.rows]
    own = (cell for cell in journal.rows if cell[:3] == (*group, ORIGIN) and cell[4] == "clamp")
    cells = {cell[4:] for cell in own if cell[8] == "inside"}
    found = []
    for parts in sorted(cells):
        whole = [number for number in numbers if (*group, ORIGIN, number, *parts) in journal.rows]
        plain = [journal.rows[(*group, ORIGIN, number, "run-inside")]["nll"] for number in whole]
        held = [journal.rows[(*group, ORIGIN, number, *parts)]["nll"] for number in whole]
        cost = Paired(held, plain).gap
        names = dict(zip(_CLAMP, parts, strict=True))
        row = {"way": names["way"], "rule": names["rule"], "which": names["which"], "cost": cost.broken - cost.mended}
        found.append({"length": group[1], "measure": group[0], **row, "low": cost.low, "high": cost.high})
    return found


def _attribution(made: LocatePlan, journal: Journal, group: Group, name: str) -> list[dict[str, Any]]:
    """The share of the gap that each patch would restore to first order."""
    falls: dict[tuple[Any, ...], dict[int, float]] = {}
    for number in range(len(made.items[group])):
        for *place, fall in journal.rows.get((*group, name, number, "attribution"), {"falls": []})["falls"]:
            falls.setdefault(tuple(place), {})[number] = fall
    judges: dict[tuple[int, ...], Paired] = {}
    found = []
    for (_, _, hook, _, layer, head), by_number in falls.items():
        numbers = tuple(by_number)
        if numbers not in judges:
            whole = paired(made, journal, group, name, numbers)
            judges[numbers] = Paired(*(each.mean(1, keepdims=True) for each in (whole.broken, whole.mended)))
        judge = judges[numbers]
        share = judge.share((judge.broken - np.array(list(by_number.values()))[:, None]).tolist())
        place = {"hook": hook, "layer": layer, "head": None if head == -1 else head}
        found.append({**place, **_plain(share), "items": len(numbers)})
    return found


def _smallest(made: LocatePlan, journal: Journal, group: Group, name: str) -> list[dict[str, Any]]:
    """By candidates, most first: the greedy sets in order, and random ones, on the items that they were not chosen on.

    finished: whether the search ended, by its own half of the items. enough: the heads it ended with, where they
    restore `ENOUGH` of the other half too. Without heads: neither half was gone through, as one shows no loss.
    """
    sizes: dict[str, int] = {}
    for cell in journal.rows:
        if cell[:5] == (*group, name, -1, "chosen"):
            sizes[str(cell[5])] = max(int(cell[6]), sizes.get(str(cell[5]), 0))
    if not sizes and "smallest" not in made.request.kinds:
        return []
    if not can_be_searched(made, journal, group, name):
        empty = ("heads", "share", "low", "high", "random_low", "random", "random_high")
        return [{**{key: [] for key in empty}, "candidates": 0, "finished": True, "enough": None}]
    choosing, scoring = halves(len(made.items[group]))
    judge, found = paired(made, journal, group, name, scoring), []
    until = enough_of(paired(made, journal, group, name, choosing).gap)

    def share(chosen: Mapping[int, tuple[int, ...]]) -> Share:
        return judge.share([journal.rows[set_cell(group, name, number, chosen)]["nll"] for number in scoring])

    for candidates_of, last in sizes.items():
        row = journal.rows[(*group, name, -1, "chosen", candidates_of, last)]
        heads, candidates = ([(layer, head) for layer, head in row[key]] for key in ("heads", "candidates"))
        shares = [share(by_layer(heads[:size])) for size in range(1, last + 1)]
        random = [[share(each).value for each in random_sets(candidates, size)] for size in range(1, last + 1)]
        low, middle, high = np.quantile(np.array(random), [0.025, 0.5, 0.975], axis=1).tolist()
        chosen = [journal.rows[set_cell(group, name, number, by_layer(heads))]["nll"] for number in choosing]
        reached = float(np.mean(chosen)) <= until
        found.append(
            {
                "heads": [list(head) for head in heads],
                "candidates": len(candidates),
                **{key: [_plain(each)[key] for each in shares] for key in ("share", "low", "high")},
                "random_low": low,
                "random": middle,
                "random_high": high,
                "finished": reached or last == min(len(candidates), MOST),
                "enough": last if reached and shares[-1].value >= ENOUGH else None,
            }
        )
    return sorted(found, key=lambda each: -each["candidates"])


def _agreement(effects: Sequence[dict[str, Any]], attribution: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rank correlation of attribution with patching by hook, where both were run; interval over resampled places."""
    exact = {
        (each["hook"], each["layer"], each["head"]): each["share"]
        for each in effects
        if each["kind"] == "patch" and each["way"] == "mend" and each["span"] == "all"
    }
    found = []
    for hook in sorted({each["hook"] for each in attribution}):
        pairs = [
            (each["share"], exact[place])
            for each in attribution
            if each["hook"] == hook and (place := (hook, each["layer"], each["head"])) in exact
        ]
        pairs = [pair for pair in pairs if None not in pair]
        if len(pairs) < 3:
            continue
        value, low, high = rank_correlation(*zip(*pairs, strict=True))
        found.append(
            {"what": "attribution", "with": "patch", "hook": hook, "spearman": value, "low": low, "high": high}
            | {"places": len(pairs)}
        )
    return found


def _plain(share: Share) -> dict[str, float | None]:
    """A share ready for JSON, which has no NaN."""
    values = {"share": share.value, "low": share.low, "high": share.high}
    return {name: None if np.isnan(value) else value for name, value in values.items()}
