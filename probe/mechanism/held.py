"""The clamps of a group: their dims are searched for once a length, then read from the journal."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from probe.experiment.journal import Journal
from probe.experiment.task import Key as Cell
from probe.mechanism.clamp import Clamp, Dims, clamps
from probe.mechanism.request import Group, LocatePlan


def clamps_of(made: LocatePlan, journal: Journal, group: Group) -> list[Clamp] | None:
    """What is clamped in a group's items; None where its dims are still to be searched for.

    The dims of a length are those that its first run found, whichever layers and methods are gone over now: cells of
    one name hold the same dims.
    """
    cell = known_dims(journal, group[1])
    if cell is None:
        return None
    found: Mapping[str, tuple[Dims, dict[int, np.ndarray]]] = {
        rule: ({layer: dims for layer, dims, _ in each}, {layer: np.array(sets) for layer, _, sets in each})
        for rule, each in journal.rows[cell]["rules"].items()
    }
    tried = [each for rule, (dims, controls) in found.items() for each in clamps(dims, controls, rule, made.layers)]
    return [each for each in tried if group[0] == "nll" or not each.inside]  # a passkey's last M tokens lack the key


def known_dims(journal: Journal, length: int) -> Cell | None:
    """The cell with the dims of a length, if there is one."""
    return next((cell for cell in journal.rows if cell[:2] == ("dims", length)), None)
