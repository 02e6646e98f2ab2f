"""Runs searches for smallest sets: a round's passes are shared out, rounds follow each other."""

from __future__ import annotations

from probe.mechanism.cells import config_of
from probe.mechanism.interventions import Within
from probe.mechanism.request import Group
from probe.mechanism.smallest import chosen_cell, rounds
from probe.mechanism.spread import Spread
from probe.mechanism.work import SEARCH, tried_cells


def search_sets(spread: Spread, group: Group, name: str) -> None:
    """Journals greedy sets, chosen on the items of even number, and on the odd ones their losses and random sets'.

    The sets of one round are its cells; a round follows from the one before it. One that lost a cell is the last.
    """
    rows = spread.journal.rows
    for each in rounds(spread.made, spread.journal, group, name):
        asked = dict.fromkeys((number, Within.of(heads)) for heads in each.sets for number in each.numbers)
        missing = [
            cell
            for number, tried in asked
            if (*group, name, number, *tried.cell) not in rows
            for cell in tried_cells(spread.made, SEARCH, group, name, number, [tried], 1)
        ]
        spread.expect(len(missing))
        if not spread.run(missing):
            return
        cell = chosen_cell(group, name, each)
        if each.chosen and cell not in rows:
            row = {"heads": each.chosen, "candidates": each.candidates}
            spread.journal.add(cell, {"config": config_of(spread.made.methods[name]), **row})
            spread.check_time()
