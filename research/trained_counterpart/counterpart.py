"""Runs what a `CounterpartPlan` asks for, cell by cell into a journal; an interrupted run goes on where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from tqdm import tqdm
from transformer_lens.model_bridge import TransformerBridge

from mesa.models import load
from probe.capture.bridge import bridge_to
from probe.capture.memory import check_beside
from probe.experiment.journal import Journal
from probe.experiment.lock import tell_finished
from probe.experiment.progress import is_over
from probe.experiment.task import Key as Cell
from probe.mechanism import passes
from probe.mechanism.contrast import BROKEN, MENDED, Contrast
from probe.mechanism.interventions import Head, by_layer
from probe.mechanism.items import blocks
from probe.tasks.repeated import repeated_word
from probe.thresholds.search import CrossingRule, search
from research.trained_counterpart.hold import Hold, random_heads
from research.trained_counterpart.measure import first_key
from research.trained_counterpart.reading import TINY, chosen_queries, read_heads
from research.trained_counterpart.request import (
    EVERY,
    FOUND,
    NEAREST,
    SETS,
    CounterpartPlan,
    needed_bytes,
    random_names,
)

FOLDER, JOURNAL = "counterpart", "cells.jsonl"
CROSSED = ("attn_out", "resid_post")
"""Hooks whose dims' crossings are counted."""
_DIGITS = 9


def counterpart(made: CounterpartPlan, out: Path, *, overwrite: bool = False, until: float | None = None) -> Journal:
    """The journal of the folder `out`, with every cell of the plan unless `until` came before.

    Raises MemoryError before any pass for what does not fit, FileExistsError for the folder of another run.
    """
    check_beside(needed_bytes(made), made.request.load, "shorten --lengths, or leave hold out of --try")
    if not overwrite:  # before the weights are loaded
        journal = open_journal(made, out)
        if all(cell in journal.rows for cell in cells(made)):
            tell_finished(out)
            return journal
    loaded = load(made.request.model, **made.request.load)
    journal = open_journal(made, out, overwrite=overwrite)
    journal.expect(len(cells(made)))
    bridge = bridge_to(loaded.model, loaded.tokenizer)
    bar = tqdm(desc="looking for counterparts", unit="cell", total=len(cells(made)))
    with bar, torch.no_grad():
        for cell in cells(made):
            if cell not in journal.rows:
                journal.add(cell, _row(bridge, loaded.tokenizer, made, journal, cell))
                if is_over(until):
                    break
            bar.update()
    return journal


def open_journal(made: CounterpartPlan, out: Path, *, overwrite: bool = False) -> Journal:
    """The folder's journal. Raises FileExistsError for one of other settings."""
    path = out / FOLDER / JOURNAL
    if overwrite:
        for each in (path, path.with_name("summary.json")):
            each.unlink(missing_ok=True)
    return Journal(path, made.settings, force=made.request.force)


def cells(made: CounterpartPlan) -> list[Cell]:
    """What is journaled, in the order in which it is run."""
    found: list[Cell] = [("find", number) for number in made.finding]
    if not made.judging:
        return found
    for length in made.lengths:
        found += [("hold", length, number) for number in made.judging]
    return [*found, ("crossed", made.lengths[-1])]


def heads_of(made: CounterpartPlan, journal: Journal) -> list[dict[str, Any]]:
    """What is read of every head; empty while texts that they are found on are left."""
    rows = [journal.rows.get(("find", number)) for number in made.finding]
    if not all(rows):
        return []
    attention, output, apart = (
        np.array([row[name] for row in rows if row]) for name in ("attention", "output", "apart")
    )
    queries = chosen_queries(made.lengths[-1], made.trained_length)
    return read_heads(attention, output, apart, queries, made.trained_length)


def curves(made: CounterpartPlan, journal: Journal, heads: Sequence[Head]) -> dict[str, Any]:
    """D by position, its geometric mean over the texts that heads are found on, for some heads ('layer.head')."""
    attention = np.array([journal.rows["find", number]["attention"] for number in made.finding])
    level = -np.log(np.maximum(attention, TINY)).mean(0)
    position = chosen_queries(made.lengths[-1], made.trained_length)
    found = {f"{layer}.{head}": np.exp(level[layer, head]).round(3).tolist() for layer, head in heads}
    return {"position": position, "D": found}


def chosen_sets(made: CounterpartPlan, heads: Sequence[Mapping[str, Any]]) -> dict[str, list[Head]]:
    """The sets that are held, by name; `found` may be empty."""
    best = sorted(heads, key=lambda row: -row["monotone"][0])[: made.request.nearest]
    rows = {FOUND: [row for row in heads if row["part"]], NEAREST: best, EVERY: heads}
    return {name: sorted((row["layer"], row["head"]) for row in rows[name]) for name in SETS}


def held_sets(made: CounterpartPlan, journal: Journal) -> dict[str, Hold]:
    """What is held, by name: each set that has heads, and its random ones."""
    found = {}
    for name, heads in chosen_sets(made, heads_of(made, journal)).items():
        if heads:
            found[name] = Hold(by_layer(heads))
            if name != EVERY:
                drawn = (random_heads(heads, made.config.num_attention_heads, d) for d in range(made.request.draws))
                pairs = zip(random_names(name, made.request.draws), drawn, strict=True)
                found |= {other: Hold(each) for other, each in pairs if each}
    return found


def _row(bridge: TransformerBridge, tokenizer: Any, made: CounterpartPlan, journal: Journal, cell: Cell) -> Any:
    """What a cell measures, ready for JSON. Raises RuntimeError for losses that are not finite."""
    kind, *rest = cell
    if kind == "find":
        ids = made.items[made.lengths[-1]][int(rest[0])].ids
        found = first_key(bridge, ids, made.origin, chosen_queries(len(ids), made.trained_length))
        return {name: _short(value) for name, value in found.items()}
    sets = held_sets(made, journal)
    if kind == "crossed":
        return _crossed(bridge, tokenizer, made, sets, int(rest[0]))
    length, number = map(int, rest)
    return _losses(bridge, made, sets, length, number)


def _losses(
    bridge: TransformerBridge, made: CounterpartPlan, sets: Mapping[str, Hold], length: int, number: int
) -> Any:
    """Losses by block of one item as trained, mended, and with each set held."""
    methods = {BROKEN: made.origin, MENDED: made.mending}
    contrast = Contrast(bridge, made.items[length][number], methods, "dense")
    losses = {made.origin.name: contrast.outcome(BROKEN).losses, made.mending.name: contrast.outcome(MENDED).losses}
    losses |= {name: each.run(contrast).losses for name, each in sets.items()}
    found = {name: blocks("nll", each.double().cpu().numpy()) for name, each in losses.items()}
    if not np.isfinite(list(found.values())).all():
        raise RuntimeError(
            f"losses of text {number} at {length} tokens are not finite; try a wider --dtype (float32, float64)"
        )
    return {"nll": found}


def _crossed(
    bridge: TransformerBridge, tokenizer: Any, made: CounterpartPlan, sets: Mapping[str, Hold], length: int
) -> Any:
    """How many dims are observable on a repeated word, and how many of these still cross with each set held."""
    ids, _ = repeated_word(tokenizer, made.request.word, length)
    item, depth = passes.Item(tuple(ids), 1), made.config.num_hidden_layers
    keep = [(hook, layer) for hook in CROSSED for layer in range(depth)]
    edits = {made.origin.name: [], **{name: each.edits(made.trained_length) for name, each in sets.items()}}
    kept = {
        name: passes.run(bridge, item, made.origin, each, keep=keep, executor="dense").kept
        for name, each in edits.items()
    }
    found = {}
    for hook in CROSSED:
        values = [
            np.stack([one[hook, layer].double().cpu().numpy() for layer in range(depth)]) for one in kept.values()
        ]
        hidden = xr.DataArray(
            np.stack(values).astype(np.float32),
            {"method": list(kept), "layer": range(depth), "position": range(length)},
            ("method", "layer", "position", "dim"),
            hook,
        )
        read = search(hidden, made.trained_length, CrossingRule.scaled(made.trained_length), made.origin.name)
        crosses = read["crossing"].notnull() & read["observable"]
        found[hook] = {name: int(crosses.sel({"method": name}).sum()) for name in kept}
    return {"crossing": found}


def _short(values: np.ndarray) -> list[Any]:
    """Nested lists of numbers with `_DIGITS` significant digits."""
    return [float(f"{each:.{_DIGITS}g}") for each in values] if values.ndim == 1 else [_short(each) for each in values]
