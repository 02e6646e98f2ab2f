"""What `mesa-lens anatomy` measured: maps of heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from probe.commands.anatomy.result import Anatomy, HeadMeasured, Retrieval
from probe.figures.figure_data import Heatmaps, Scale, at_length, tile_map, tiles
from probe.store.result_file import having

INSIDE, BEYOND = "inside M", "beyond M"
Row = HeadMeasured | Retrieval


@dataclass(frozen=True)
class Statistic:
    """A number of every head: its table and column in the summary, and how it is written; whole: a scale up to 1."""

    label: str
    table: str
    column: str
    title: str
    unit: str
    digits: int | None = None
    whole: bool = False


_WITHOUT = "without the first 4"
_RETRIEVAL = "Retrieval score: how often a head attends most to the passkey's token, or to the one after it"
STATISTICS = {
    "retrieval": Statistic("retrieval", "retrieval", "best", _RETRIEVAL, "score", whole=True),
    "beyond": Statistic(
        "keys beyond M", "heads", "mass_beyond", f"Attention to keys M or more tokens away, {_WITHOUT}", "share"
    ),
    "window": Statistic(
        "keys from N to M", "heads", "mass_window", f"Attention to keys from N to M tokens away, {_WITHOUT}", "share"
    ),
    "near": Statistic(
        "keys within N", "heads", "mass_near", f"Attention to keys at most N tokens away, {_WITHOUT}", "share"
    ),
    "first": Statistic("first 4 keys", "heads", "mass_first", "Attention to the first 4 keys", "share"),
    "distance": Statistic("mean distance", "heads", "mean_distance", "Mean attention distance", "tokens", 0),
    "entropy": Statistic("entropy", "heads", "entropy", "Entropy of attention", "nats", 1),
    "sink": Statistic("token 0", "heads", "sink", "Attention on token 0", "share"),
}
"""The maps, by name."""


def head_map(summary: Anatomy, name: str, method: str, length: int) -> Heatmaps | None:
    """Layers x heads: a statistic of the reference inside and beyond M, and beside it the method's; None if not run.

    One colour scale for all methods at the length.
    """
    statistic = STATISTICS[name]
    rows = having(getattr(summary, statistic.table), length=length)
    if not having(rows, method=method) or (name == "beyond" and length <= summary.trained_length):
        return None
    subsets = _blocks(summary, rows, statistic, method, length)
    coloured = (
        [row for row in rows if getattr(row, "span", None) != INSIDE] if length > summary.trained_length else rows
    )
    largest = 1.0 if statistic.whole else max(getattr(row, statistic.column).mean for row in coloured)
    scale = Scale(0.0, _round_above(largest), statistic.digits)
    heads = [str(head) for head in range(1 + max(row.head for subset in subsets.values() for row in subset))]
    blocks = []
    for title, subset in subsets.items():
        triples = {(row.layer, row.head): getattr(row, statistic.column) for row in subset}
        blocks.append(tiles(title, heads, summary.layers, triples, scale))
    prompts = max(row.n for subset in subsets.values() for row in subset)
    at = at_length(summary.model, summary.trained_length, length)
    title = f"{statistic.title}. {at}, {prompts} prompt{'s' * (prompts > 1)}"
    return tile_map(title, statistic.unit, blocks, scale)


def _blocks(
    summary: Anatomy, rows: Sequence[Row], statistic: Statistic, method: str, length: int
) -> dict[str, list[Row]]:
    """Rows of the blocks by title, the reference's first; those without rows are left out."""
    reference, trained, names = summary.reference, summary.trained_length, (summary.reference, method)
    blocks: dict[str, list[Row]] = {}
    if statistic.table == "retrieval":  # answers stand at the end: none of these rows is both inside and beyond
        of_reference = having(summary.retrieval, method=reference)
        within = max((row.length for row in of_reference if row.length <= trained), default=None)
        if length > trained:
            blocks[f"{reference} at {within} tokens, head"] = having(of_reference, length=within)
        blocks |= {f"{name} at {length} tokens, head": having(rows, method=name) for name in names}
    else:
        places = [(name, INSIDE) for name in names]
        if length > trained:
            places = [places[0], *((name, BEYOND) for name in names)]
        blocks = {f"{name} {span}, head": having(rows, method=name, span=span) for name, span in places}
    return {title: subset for title, subset in blocks.items() if subset}


def _round_above(value: float) -> float:
    """The least of 1, 2, 4, 6, 8 and 10 times a power of ten that is not below `value`; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 6, 8, 10) if factor * power >= value * (1 - 1e-9))
