"""The tasks of a locate run, as a function of its journal's rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from probe.experiment.journal import Rows
from probe.experiment.task import Key, Task
from probe.interventions.clamp import Clamp, clamps
from probe.interventions.head_search import has_runs, is_searchable, next_round, paired
from probe.interventions.interventions import HeadSet, Plain
from probe.interventions.passes import BASELINE, METHOD
from probe.interventions.request import ORIGIN, Group, LocatePlan, task_bytes

DIMS, ATTRIBUTION, SEARCH, CHOSEN = "dims", "attribution", "smallest", "chosen"
"""Kinds of tasks beside interventions on one item."""
BATCH = 64
"""Interventions in one task of a remote worker, which computes the plain runs of the item once for all of them."""


def tasks(plan: LocatePlan, rows: Rows, *, batch: int = 1, free_bytes: float = math.inf) -> list[Task]:
    """The tasks that can run now; none once the run is finished. Their inputs are one row of the journal each.

    Plain runs come first. Once a group has those of Origin and a method, and their gap is judged, weaves, patches and
    attributions follow, and the search for threshold dims; once these are there, clamps; then head searches, round by
    round. free_bytes: attributions that need more are left out.
    """
    plain = [task for group in _groups(plan) for task in _plain(plan, rows, group, batch)]
    judged = {group: names for group in _groups(plan) if (names := judged_methods(plan, rows, group))}
    return plain + _following(plan, rows, judged, batch, free_bytes)


def remaining(plan: LocatePlan, rows: Rows, free_bytes: float = math.inf) -> int:
    """The rows that the journal lacks, as far as can be foreseen: methods without plain runs count as judged.

    The dims of a length count as two, what follows a search's next round as one.
    """
    plain = [task for group in _groups(plan) for task in _plain(plan, rows, group, 1)]
    likely = {
        group: [name for name in plan.compared if name in judged or not has_runs(plan, rows, group, name)]
        for group in plan.items
        for judged in [judged_methods(plan, rows, group)]
    }
    likely = {group: names for group, names in likely.items() if names}
    following = _following(plan, rows, likely, 1, free_bytes)
    searches = sum(_is_unfinished(plan, rows, group, name) for group, names in likely.items() for name in names)
    return (
        sum(len(task.inputs) + (task.kind == DIMS) for task in (*plain, *following) if task.kind != CHOSEN) + searches
    )


def judged_methods(plan: LocatePlan, rows: Rows, group: Group) -> list[str]:
    """The methods with a significant gap to Origin, of those whose plain runs are all there."""
    there = [name for name in plan.compared if has_runs(plan, rows, group, name)]
    return [name for name in there if paired(plan, rows, group, name).gap.judged]


def known_clamps(plan: LocatePlan, rows: Rows, group: Group) -> list[Clamp] | None:
    """The clamps of a group's items; None where the dims of its length are not known.

    The dims of a length are those that its first run found, whatever layers and methods are tried now, so that rows of
    one key hold the same dims.
    """
    known = next((row["rules"] for key, row in rows.items() if key[:2] == (DIMS, group[1])), None)
    if known is None:
        return None
    tried = clamps(known, plan.layers)
    return [clamp for clamp in tried if group[0] == "nll" or not clamp.inside]  # a passkey's last M tokens lack the key


def hooks_left(plan: LocatePlan, rows: Rows, group: Group, name: str, number: int) -> tuple[str, ...]:
    """The hooks whose attributions the journal lacks for an item."""
    hooks = dict.fromkeys(plan.request.hooks)
    return tuple(hook for hook in hooks if (*group, name, number, ATTRIBUTION, hook) not in rows)


def kinds(plan: LocatePlan) -> list[Task]:
    """A task of each kind and length, for the memory that they need."""
    lengths = sorted({length for _, length in plan.items})
    names = ("run", *plan.request.kinds)
    return [Task(kind, (kind, length), task_bytes(plan, kind, length)) for kind in names for length in lengths]


def _groups(plan: LocatePlan) -> list[Group]:
    return sorted(plan.items, key=lambda group: group[1])


def _plain(plan: LocatePlan, rows: Rows, group: Group, batch: int) -> Iterator[Task]:
    for number in range(len(plan.items[group])):
        for name in plan.methods:
            plain = Plain(BASELINE if name == ORIGIN else METHOD)
            yield from _on_item(plan, rows, "run", (*group, name, number), [plain], batch)


def _following(
    plan: LocatePlan, rows: Rows, judged: dict[Group, list[str]], batch: int, free_bytes: float
) -> list[Task]:
    """What follows the plain runs, of the groups and methods that are judged."""
    wanted, result = plan.request.kinds, list[Task]()
    sweep = "patch" if "patch" in wanted else "weave"
    places = [
        (group, name, number) for group in judged for number in range(len(plan.items[group])) for name in judged[group]
    ]
    for group, name, number in places:
        result += _on_item(plan, rows, sweep, (*group, name, number), plan.swept, batch)
    if "clamp" in wanted:
        for length in sorted({length for _, length in judged}):
            if not any(key[:2] == (DIMS, length) for key in rows):
                needs = task_bytes(plan, "clamp", length)
                key = (DIMS, length, plan.compared[0])
                result.append(Task(DIMS, key, needs, inputs=(DIMS,), weight=2 * length))
        for group in judged:
            result += _clamped(plan, rows, group, batch)
    if ATTRIBUTION in wanted:
        for group, name, number in places:
            needs, hooks = task_bytes(plan, ATTRIBUTION, group[1]), hooks_left(plan, rows, group, name, number)
            if hooks and needs <= free_bytes:
                key = (*group, name, number, ATTRIBUTION)
                result.append(Task(ATTRIBUTION, key, needs, inputs=hooks, weight=2 * group[1]))
    if SEARCH in wanted:
        for group, names in judged.items():
            result += [task for name in names for task in _search(plan, rows, group, name)]
    return result


def _clamped(plan: LocatePlan, rows: Rows, group: Group, batch: int) -> Iterator[Task]:
    """Origin's runs with clamped dims, which serve all methods."""
    tried = known_clamps(plan, rows, group) or []
    inside = [Plain(BASELINE, inside=True)] if any(clamp.inside for clamp in tried) else []
    for number in range(len(plan.items[group])):
        yield from _on_item(plan, rows, "clamp", (*group, ORIGIN, number), [*inside, *tried], batch)


def _search(plan: LocatePlan, rows: Rows, group: Group, name: str) -> Iterator[Task]:
    """The next round of a search for a smallest set or, once its losses are there, the choice that follows."""
    if not _is_unfinished(plan, rows, group, name) or not has_runs(plan, rows, group, name):
        return
    step = next_round(plan, rows, group, name)
    sets = [(number, HeadSet.of(heads)) for heads in step.sets for number in step.numbers] if step else []
    missing = [
        (number, tried) for number, tried in dict.fromkeys(sets) if (*group, name, number, *tried.key) not in rows
    ]
    for number, tried in missing:
        yield from _on_item(plan, rows, SEARCH, (*group, name, number), [tried], 1)
    if step and not missing:
        choice = (tuple(step.chosen), tuple(step.candidates))
        yield Task(CHOSEN, step.chosen_key(group, name), inputs=(choice,))


def _is_unfinished(plan: LocatePlan, rows: Rows, group: Group, name: str) -> bool:
    """Whether a search is asked for and lacks something, its plain runs for one."""
    if SEARCH not in plan.request.kinds:
        return False
    if not has_runs(plan, rows, group, name):
        return True
    return is_searchable(plan, rows, group, name) and next_round(plan, rows, group, name) is not None


def _on_item(
    plan: LocatePlan, rows: Rows, kind: str, place: Key, interventions: Iterable[Any], batch: int
) -> Iterator[Task]:
    """Tasks of the missing interventions on one item: up to `batch` similar ones that follow each other in each."""
    missing = [tried for tried in interventions if (*place, *tried.key) not in rows]
    depth, length = plan.config.num_hidden_layers, int(place[1])
    for _, group in groupby(missing, key=lambda tried: (tried.key[0], *tried.key[2:3])):
        similar = list(group)
        for part in (tuple(similar[begin : begin + batch]) for begin in range(0, len(similar), batch)):
            tokens = sum(round(length * (depth - (tried.layer or 0)) / depth) for tried in part)
            key = (*place, *part[0].key)
            yield Task(kind, key, task_bytes(plan, kind, length), inputs=part, weight=tokens)
