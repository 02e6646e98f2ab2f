"""The finished cells of a locate run, and the losses that are in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mesa.methods import Method
from probe.experiment.journal import Journal
from probe.mechanism.request import ORIGIN, Group, LocatePlan
from probe.mechanism.restoration import Paired
from probe.store.results import LOCATED

FOLDER, JOURNAL = "locate", "cells.jsonl"
"""Where in its --out a run's results lie, and its finished cells in there."""


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
