"""Runs what a `LocatePlan` asks for, cell by cell into a journal; an interrupted run goes on where it was.

Plain runs come first, then what is tried where broken and mended differ, then what follows from the dims that were
found, then searches for smallest sets, round by round.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from probe.capture.memory import check_beside, free_bytes
from probe.experiment.journal import Journal
from probe.experiment.lock import owned, tell_finished
from probe.experiment.pool import Pool
from probe.experiment.runner import LOCAL, Runner
from probe.experiment.task import Task
from probe.mechanism.attribution import bytes_needed, fits, hooks_left
from probe.mechanism.cells import has_runs, open_journal, paired
from probe.mechanism.contrast import BROKEN, MENDED
from probe.mechanism.held import clamps_of, known_dims
from probe.mechanism.interventions import Plain
from probe.mechanism.request import ORIGIN, Group, LocatePlan, needed_bytes
from probe.mechanism.restoration import LEAST, Gap
from probe.mechanism.searching import search_sets
from probe.mechanism.smallest import can_be_searched
from probe.mechanism.spread import Spread, TimeIsOver
from probe.mechanism.unfinished import left
from probe.mechanism.work import MANY, LocateWork, attribution_cell, dims_cell, foreseen, tried_cells

Judged = Mapping[Group, Sequence[str]]
"""The methods that mend, by group."""


def locate(
    made: LocatePlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> tuple[Journal, list[Task]]:
    """The journal of the folder `out`, with every cell of the plan unless `until` came before.

    And the cells that no worker of the `runner` could finish. Raises MemoryError before any pass for what does not fit,
    FileExistsError for the folder of another run, RuntimeError where no method differs from Origin, and what `owned`
    and `Runner.check` raise.
    """
    runner.check(made.request.load)
    if runner.is_local:
        check_beside(needed_bytes(made), made.request.load, "shorten --lengths or leave patch and clamp out of --try")
    with owned(out), contextlib.ExitStack() as stack:

        @cache
        def pool() -> Pool:
            return stack.enter_context(runner.pool(LocateWork.of(made), foreseen(made)))

        if overwrite:  # nothing is removed for a run that cannot be
            pool()
        journal = open_journal(made, out, overwrite=overwrite)
        if left(made, journal):  # what is wrong with the model is told before a bar begins
            pool()
        else:
            tell_finished(out)
        bar = stack.enter_context(tqdm(desc="locating", unit="token", unit_scale=True, smoothing=0.05))
        spread = Spread(made, journal, pool, bar, until, most=1 if runner.is_local else MANY)
        stack.callback(spread.status.close)
        with contextlib.suppress(TimeIsOver):
            _run(spread, is_local=runner.is_local)
        return journal, spread.failed


def _run(spread: Spread, *, is_local: bool) -> None:
    made, kinds = spread.made, spread.made.request.kinds
    groups = sorted(made.items, key=lambda group: group[1])
    spread.expect()
    plain = [cell for group in groups for cell in _baselines(spread, group)]
    every = dict.fromkeys(groups, made.mending)
    spread.foresee([*plain, *_tried(spread, every), *_further(spread, every, is_local)])
    spread.run(plain)
    spread.expect()
    judged = {group: [name for name in made.mending if _mends(spread, group, name)] for group in groups}
    judged = {group: names for group, names in judged.items() if names}
    if not judged and not spread.failed:
        raise RuntimeError(_indifferent(spread))
    if is_local and "attribution" in kinds:
        _tell_what_does_not_fit(made, judged)
    tried = [*_tried(spread, judged), *(_dims(spread, judged) if "clamp" in kinds else ())]
    spread.foresee([*tried, *_further(spread, judged, is_local)])
    spread.run(tried)
    spread.expect()
    further = _further(spread, judged, is_local)
    spread.foresee(further)
    spread.run(further)
    for group, names in judged.items():
        for name in names if "smallest" in kinds else ():
            if can_be_searched(made, spread.journal, group, name):
                search_sets(spread, group, name)


def _missing(spread: Spread, group: Group, name: str, number: int, tried: Any) -> list[Any]:
    rows = spread.journal.rows
    return [each for each in tried if (*group, name, number, *each.cell) not in rows]


def _cells(spread: Spread, kind: str, group: Group, name: str, number: int, tried: Any) -> list[Task]:
    missing = _missing(spread, group, name, number, tried)
    return tried_cells(spread.made, kind, group, name, number, missing, spread.most)


def _baselines(spread: Spread, group: Group) -> Iterator[Task]:
    for number in range(len(spread.made.items[group])):
        for name in spread.made.methods:
            yield from _cells(spread, "run", group, name, number, [Plain(BROKEN if name == ORIGIN else MENDED)])


def _tried(spread: Spread, judged: Judged) -> Iterator[Task]:
    """Weaves and patches."""
    made = spread.made
    kind = "patch" if "patch" in made.request.kinds else "weave"
    for group, names in judged.items():
        for number in range(len(made.items[group])):
            for name in names:
                yield from _cells(spread, kind, group, name, number, made.tried)


def _dims(spread: Spread, judged: Judged) -> Iterator[Task]:
    """What finds the dims of each length that are not known."""
    for length in sorted({length for _, length in judged}):
        if known_dims(spread.journal, length) is None:
            yield dims_cell(spread.made, length)


def _further(spread: Spread, judged: Judged, is_local: bool) -> list[Task]:
    """Clamps, of dims that are known; attributions, here where they fit."""
    made, kinds, found = spread.made, spread.made.request.kinds, list[Task]()
    for group in judged if "clamp" in kinds else ():
        found += _clamped(spread, group)
    for group, names in judged.items() if "attribution" in kinds else ():
        if not is_local or fits(made, group[1]):
            found += _attributions(spread, group, names)
    return found


def _clamped(spread: Spread, group: Group) -> Iterator[Task]:
    """Broken runs with dims held; they serve all methods."""
    clamps = clamps_of(spread.made, spread.journal, group) or []
    inside = [Plain(BROKEN, inside=True)] if any(each.inside for each in clamps) else []
    for number in range(len(spread.made.items[group])):
        yield from _cells(spread, "clamp", group, ORIGIN, number, [*inside, *clamps])


def _attributions(spread: Spread, group: Group, names: Sequence[str]) -> Iterator[Task]:
    for name in names:
        for number in range(len(spread.made.items[group])):
            if hooks := hooks_left(spread.made, spread.journal, group, name, number):
                yield attribution_cell(spread.made, group, name, number, hooks)


def _tell_what_does_not_fit(made: LocatePlan, judged: Judged) -> None:
    """Attributions for which this machine has no room."""
    free = free_bytes(made.request.load.get("device") or "cpu") / 2**30
    for length in dict.fromkeys(length for _, length in judged):
        if not fits(made, length):
            said = f"left out: attribution at {length} tokens needs {bytes_needed(made, length) / 2**30:.0f} GiB"
            tqdm.write(f"{said}, {free:.0f} are free", file=sys.stderr)


def _mends(spread: Spread, group: Group, name: str) -> bool:
    return has_runs(spread.made, spread.journal, group, name) and _gap(spread, group, name).judged


def _gap(spread: Spread, group: Group, name: str) -> Gap:
    return paired(spread.made, spread.journal, group, name).gap


def _indifferent(spread: Spread) -> str:
    """Why there is nothing to restore."""
    gaps = ((group, name, _gap(spread, group, name)) for group in spread.made.items for name in spread.made.mending)
    said = (
        f"{name} {measure} at {length}: [{own.low:+z.3f}, {own.high:+z.3f}]" for (measure, length), name, own in gaps
    )
    return (
        f"no method is better than Origin beyond doubt and by {LEAST} nats/token; Origin less the method: "
        f"{', '.join(said)}; take longer --lengths, another --methods or more --samples"
    )
