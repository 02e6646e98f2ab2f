"""Runs what a `LocatePlan` asks for, cell by cell into a journal; an interrupted run goes on where it was."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mesa.models import load
from probe.capture.bridge import bridge_to
from probe.capture.memory import check_beside, free_bytes
from probe.evaluation.journal import Journal
from probe.mechanism.attribution import attribute, bytes_needed, hooks_left
from probe.mechanism.cells import Cells, TimeIsOver, open_journal, paired
from probe.mechanism.clamp import Clamp
from probe.mechanism.contrast import BROKEN, MENDED, Contrast
from probe.mechanism.held import clamps_of, search_dims
from probe.mechanism.interventions import Intervention
from probe.mechanism.request import ORIGIN, Group, LocatePlan, needed_bytes
from probe.mechanism.restoration import LEAST, Gap
from probe.mechanism.shift import Shift, changes, shift_cells, shifts
from probe.mechanism.smallest import can_be_searched, search_sets
from probe.mechanism.unfinished import left
from probe.ownership import owned


def locate(made: LocatePlan, out: Path, *, overwrite: bool = False, until: float | None = None) -> Journal:
    """The journal of the folder `out`, with every cell of the plan unless `until` came before.

    Raises MemoryError before any pass for what does not fit, FileExistsError for the folder of another run,
    RuntimeError where no method differs from Origin, and what `owned` raises.
    """
    check_beside(needed_bytes(made), made.request.load, "shorten --lengths or leave patch and clamp out of --try")
    with owned(out):
        return _locate(made, out, overwrite, until)


def _locate(made: LocatePlan, out: Path, overwrite: bool, until: float | None) -> Journal:
    if not overwrite:
        open_journal(made, out)  # before the weights are loaded
    loaded = load(made.request.model, **made.request.load)
    journal = open_journal(made, out, overwrite=overwrite)
    bar = tqdm(desc="locating", unit="token", unit_scale=True, smoothing=0.05)
    with bar, torch.no_grad(), contextlib.suppress(TimeIsOver):
        _run(Cells(made, bridge_to(loaded.model, loaded.tokenizer), loaded.tokenizer, journal, bar, until))
    return journal


def _run(cells: Cells) -> None:
    """Every group's runs as they are, then what is tried where broken and mended differ."""
    made = cells.made
    groups = sorted(made.items, key=lambda group: group[1])
    cells.bar.total = round(sum(_tokens(cells, group) for group in groups))
    _expect(cells)
    for group in groups:
        _baselines(cells, group)
    _expect(cells)
    judged = {group: [name for name in made.mending if _gap(cells, group, name).judged] for group in groups}
    if not any(judged.values()):
        raise RuntimeError(_indifferent(cells))
    kinds = made.request.kinds
    for group, names in judged.items():
        for number in range(len(made.items[group])):
            for name in names:
                for each in made.tried:
                    _cell(cells, group, number, name, each)
        if names and "clamp" in kinds:
            _clamps(cells, group)
        if names and "shift" in kinds:
            _shifts(cells, group)
        for name in names:
            if "attribution" in kinds:
                _attribution(cells, group, name)
            if "smallest" in kinds and can_be_searched(made, cells.journal, group, name):
                search_sets(cells, group, name)


def _expect(cells: Cells) -> None:
    """Has the journal tell how many cells there will be, as far as can be told now."""
    cells.journal.expect(len(cells.journal.rows) + left(cells.made, cells.journal))


def _baselines(cells: Cells, group: Group) -> None:
    for number, item in enumerate(cells.made.items[group]):
        for name in cells.made.methods:
            cell = (*group, name, number, "run")
            if cell not in cells.journal.rows:
                contrast = cells.contrast(group, number, cells.made.mending[0] if name == ORIGIN else name)
                cells.keep(cell, contrast.outcome(BROKEN if name == ORIGIN else MENDED).losses)
            cells.bar.update(len(item.ids))


def _cell(
    cells: Cells, group: Group, number: int, name: str, each: Intervention | Clamp | Shift, own: Contrast | None = None
) -> None:
    cell = (*group, name, number, *each.cell)
    if cell not in cells.journal.rows:
        contrast = own or cells.contrast(group, number, cells.made.mending[0] if name == ORIGIN else name)
        cells.keep(cell, each.run(contrast).losses)
    cells.bar.update(round(len(cells.made.items[group][number].ids) * cells.part(each.layer or 0)))


def _clamps(cells: Cells, group: Group) -> None:
    """Losses of clamped broken runs; they serve all methods."""
    search_dims(cells, group[1])
    _expect(cells)
    tried, items = clamps_of(cells.made, cells.journal, group) or [], cells.made.items[group]
    cells.bar.total += round(sum(len(item.ids) * cells.part(each.layer or 0) for item in items for each in tried))
    for number in range(len(items)):
        inside = cells.inside(group, number)
        cell = (*group, ORIGIN, number, "run-inside")
        if any(each.inside for each in tried) and cell not in cells.journal.rows:
            cells.keep(cell, inside.outcome(BROKEN).losses)
        for each in tried:
            _cell(cells, group, number, ORIGIN, each, inside if each.inside else None)


def _shifts(cells: Cells, group: Group) -> None:
    """Losses of broken runs with other positional vectors; they serve all methods."""
    made, (_, length) = cells.made, group
    items = range(len(made.items[group]))
    if all(
        (*group, ORIGIN, number, *cell) in cells.journal.rows for number in items for cell in shift_cells(made.layers)
    ):
        return
    longest = max(len(item.ids) for item in made.items[group])
    tried = [*shifts(changes(cells.bridge, made.documents, made.methods[ORIGIN], longest, made.layers))]
    cells.bar.total += round(sum(length * cells.part(each.layer) for each in tried) * len(made.items[group]))
    for number in range(len(made.items[group])):
        for each in tried:
            _cell(cells, group, number, ORIGIN, each)


def _attribution(cells: Cells, group: Group, name: str) -> None:
    model: Any = cells.bridge.original_model
    made, (_, length) = cells.made, group
    needed, free = bytes_needed(made, length), free_bytes(model.device)
    if needed > free:
        cells.bar.write(
            f"left out: attribution at {length} tokens needs {needed / 2**30:.0f} GiB, {free / 2**30:.0f} are free"
        )
        return
    for number in range(len(made.items[group])):
        hooks = hooks_left(made, cells.journal, group, name, number)
        if hooks:
            cell = (*group, name, number, "attribution")
            known = cells.journal.rows.get(cell, {"falls": []})["falls"]
            found = attribute(cells.contrast(group, number, name), hooks)
            cells.add(cell, {"falls": [*known, *([*each.cell, fall] for each, fall in found.items())]})


def _gap(cells: Cells, group: Group, name: str) -> Gap:
    return paired(cells.made, cells.journal, group, name).gap


def _tokens(cells: Cells, group: Group) -> float:
    made = cells.made
    parts = len(made.methods) + len(made.mending) * sum(cells.part(each.layer) for each in made.tried)
    return sum(len(item.ids) for item in made.items[group]) * parts


def _indifferent(cells: Cells) -> str:
    """Why there is nothing to restore."""
    gaps = ((group, name, _gap(cells, group, name)) for group in cells.made.items for name in cells.made.mending)
    said = (f"{name} {measure} at {length}: [{own.low:+.3f}, {own.high:+.3f}]" for (measure, length), name, own in gaps)
    return (
        f"no method is better than Origin beyond doubt and by {LEAST} nats/token; Origin less the method: "
        f"{', '.join(said)}; take longer --lengths, another --methods or more --samples"
    )
