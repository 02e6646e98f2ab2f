"""The tasks of a locate run, as a function of its journal's rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from probe.commands.locate.clamp import Clamp, clamps
from probe.commands.locate.head_search import has_runs, is_searchable, next_round, paired, rounds
from probe.commands.locate.interventions import PatchedHeads, Plain, patches
from probe.commands.locate.loss_gap import MIN_EXCESS_LOSS
from probe.commands.locate.passes import BASELINE, PATCHED
from probe.commands.locate.plan import ORIGIN, ItemGroup, LocateKey, LocatePlan, task_bytes
from probe.commands.locate.result import PATCH
from probe.experiment.journal import JournalRows
from probe.experiment.task import Key, Task

DIMS, SEARCH, CHOSEN = "dims", "smallest", "chosen"
"""Kinds of tasks beside interventions on one item."""
BATCH = 64
"""Interventions in one task of a remote worker, which computes the plain runs of the item once for all of them."""


def tasks(plan: LocatePlan, rows: JournalRows, *, batch: int = 1, foresee: bool = False) -> list[Task]:
    """The tasks that can run now; none once the run is finished. Their inputs are one row of the journal each.

    Plain runs come first. Once a group has those of Origin and a method, and the excess loss is significant, patches
    follow, and the search for threshold dims; once these are there, clamps; then head searches, round by round.
    foresee: also what follows from plain runs that are missing, as if every excess loss were significant.
    """
    result, wanted = list[Task](), plan.request.kinds
    groups = sorted(plan.items, key=lambda group: group[1])
    for place in (
        (*group, name, n) for group in groups for n in range(len(plan.items[group])) for name in plan.methods
    ):
        plain = Plain(BASELINE if place[2] == ORIGIN else PATCHED)
        result += _on_item(plan, rows, "run", place, [plain], batch)
    tried = {group: significant_methods(plan, rows, group) for group in groups}
    if foresee:
        for group, names in tried.items():
            names += [name for name in plan.compared if not has_runs(plan, rows, group, name)]
    tried = {group: names for group, names in tried.items() if names}
    if PATCH in wanted:
        patched = list(patches(plan.layers, plan.heads, plan.request.ways))
        for group, names in tried.items():
            for place in ((*group, name, n) for n in range(len(plan.items[group])) for name in names):
                result += _on_item(plan, rows, PATCH, place, patched, batch)
    if "clamp" in wanted:
        for length in sorted({length for _, length in tried}):
            if not any(LocateKey.of(key).group == (DIMS, length) for key in rows):
                needs, key = task_bytes(plan, "clamp", length), (DIMS, length, plan.compared[0])
                result.append(Task(DIMS, key, needs, inputs=(DIMS,), weight=2 * length, length=length))
        for group in tried:
            result += _clamped(plan, rows, group, batch)
    if SEARCH in wanted:
        for group, names in tried.items():
            result += [task for name in names for task in _search(plan, rows, group, name)]
    return result


def remaining(plan: LocatePlan, rows: JournalRows) -> int:
    """The rows that the journal lacks, as far as can be foreseen.

    The dims of a length count as two, what follows a search's next round as one, so that more is left until the end.
    """
    foreseen = tasks(plan, rows, foresee=True)
    searches = {LocateKey.of(task.key)[:3] for task in foreseen if task.kind in (SEARCH, CHOSEN)}
    return sum(len(task.inputs) + (task.kind == DIMS) for task in foreseen if task.kind != CHOSEN) + len(searches)


def significant_methods(plan: LocatePlan, rows: JournalRows, group: ItemGroup) -> list[str]:
    """The methods with a significant excess loss of Origin, of those whose plain runs are all there."""
    there = [name for name in plan.compared if has_runs(plan, rows, group, name)]
    return [name for name in there if paired(plan, rows, group, name).gap.significant]


def no_gap(plan: LocatePlan, rows: JournalRows) -> str:
    """Why a run that has all its rows has no loss to recover; empty where it has, or is not finished."""
    if tasks(plan, rows) or any(significant_methods(plan, rows, group) for group in plan.items):
        return ""
    gaps = {(name, *group): paired(plan, rows, group, name).gap for group in plan.items for name in plan.compared}
    intervals = [
        f"{name} {measure} at {length}: [{gap.low:+z.3f}, {gap.high:+z.3f}]"
        for (name, measure, length), gap in gaps.items()
    ]
    return (
        f"no method is significantly better than Origin, by {MIN_EXCESS_LOSS} nats/token or more; Origin's excess "
        f"loss: {', '.join(intervals)}; take longer --lengths, other --methods or more --samples"
    )


def known_clamps(plan: LocatePlan, rows: JournalRows, group: ItemGroup) -> list[Clamp]:
    """The clamps of a group's items; none before the dims of its length are known.

    The dims of a length are those that its first run found, whatever layers and methods are tried now, so that rows of
    one key hold the same dims.
    """
    known = next((row["rules"] for key, row in rows.items() if LocateKey.of(key).group == (DIMS, group[1])), {})
    tried = clamps(known, plan.layers)
    return [clamp for clamp in tried if group[0] == "nll" or not clamp.inside]  # a passkey's last M tokens lack the key


def _clamped(plan: LocatePlan, rows: JournalRows, group: ItemGroup, batch: int) -> Iterator[Task]:
    """Origin's runs with clamped dims, which serve all methods."""
    tried = known_clamps(plan, rows, group)
    inside = [Plain(BASELINE, inside=True)] if any(clamp.inside for clamp in tried) else []
    for number in range(len(plan.items[group])):
        yield from _on_item(plan, rows, "clamp", (*group, ORIGIN, number), [*inside, *tried], batch)


def _search(plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str) -> Iterator[Task]:
    """The next round of a search for a smallest set or, once its losses are there, the choice that follows."""
    if not has_runs(plan, rows, group, name):
        step = next(rounds(plan, rows, group, name))
    else:
        step = next_round(plan, rows, group, name) if is_searchable(plan, rows, group, name) else None
    if step is None:
        return
    sets = dict.fromkeys((number, PatchedHeads.of(heads)) for heads in step.sets for number in step.numbers)
    missing = [(number, tried) for number, tried in sets if (*group, name, number, *tried.key) not in rows]
    for number, tried in missing:
        yield from _on_item(plan, rows, SEARCH, (*group, name, number), [tried], 1)
    if not missing:
        choice = (tuple(step.chosen), tuple(step.candidates))
        yield Task(CHOSEN, step.chosen_key(group, name), inputs=(choice,))


def _on_item(
    plan: LocatePlan, rows: JournalRows, kind: str, place: Key, interventions: Iterable[Any], batch: int
) -> Iterator[Task]:
    """Tasks of the missing interventions on one item, up to `batch` in each."""
    missing = [tried for tried in interventions if (*place, *tried.key) not in rows]
    depth, length = plan.config.num_hidden_layers, int(place[1])
    for part in (tuple(missing[begin : begin + batch]) for begin in range(0, len(missing), batch)):
        tokens = sum(round(length * (depth - (tried.layer or 0)) / depth) for tried in part)
        yield Task(
            kind, (*place, *part[0].key), task_bytes(plan, kind, length), inputs=part, weight=tokens, length=length
        )
