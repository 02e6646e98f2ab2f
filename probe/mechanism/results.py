"""What a locate run found: gaps, effects, smallest sets and attributions with their intervals, from its journal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from probe.evaluation.journal import Journal
from probe.files import write as write_file
from probe.mechanism.cells import FOLDER, paired
from probe.mechanism.interventions import by_layer
from probe.mechanism.rankings import rank_correlation, rankings
from probe.mechanism.request import ORIGIN, Group, LocatePlan
from probe.mechanism.restoration import Paired, Share
from probe.mechanism.smallest import ENOUGH, halves, random_sets, set_cell

_EFFECT = ("kind", "way", "hook", "span", "layer", "head")
_CLAMP = ("kind", "way", "rule", "which", "span", "layer")


def summarize(made: LocatePlan, journal: Journal, out: Path | None = None) -> dict[str, Any]:
    """The summary of what the journal holds of a plan, ready for JSON; shares only where broken and mended differ.

    It is held against what `mesa-lens anatomy` and `mesa-lens probe` wrote to the folder `out` of the same model. What
    is there for some items alone is judged on these; an effect's `items` says on how many.
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
        "cells_left": left(made, journal),
        **{name: [] for name in ("gaps", "effects", "inside", "smallest", "attribution", "agreement")},
    }
    anatomy, run = (_beside(made, out, name) for name in ("anatomy/summary.json", "summary.json"))
    for group in sorted(made.items, key=lambda each: each[1]):
        summary["inside"] += _inside(made, journal, group)
        for name in made.mending:
            if not _has_runs(made, journal, group, name):
                continue
            gap = paired(made, journal, group, name).gap
            here = {"method": name, "length": group[1], "measure": group[0]}
            summary["gaps"].append({**here, **asdict(gap), "judged": gap.judged, "items": len(made.items[group])})
            if gap.judged:
                effects = _effects(made, journal, group, name)
                attribution = _attribution(made, journal, group, name)
                summary["effects"] += [{**here, **each} for each in effects]
                summary["attribution"] += [{**here, **each} for each in attribution]
                summary["smallest"] += [{**here, **each} for each in _smallest(made, journal, group, name)]
                agreeing = [*_agreement(effects, attribution), *rankings(effects, group[1], anatomy, run)]
                summary["agreement"] += [{**here, **each} for each in agreeing]
    return summary


def write(made: LocatePlan, journal: Journal, out: Path) -> dict[str, Any]:
    """The summary, which is written to the run's folder if there is anything to tell."""
    summary = summarize(made, journal, out)
    if journal.rows:
        write_file(out / FOLDER / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
    return summary


def _beside(made: LocatePlan, out: Path | None, name: str) -> dict[str, Any] | None:
    """Another command's summary of the same model in the folder, if there is one."""
    path = None if out is None else out / name
    if path is None or not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    same = all(
        found.get(key) == value
        for key, value in (("model", made.request.model), ("trained_length", made.trained_length))
    )
    return found if same else None


def left(made: LocatePlan, journal: Journal) -> int:
    """Weaves, patches and plain runs that the journal lacks; where nothing is to be mended, none are asked for."""
    count = 0
    for group, items in made.items.items():
        for number in range(len(items)):
            count += sum((*group, name, number, "run") not in journal.rows for name in made.methods)
            for name in made.mending:
                if not _has_runs(made, journal, group, name) or paired(made, journal, group, name).gap.judged:
                    count += sum((*group, name, number, *each.cell) not in journal.rows for each in made.tried)
    return count


def _has_runs(made: LocatePlan, journal: Journal, group: Group, name: str) -> bool:
    numbers = range(len(made.items[group]))
    return all((*group, each, number, "run") in journal.rows for number in numbers for each in (ORIGIN, name))


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
    numbers = [n for n in range(len(made.items[group])) if (*group, name, n, "attribution") in journal.rows]
    if not numbers:
        return []
    rows = [journal.rows[(*group, name, number, "attribution")]["falls"] for number in numbers]
    broken, mended = (
        [[float(np.mean(journal.rows[(*group, each, number, "run")]["nll"]))] for number in numbers]
        for each in (ORIGIN, name)
    )
    judge, found = Paired(broken, mended), []
    for each in zip(*rows, strict=True):
        places = dict(zip(_EFFECT, each[0][:-1], strict=True))
        if places["head"] == -1:
            places["head"] = None
        share = judge.share([[loss[0] - one[-1]] for loss, one in zip(broken, each, strict=True)])
        kept = {key: places[key] for key in ("hook", "layer", "head")}
        found.append({**kept, **_plain(share), "items": len(numbers)})
    return found


def _smallest(made: LocatePlan, journal: Journal, group: Group, name: str) -> list[dict[str, Any]]:
    """By candidates: the greedy sets in order, and random ones, on the items that they were not chosen on."""
    _, scoring = halves(len(made.items[group]))
    judge, found = paired(made, journal, group, name, scoring), []

    def share(chosen: Mapping[int, tuple[int, ...]]) -> Share:
        return judge.share([journal.rows[set_cell(group, name, number, chosen)]["nll"] for number in scoring])

    sizes: dict[str, int] = {}
    for cell in journal.rows:
        if cell[:5] == (*group, name, -1, "chosen"):
            sizes[str(cell[5])] = max(int(cell[6]), sizes.get(str(cell[5]), 0))
    for candidates_of, last in sizes.items():
        row = journal.rows[(*group, name, -1, "chosen", candidates_of, last)]
        heads, candidates = ([(layer, head) for layer, head in row[key]] for key in ("heads", "candidates"))
        shares = [share(by_layer(heads[:size])) for size in range(1, last + 1)]
        random = [[share(each).value for each in random_sets(candidates, size)] for size in range(1, last + 1)]
        low, middle, high = np.quantile(np.array(random), [0.025, 0.5, 0.975], axis=1).tolist()
        enough = next((size for size, each in enumerate(shares, 1) if each.value >= ENOUGH), None)
        found.append(
            {
                "heads": [list(head) for head in heads],
                "candidates": len(candidates),
                **{key: [_plain(each)[key] for each in shares] for key in ("share", "low", "high")},
                "random_low": low,
                "random": middle,
                "random_high": high,
                "enough": enough,
            }
        )
    return found


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
    ends = {"low": share.low, "high": share.high}
    return {"share": share.value, **{name: None if np.isnan(end) else end for name, end in ends.items()}}
