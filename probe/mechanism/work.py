"""The cells of a locate run, and what a worker does with one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from probe.capture.bridge import bridge_to
from probe.experiment.model_spec import ModelSpec
from probe.experiment.task import Key, Measure, Task
from probe.mechanism.attribution import bytes_needed
from probe.mechanism.hand import Hand
from probe.mechanism.request import Group, LocatePlan, cell_bytes

DIMS, ATTRIBUTION, SEARCH = "dims", "attribution", "smallest"
"""Kinds of cells: the two that are no runs of an item, and those of a search, which goes over all items many times."""
MANY = 64
"""Rows that a worker's cell gives at most: for all of them the plain runs of its item are made once."""


def tried_cells(
    made: LocatePlan, kind: str, group: Group, name: str, number: int, tried: Iterable[Any], most: int
) -> list[Task]:
    """Cells for a runner, of what is tried on one item: up to `most` of those alike that follow each other."""
    found, needs, depth = [], cell_bytes(made, kind, group[1]), made.config.num_hidden_layers
    for _, alike in groupby(tried, key=lambda each: (each.cell[0], *each.cell[2:3])):
        mine = list(alike)
        for begin in range(0, len(mine), most):
            inputs = tuple(mine[begin : begin + most])
            weight = sum(round(group[1] * (depth - (each.layer or 0)) / depth) for each in inputs)
            key = (*group, name, number, *inputs[0].cell)
            found.append(Task(kind, key, needs, inputs=inputs, weight=weight))
    return found


def dims_cell(made: LocatePlan, length: int) -> Task:
    """The cell that finds what is clamped at a length."""
    key = (DIMS, length, made.methods[made.mending[0]].name)
    return Task(DIMS, key, cell_bytes(made, "clamp", length), weight=2 * length)


def attribution_cell(made: LocatePlan, group: Group, name: str, number: int, hooks: Sequence[str]) -> Task:
    """The cell of one item's attributions."""
    key = (*group, name, number, ATTRIBUTION)
    return Task(ATTRIBUTION, key, bytes_needed(made, group[1]), inputs=tuple(hooks), weight=2 * group[1])


def foreseen(made: LocatePlan) -> list[Task]:
    """A cell of each kind and length, for what they need."""
    kinds, lengths = ("run", *made.request.kinds), sorted({length for _, length in made.items})
    found = [Task(kind, (kind, length), cell_bytes(made, kind, length)) for kind in kinds for length in lengths]
    if ATTRIBUTION in kinds:
        found += [Task(ATTRIBUTION, (length,), bytes_needed(made, length)) for length in lengths]
    return found


@dataclass(frozen=True)
class LocateWork:
    """A plan, and the model that it is for."""

    made: LocatePlan
    source: ModelSpec

    @classmethod
    def of(cls, made: LocatePlan) -> LocateWork:
        """The work of a plan."""
        asked = made.request
        return cls(replace(made, config=None), ModelSpec.of(asked.model, asked.load, made.config))

    def start(self, memory_bytes: int | None = None) -> Measure:
        """Loads the model; a cell gives rows of the journal, by what it calls them."""
        loaded = self.source.loaded()
        bridge = bridge_to(loaded.model, loaded.tokenizer)
        hand = Hand(replace(self.made, config=loaded.model.config), bridge, loaded.tokenizer)

        def give(cell: Task) -> list[tuple[Key, dict[str, Any]]]:
            with torch.no_grad():
                if cell.kind == DIMS:
                    return [(cell.key, {"rules": hand.dims(int(cell.key[1]))})]
                group, name, number = (str(cell.key[0]), int(cell.key[1])), str(cell.key[2]), int(cell.key[3])
                if cell.kind == ATTRIBUTION:
                    return [(cell.key, {"falls": hand.falls(group, name, number, cell.inputs)})]
                search = cell.kind == SEARCH
                return [
                    ((*cell.key[:4], *each.cell), {"nll": hand.losses(group, name, number, each, search=search)})
                    for each in cell.inputs
                ]

        return give
