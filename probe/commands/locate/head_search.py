"""The smallest set of heads that recovers the loss: chosen greedily on some items, scored on others, beside random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mesa.fingerprints import ids_fingerprint
from probe.commands.locate.interventions import Head, Heads, PatchedHeads, by_layer
from probe.commands.locate.loss_gap import MIN_EXCESS_LOSS, LossGap, PairedLosses
from probe.commands.locate.plan import ORIGIN, ItemGroup, LocatePlan
from probe.experiment.journal import JournalRows
from probe.experiment.task import Key

ENOUGH = 0.9
RANDOM_SETS = 20
MAX_HEADS = 32
"""Heads at which a search ends that has not recovered `ENOUGH`."""


@dataclass(frozen=True)
class Round:
    """Head sets whose losses a search needs next, on the items of these numbers; then `chosen` is settled."""

    sets: Sequence[Heads]
    numbers: Sequence[int]
    candidates: Sequence[Head] = ()
    chosen: Sequence[Head] = ()

    def keys(self, group: ItemGroup, name: str) -> list[Key]:
        """The losses that it needs, in the journal's words."""
        return [set_key(group, name, number, heads) for heads in self.sets for number in self.numbers]

    def chosen_key(self, group: ItemGroup, name: str) -> Key:
        """The name of its choice in the journal."""
        return (*group, name, -1, "chosen", ids_fingerprint(self.candidates)[-8:], len(self.chosen))


def set_key(group: ItemGroup, name: str, number: int, heads: Heads) -> Key:
    """The name in the journal of one item's loss with the method in a set of heads."""
    return (*group, name, number, *PatchedHeads.of(heads).key)


def losses_at(rows: JournalRows, keys: Iterable[Key]) -> list[list[float]]:
    """Losses (item, block), of these rows."""
    return [rows[key]["nll"] for key in keys]


def paired(
    plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str, numbers: Sequence[int] | None = None
) -> PairedLosses:
    """Origin's and a method's losses on a group's items (or those of `numbers`), whose plain runs must be there."""
    numbers = range(len(plan.items[group])) if numbers is None else numbers
    baseline, patched = (losses_at(rows, [(*group, of, number, "run") for number in numbers]) for of in (ORIGIN, name))
    return PairedLosses(baseline, patched)


def has_runs(plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str) -> bool:
    """Whether the plain runs of Origin and a method are there for all of a group's items."""
    numbers = range(len(plan.items[group]))
    return all((*group, of, number, "run") in rows for number in numbers for of in (ORIGIN, name))


def is_searchable(plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str) -> bool:
    """Whether each half of the items has an excess loss of which sets can recover a share; not of one item."""
    numbers = halves(len(plan.items[group]))
    return len(numbers[1]) > 0 and all(
        paired(plan, rows, group, name, half).gap.size >= MIN_EXCESS_LOSS for half in numbers
    )


def next_round(plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str) -> Round | None:
    """The first round that the journal lacks a loss or the choice of; None where the search is done."""
    for step in rounds(plan, rows, group, name):
        choice = [step.chosen_key(group, name)] if step.chosen else []
        if any(key not in rows for key in (*step.keys(group, name), *choice)):
            return step
    return None


def rounds(plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str) -> Iterator[Round]:
    """The rounds of a search; the journal must hold the losses of one before the next is taken.

    Candidates, heads and their number follow from the items of even number alone: of all candidates the one that
    lowers the loss most is taken, until it is low enough or `MAX_HEADS` are.
    """
    choosing, scoring = halves(len(plan.items[group]))

    def loss(heads: Heads) -> float:
        return float(np.mean(losses_at(rows, [set_key(group, name, number, heads) for number in choosing])))

    alone = {head: by_layer([head]) for head in plan.heads}
    yield Round([*alone.values()], choosing)
    candidates = sorted(sorted(alone, key=lambda head: loss(alone[head]))[: plan.request.candidates])
    target = target_loss(paired(plan, rows, group, name, choosing).gap)
    chosen, remaining = list[Head](), list(candidates)
    while remaining and len(chosen) < MAX_HEADS:
        extended = {head: by_layer([*chosen, head]) for head in remaining}
        yield Round([*extended.values()], choosing)
        best = min(remaining, key=lambda head: loss(extended[head]))
        remaining.remove(best)
        chosen.append(best)
        yield Round([extended[best], *random_sets(candidates, len(chosen))], scoring, candidates, [*chosen])
        if loss(extended[best]) <= target:
            return


def random_sets(candidates: Sequence[Head], size: int) -> list[Heads]:
    """`RANDOM_SETS` sets of `size` heads; seeded by the size."""
    rng = np.random.default_rng(size)
    draws = (rng.choice(len(candidates), size, replace=False) for _ in range(RANDOM_SETS))
    return [by_layer([candidates[index] for index in sorted(draw)]) for draw in draws]


def target_loss(gap: LossGap) -> float:
    """The loss at which `ENOUGH` of the excess loss is recovered."""
    return gap.baseline - ENOUGH * gap.size


def halves(items: int) -> tuple[range, range]:
    """The numbers of the items that sets are chosen on, and of those that they are scored on."""
    return range(0, items, 2), range(1, items, 2)
