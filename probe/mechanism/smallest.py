"""The smallest set of heads that mends: chosen greedily on some items, scored on others, beside random sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mesa.fingerprints import ids_fingerprint
from probe.experiment.journal import Journal
from probe.mechanism.cells import has_runs, paired
from probe.mechanism.interventions import Head, Within, by_layer
from probe.mechanism.request import Group, LocatePlan
from probe.mechanism.restoration import LEAST, Gap

Heads = Mapping[int, tuple[int, ...]]
"""Heads by layer, as methods take them."""
ENOUGH = 0.9
RANDOM_SETS = 20
MOST = 32
"""Heads at which the search ends, if they do not restore `ENOUGH`."""


@dataclass(frozen=True)
class Round:
    """The sets whose losses a search needs next, on the items of these numbers; then `chosen` is settled."""

    sets: Sequence[Heads]
    numbers: Sequence[int]
    candidates: Sequence[Head] = ()
    chosen: Sequence[Head] = ()


def random_sets(candidates: Sequence[Head], size: int) -> list[Heads]:
    """`RANDOM_SETS` sets of `size` heads; seeded by the size."""
    rng = np.random.default_rng(size)
    picks = (rng.choice(len(candidates), size, replace=False) for _ in range(RANDOM_SETS))
    return [by_layer([candidates[place] for place in sorted(pick)]) for pick in picks]


def is_searched(made: LocatePlan, journal: Journal, group: Group, name: str) -> bool:
    """Whether the journal holds the whole search, if there is one; gone through with the losses that are in it."""
    if not has_runs(made, journal, group, name):
        return False
    if not can_be_searched(made, journal, group, name):
        return True
    return all(
        cell in journal.rows
        for each in rounds(made, journal, group, name)
        for cell in (
            *(set_cell(group, name, number, heads) for heads in each.sets for number in each.numbers),
            *([chosen_cell(group, name, each)] if each.chosen else []),
        )
    )


def can_be_searched(made: LocatePlan, journal: Journal, group: Group, name: str) -> bool:
    """Whether each half of the items shows a loss of which sets can restore a share."""
    gaps = [paired(made, journal, group, name, half).gap for half in halves(len(made.items[group]))]
    return all(gap.broken - gap.mended >= LEAST for gap in gaps)


def rounds(made: LocatePlan, journal: Journal, group: Group, name: str) -> Iterator[Round]:
    """The rounds of a search; the journal has to hold what one asks for before the next is taken.

    Candidates, heads and how many they are follow from the items of even number alone: of all candidates the one that
    lowers the loss most is taken, until it is low enough or `MOST` are.
    """
    choosing, scoring = halves(len(made.items[group]))

    def loss(heads: Heads) -> float:
        return float(np.mean([journal.rows[set_cell(group, name, number, heads)]["nll"] for number in choosing]))

    alone = {head: by_layer([head]) for head in made.heads}
    yield Round([*alone.values()], choosing)
    candidates = sorted(sorted(alone, key=lambda head: loss(alone[head]))[: made.request.candidates])
    enough = enough_of(paired(made, journal, group, name, choosing).gap)
    chosen, left = list[Head](), list(candidates)
    while left and len(chosen) < MOST:
        tried = {head: by_layer([*chosen, head]) for head in left}
        yield Round([*tried.values()], choosing)
        best = min(left, key=lambda head: loss(tried[head]))
        left.remove(best)
        chosen.append(best)
        yield Round([tried[best], *random_sets(candidates, len(chosen))], scoring, candidates, [*chosen])
        if loss(tried[best]) <= enough:
            return


def enough_of(gap: Gap) -> float:
    """The loss at which `ENOUGH` of a gap is restored."""
    return gap.broken - ENOUGH * (gap.broken - gap.mended)


def halves(items: int) -> tuple[range, range]:
    """The numbers of the items that sets are chosen on, and of those that they are scored on."""
    return range(0, items, 2), range(1, items, 2)


def set_cell(group: Group, name: str, number: int, heads: Heads) -> tuple[str | int, ...]:
    """What the journal calls the losses of one item with the method in a set of heads."""
    return (*group, name, number, *Within.of(heads).cell)


def chosen_cell(group: Group, name: str, each: Round) -> tuple[str | int, ...]:
    """What it calls the heads that are chosen after a round."""
    return (*group, name, -1, "chosen", ids_fingerprint(each.candidates)[-8:], len(each.chosen))
