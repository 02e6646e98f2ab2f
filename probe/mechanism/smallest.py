"""The smallest set of heads that mends: chosen greedily on some items, scored on others, beside random sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mesa.fingerprints import ids_fingerprint
from probe.evaluation.journal import Journal
from probe.mechanism.cells import Cells, has_runs, paired
from probe.mechanism.contrast import BROKEN, MENDED, Contrast
from probe.mechanism.interventions import Head, by_layer
from probe.mechanism.request import Group, LocatePlan
from probe.mechanism.restoration import LEAST, Gap

Heads = Mapping[int, tuple[int, ...]]
"""Heads by layer, as methods take them."""
ENOUGH = 0.9
RANDOM_SETS = 20
MOST = 32
"""Heads at which the search ends, if they do not restore `ENOUGH`."""


def greedy(candidates: Sequence[Head], loss: Callable[[Heads], float], enough: float) -> Iterator[Head]:
    """The heads in the order in which each lowers the loss most, until it is at most `enough` or `MOST` are in."""
    chosen: list[Head] = []
    left = list(candidates)
    while left and len(chosen) < MOST:
        scored = {head: loss(by_layer([*chosen, head])) for head in left}
        best = min(left, key=scored.__getitem__)
        left.remove(best)
        chosen.append(best)
        yield best
        if scored[best] <= enough:
            return


def random_sets(candidates: Sequence[Head], size: int) -> list[Heads]:
    """`RANDOM_SETS` sets of `size` heads; seeded by the size."""
    rng = np.random.default_rng(size)
    picks = (rng.choice(len(candidates), size, replace=False) for _ in range(RANDOM_SETS))
    return [by_layer([candidates[place] for place in sorted(pick)]) for pick in picks]


def search_sets(cells: Cells, group: Group, name: str) -> None:
    """Journals greedy sets, chosen on the items of even number, and on the odd ones their losses and random sets'."""
    contrasts = {number: cells.fresh(group, number, name) for number in range(len(cells.made.items[group]))}
    cells.bar.set_postfix_str(f"{name}, smallest set")

    def loss(heads: Heads, numbers: Sequence[int]) -> float:
        return float(np.mean([_losses(cells, group, number, contrasts[number], heads) for number in numbers]))

    for candidates, chosen in _search(cells.made, cells.journal, group, name, loss):
        cells.bar.set_postfix_str(f"{name}, smallest set, {len(chosen)} heads chosen")
        cell = (*group, name, -1, "chosen", ids_fingerprint(candidates)[-8:], len(chosen))
        if cell not in cells.journal.rows:
            cells.add(cell, {"heads": chosen, "candidates": candidates})


def is_searched(made: LocatePlan, journal: Journal, group: Group, name: str) -> bool:
    """Whether the journal holds the whole search, if there is one; gone through with the losses that are in it."""

    def loss(heads: Heads, numbers: Sequence[int]) -> float:
        return float(np.mean([journal.rows[set_cell(group, name, number, heads)]["nll"] for number in numbers]))

    if not has_runs(made, journal, group, name):
        return False
    if not can_be_searched(made, journal, group, name):
        return True
    try:
        for _ in _search(made, journal, group, name, loss):
            pass
    except KeyError:
        return False
    return True


def can_be_searched(made: LocatePlan, journal: Journal, group: Group, name: str) -> bool:
    """Whether each half of the items shows a loss of which sets can restore a share."""
    gaps = [paired(made, journal, group, name, half).gap for half in halves(len(made.items[group]))]
    return all(gap.broken - gap.mended >= LEAST for gap in gaps)


def _search(
    made: LocatePlan, journal: Journal, group: Group, name: str, loss: Callable[[Heads, Sequence[int]], float]
) -> Iterator[tuple[list[Head], list[Head]]]:
    """Candidates and chosen heads, one more each time, by `loss` (heads, numbers of items), asked also for scores.

    Candidates, heads and how many they are follow from the items of even number alone.
    """
    choosing, scoring = halves(len(made.items[group]))
    alone = {head: loss(by_layer([head]), choosing) for head in made.heads}
    candidates = sorted(sorted(alone, key=alone.__getitem__)[: made.request.candidates])
    gap = paired(made, journal, group, name, choosing).gap
    chosen: list[Head] = []
    for head in greedy(candidates, lambda heads: loss(heads, choosing), enough_of(gap)):
        chosen.append(head)
        for each in (by_layer(chosen), *random_sets(candidates, len(chosen))):
            loss(each, scoring)
        yield candidates, list(chosen)


def enough_of(gap: Gap) -> float:
    """The loss at which `ENOUGH` of a gap is restored."""
    return gap.broken - ENOUGH * (gap.broken - gap.mended)


def halves(items: int) -> tuple[range, range]:
    """The numbers of the items that sets are chosen on, and of those that they are scored on."""
    return range(0, items, 2), range(1, items, 2)


def set_cell(group: Group, name: str, number: int, heads: Heads) -> tuple[str | int, ...]:
    """What the journal calls the losses of one item with the method in a set of heads."""
    text = ";".join(f"{layer}:{','.join(map(str, each))}" for layer, each in heads.items())
    return (*group, name, number, "set", text)


def _losses(cells: Cells, group: Group, number: int, contrast: Contrast, heads: Heads) -> list[float]:
    method, tokens = contrast.methods[MENDED], round(len(contrast.item.ids) * cells.part(min(heads)))
    cell = set_cell(group, method.name, number, heads)
    cells.bar.total += tokens
    if cell not in cells.journal.rows:
        cells.keep(cell, contrast.run(BROKEN, min(heads), method=replace(method, heads=dict(heads))).losses)
    cells.bar.update(tokens)
    return cells.journal.rows[cell]["nll"]
