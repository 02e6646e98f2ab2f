"""The smallest set of heads that mends: chosen greedily on some items, scored on others, beside random sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mesa.fingerprints import ids_fingerprint
from probe.mechanism.cells import Cells, paired
from probe.mechanism.contrast import BROKEN, MENDED, Contrast
from probe.mechanism.interventions import Head, by_layer
from probe.mechanism.request import Group

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
    choosing, scoring = halves(len(cells.made.items[group]))
    contrasts = {number: cells.fresh(group, number, name) for number in (*choosing, *scoring)}

    def loss(heads: Heads, numbers: Sequence[int]) -> float:
        cells.bar.set_postfix_str(f"{name}, smallest set, {len(chosen)} heads chosen")
        return float(np.mean([_losses(cells, group, number, contrasts[number], heads) for number in numbers]))

    chosen: list[Head] = []
    alone = {head: loss(by_layer([head]), choosing) for head in cells.made.heads}
    candidates = sorted(sorted(alone, key=alone.__getitem__)[: cells.made.request.candidates])
    gap = paired(cells.made, cells.journal, group, name, choosing).gap
    enough = gap.broken - ENOUGH * (gap.broken - gap.mended)
    for head in greedy(candidates, lambda heads: loss(heads, choosing), enough):
        chosen.append(head)
        loss(by_layer(chosen), scoring)
        for each in random_sets(candidates, len(chosen)):
            loss(each, scoring)
        cell = (*group, name, -1, "chosen", ids_fingerprint(candidates)[-8:], len(chosen))
        if cell not in cells.journal.rows:
            cells.add(cell, {"heads": list(chosen), "candidates": candidates})


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
