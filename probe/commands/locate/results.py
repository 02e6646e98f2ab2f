"""The summary of a locate run: excess losses, effects and smallest sets with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from probe.commands.locate.head_search import (
    ENOUGH,
    MAX_HEADS,
    halves,
    has_runs,
    is_searchable,
    losses_at,
    paired,
    random_sets,
    set_key,
    target_loss,
)
from probe.commands.locate.interventions import JOURNALED, Heads, by_layer
from probe.commands.locate.loss_gap import PairedLosses
from probe.commands.locate.plan import ORIGIN, ItemGroup, LocateKey, LocatePlan
from probe.commands.locate.result import PATCH, Effect, InsideCost, Located, Loss, SmallestSet
from probe.commands.locate.tasks import no_gap, remaining
from probe.experiment.journal import Journal, JournalRows
from probe.experiment.run import summary_of

_PATCH = ("kind", "way", "layer", "head")
_CLAMP = ("kind", "way", "rule", "which", "span", "layer")
_SET = ("share", "low", "high", "random_low", "random", "random_high")


def summarize(plan: LocatePlan, journal: Journal) -> Located:
    """The summary of a plan; shares only where the excess loss is significant.

    What is there for some items alone is scored on these; `items` says on how many. refusal: why a finished run has
    no loss to recover; else empty.
    """
    rows, gaps, effects, smallest, inside = journal.rows, list[Loss](), list[Effect](), list[SmallestSet](), []
    for group in sorted(plan.items, key=lambda group: group[1]):
        inside += _inside(plan, rows, group)
        for name in (name for name in plan.compared if has_runs(plan, rows, group, name)):
            gap, (measure, length) = paired(plan, rows, group, name).gap, group
            loss = Loss(name, length, measure, *astuple(gap), significant=gap.significant, items=len(plan.items[group]))
            gaps.append(loss)
            if gap.significant:
                effects += _effects(plan, rows, group, loss)
                smallest += _smallest(plan, rows, group, loss)
    return Located(
        **summary_of(plan),
        layers=list(plan.layers),
        heads=plan.config.num_attention_heads,
        tasks_left=remaining(plan, rows),
        refusal=no_gap(plan, rows),
        loss_gaps=gaps,
        effects=effects,
        smallest=smallest,
        inside=inside,
    )


def _effects(plan: LocatePlan, rows: JournalRows, group: ItemGroup, loss: Loss) -> list[Effect]:
    """The loss that each patch of a method, and each clamp of Origin, recovers or loses again."""
    name = loss.method
    numbers_of: dict[tuple[Any, ...], list[int]] = {}
    for key in map(LocateKey.of, rows):
        is_effect = key.group == group and key.method in (name, ORIGIN) and key.tried[:1] in ((JOURNALED,), ("clamp",))
        if is_effect and "inside" not in key.tried and key.item < len(plan.items[group]):
            numbers_of.setdefault((key.method, *key.tried), []).append(key.item)
    effects, losses_of = [], dict[tuple[int, ...], PairedLosses]()
    for (method, *parts), unordered in numbers_of.items():
        numbers = tuple(sorted(unordered))
        if numbers not in losses_of:
            losses_of[numbers] = paired(plan, rows, group, name, numbers)
        entry: dict[str, Any] = dict(zip(_CLAMP if parts[0] == "clamp" else _PATCH, parts, strict=True))
        entry |= {"kind": PATCH} if parts[0] == JOURNALED else {}
        entry.pop("span", None)
        losses = losses_at(rows, [(*group, method, number, *parts) for number in numbers])
        share = losses_of[numbers].share(losses, again=entry["way"] == "without")
        place = {key: None if entry.get(key, -1) == -1 else entry[key] for key in ("layer", "head")}
        measures = {"loss": float(np.mean(losses)), **share._asdict(), "items": len(numbers)}
        effects.append(Effect(**loss.labels, **entry | place, **measures))
    return effects


def _inside(plan: LocatePlan, rows: JournalRows, group: ItemGroup) -> list[InsideCost]:
    """What clamping costs inside the window: loss less that of the plain run, nats/token, with its interval."""
    plain = [n for n in range(len(plan.items[group])) if (*group, ORIGIN, n, "run-inside") in rows]
    known = [key for key in map(LocateKey.of, rows) if (key.group, key.method) == (group, ORIGIN)]
    clamps = {key.tried for key in known if key.tried[0] == "clamp" and "inside" in key.tried}
    costs = []
    for parts in sorted(clamps):
        numbers = [number for number in plain if (*group, ORIGIN, number, *parts) in rows]
        clamped, without = (
            losses_at(rows, [(*group, ORIGIN, number, *tried) for number in numbers])
            for tried in (parts, ("run-inside",))
        )
        cost = PairedLosses(clamped, without).gap
        way, rule, which = map(str, parts[1:4])
        costs.append(InsideCost(group[1], group[0], way, rule, which, cost.size, cost.low, cost.high))
    return costs


def _smallest(plan: LocatePlan, rows: JournalRows, group: ItemGroup, loss: Loss) -> list[SmallestSet]:
    """By candidates, most first: the greedy sets in order, and random ones, on the items that they were not chosen on.

    finished: whether the search ended, by its own half of the items. enough: the heads it ended with, if they recover
    `ENOUGH` of the other half too. Without heads: no search, since one half shows no loss.
    """
    name, sizes = loss.method, dict[str, int]()
    for key in map(LocateKey.of, rows):
        if (key.group, key.method, key.item) == (group, name, -1) and key.tried[:1] == ("chosen",):
            _, candidates, size = key.tried
            sizes[str(candidates)] = max(int(size), sizes.get(str(candidates), 0))
    if not sizes and "smallest" not in plan.request.kinds:
        return []
    if not is_searchable(plan, rows, group, name):
        return [SmallestSet(**loss.labels)]
    choosing, scoring = halves(len(plan.items[group]))
    scored = paired(plan, rows, group, name, scoring)
    target = target_loss(paired(plan, rows, group, name, choosing).gap)

    def losses(heads: Heads, numbers: Sequence[int]) -> list[list[float]]:
        return losses_at(rows, [set_key(group, name, number, heads) for number in numbers])

    searches = []
    for candidates_key, last in sizes.items():
        row = rows[(*group, name, -1, "chosen", candidates_key, last)]
        heads, candidates = ([(layer, head) for layer, head in row[key]] for key in ("heads", "candidates"))
        steps = range(1, last + 1)
        shares = [scored.share(losses(by_layer(heads[:size]), scoring)) for size in steps]
        random = [
            [scored.share(losses(drawn, scoring)).share for drawn in random_sets(candidates, size)] for size in steps
        ]
        ends = np.quantile(np.array(random), [0.025, 0.5, 0.975], axis=1).tolist()
        reached = float(np.mean(losses(by_layer(heads), choosing))) <= target
        searches.append(
            SmallestSet(
                **loss.labels,
                heads=heads,
                candidates=len(candidates),
                **dict(zip(_SET, map(list, [*zip(*shares, strict=True), *ends]), strict=True)),
                finished=reached or last == min(len(candidates), MAX_HEADS),
                enough=last if reached and shares[-1].share >= ENOUGH else None,
            )
        )
    return sorted(searches, key=lambda search: -search.candidates)
