"""The finished cells of a locate run, and what is at hand to make further ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformer_lens.model_bridge import TransformerBridge

from mesa.methods import Method
from probe.evaluation.clock import is_over
from probe.evaluation.journal import Journal
from probe.mechanism.contrast import BROKEN, MENDED, Contrast
from probe.mechanism.items import blocks
from probe.mechanism.request import ORIGIN, Group, LocatePlan
from probe.mechanism.restoration import Paired
from probe.store.located import LOCATED

FOLDER, JOURNAL = "locate", "cells.jsonl"
"""Where in its --out a run's results lie, and its finished cells in there."""


class TimeIsOver(Exception):
    """No further cell is begun."""


def open_journal(made: LocatePlan, out: Path, *, overwrite: bool = False) -> Journal:
    """The folder's journal. Raises FileExistsError for one of other settings, or with other sizes of a method."""
    path = out / FOLDER / JOURNAL
    if overwrite:  # nor may what was told of it be taken for this run's
        for each in (path, out / LOCATED, (out / LOCATED).with_name("report.html")):
            each.unlink(missing_ok=True)
    journal = Journal(path, made.settings, force=made.request.force)
    for cell, row in journal.rows.items():
        name = str(cell[2])
        if name in made.methods and row["config"] != config_of(made.methods[name]):
            raise FileExistsError(f"{path} holds {name} with other parameters; use --overwrite or another --out")
    return journal


def config_of(method: Method) -> Any:
    """The method's description, as a journal gives it back."""
    return json.loads(json.dumps(method.describe()))


def paired(made: LocatePlan, journal: Journal, group: Group, name: str, numbers: Sequence[int] | None = None) -> Paired:
    """Origin's and a method's losses on a group's items (or those of `numbers`); their runs must be there."""
    numbers = range(len(made.items[group])) if numbers is None else numbers
    broken, mended = (
        [journal.rows[(*group, each, number, "run")]["nll"] for number in numbers] for each in (ORIGIN, name)
    )
    return Paired(broken, mended)


def has_runs(made: LocatePlan, journal: Journal, group: Group, name: str) -> bool:
    """Whether Origin's and a method's runs of all of a group's items are there."""
    numbers = range(len(made.items[group]))
    return all((*group, each, number, "run") in journal.rows for number in numbers for each in (ORIGIN, name))


@dataclass
class Cells:
    """A plan, the bridged model, the journal, and the contrasts of the item at hand, for all its cells."""

    made: LocatePlan
    bridge: TransformerBridge
    tokenizer: Any
    journal: Journal
    bar: tqdm
    until: float | None = None
    _at_hand: dict[tuple[Group, int], dict[str, Contrast]] = field(default_factory=dict)

    def contrast(self, group: Group, number: int, name: str) -> Contrast:
        """Of the item at hand, which this makes it; the broken run is the same for all methods."""
        if (group, number) not in self._at_hand:
            self._at_hand = {(group, number): {}}
        known = self._at_hand[group, number]
        if name not in known:
            fresh = self.fresh(group, number, name).sharing(*known.values())
            self._at_hand[group, number] = {name: fresh}
        return self._at_hand[group, number][name]

    def fresh(self, group: Group, number: int, name: str) -> Contrast:
        """A contrast of its own: as long as it is kept, so are its states."""
        methods = {BROKEN: self.made.methods[ORIGIN], MENDED: self.made.methods[name]}
        return Contrast(self.bridge, self.made.items[group][number], methods, self.made.request.executor)

    def inside(self, group: Group, number: int) -> Contrast:
        """Of the last M tokens of an item of text, both runs Origin's."""
        origin, item = self.made.methods[ORIGIN], self.made.items[group][number]
        cut = replace(item, ids=item.ids[-origin.trained_length :])
        return Contrast(self.bridge, cut, {BROKEN: origin, MENDED: origin}, self.made.request.executor)

    def keep(self, cell: tuple[Any, ...], losses: torch.Tensor) -> None:
        """Journals the losses of a cell (measure, length, method, item, ...). Raises RuntimeError if not finite."""
        found = blocks(cell[0], losses.double().cpu().numpy())
        if not np.isfinite(found).all():
            raise RuntimeError(f"the losses of {cell} are not finite; try --dtype float32")
        self.add(cell, {"nll": found})

    def add(self, cell: tuple[Any, ...], row: dict[str, Any]) -> None:
        """Journals a cell with its method's config. Raises TimeIsOver where no further one is to be begun."""
        self.journal.add(cell, {"config": config_of(self.made.methods[cell[2]]), **row})
        if is_over(self.until):
            raise TimeIsOver

    def part(self, layer: int) -> float:
        """The share of a pass that is run from `layer` on."""
        depth = self.made.config.num_hidden_layers
        return (depth - layer) / depth
