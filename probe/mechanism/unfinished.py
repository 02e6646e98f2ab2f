"""What of a locate run its journal lacks."""

from __future__ import annotations

from probe.experiment.journal import Journal
from probe.mechanism.attribution import fits, hooks_left
from probe.mechanism.cells import has_runs, paired
from probe.mechanism.held import clamps_of
from probe.mechanism.request import ORIGIN, Group, LocatePlan
from probe.mechanism.smallest import is_searched


def left(made: LocatePlan, journal: Journal) -> int:
    """Cells of the plan that the journal lacks; where nothing is to be mended, only the plain runs are asked for.

    What is to be found before its cells can be counted is one: the dims of a length, a search for a smallest set.
    """
    return sum(_plain(made, journal, group) + _tried(made, journal, group) for group in made.items)


def _plain(made: LocatePlan, journal: Journal, group: Group) -> int:
    numbers = range(len(made.items[group]))
    return sum((*group, name, number, "run") not in journal.rows for name in made.methods for number in numbers)


def _tried(made: LocatePlan, journal: Journal, group: Group) -> int:
    numbers, kinds, count = range(len(made.items[group])), made.request.kinds, 0
    names = [
        name
        for name in made.mending
        if not has_runs(made, journal, group, name) or paired(made, journal, group, name).gap.judged
    ]
    shared = _clamps(made, journal, group)
    for number in numbers:
        own = [(name, *each.cell) for name in names for each in made.tried]
        own += [(ORIGIN, *cell) for cell in shared] if names else []
        count += sum((*group, name, number, *cell) not in journal.rows for name, *cell in own)
    if names and "clamp" in kinds:
        count += clamps_of(made, journal, group) is None
    if "attribution" in kinds and fits(made, group[1]):
        count += sum(bool(hooks_left(made, journal, group, name, number)) for name in names for number in numbers)
    if "smallest" in kinds:
        count += sum(not is_searched(made, journal, group, name) for name in names)
    return count


def _clamps(made: LocatePlan, journal: Journal, group: Group) -> list[tuple[str | int, ...]]:
    tried = clamps_of(made, journal, group) if "clamp" in made.request.kinds else None
    cells = [each.cell for each in tried or ()]
    inside = any(each.inside for each in tried or ())
    return [*cells, *([("run-inside",)] if inside else [])]
