"""What `mesa-lens anatomy` measured: maps of heads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.figures.figure_data import Heatmaps, Scale, tile_map, tiles
from probe.figures.locate import at_length
from probe.store.results import Anatomy, Row, having, number

INSIDE, BEYOND = "inside M", "beyond M"


@dataclass(frozen=True)
class Statistic:
    """A number of every head: its table and column in the summary, and how it is written; whole: a scale up to 1."""

    table: str
    column: str
    title: str
    unit: str
    digits: int | None = None
    whole: bool = False


STATISTICS = {
    "retrieval": Statistic(
        "retrieval",
        "best",
        "Retrieval score: how often a head attends most to the passkey's token, or to the one after it",
        "score",
        whole=True,
    ),
    "first": Statistic("heads", "mass_first", "Attention to the first 4 keys", "share"),
    "near": Statistic("heads", "mass_near", "Attention to keys at most N tokens away, without the first 4", "share"),
    "window": Statistic(
        "heads", "mass_window", "Attention to keys from N to M tokens away, without the first 4", "share"
    ),
    "beyond": Statistic(
        "heads", "mass_beyond", "Attention to keys M or more tokens away, without the first 4", "share"
    ),
    "distance": Statistic("heads", "mean_distance", "Mean attention distance", "tokens", 0),
    "entropy": Statistic("heads", "entropy", "Entropy of attention", "nats", 1),
    "sink": Statistic("heads", "sink", "Attention on token 0", "share"),
}
"""The maps, by name."""


def head_map(summary: Anatomy, name: str, method: str, length: int) -> Heatmaps | None:
    """Layers x heads: a statistic of the reference inside and beyond M, and beside it the method's; None if not run.

    One colour scale for all methods at the length.
    """
    statistic = STATISTICS[name]
    rows = having(summary[statistic.table], length=length)
    if not having(rows, method=method) or (name == "beyond" and length <= summary["trained_length"]):
        return None
    subsets = _blocks(summary, rows, statistic, method, length)
    coloured = [row for row in rows if row.get("span") != INSIDE] if length > summary["trained_length"] else rows
    largest = 1.0 if statistic.whole else max(row[statistic.column][0] for row in coloured)
    scale = Scale(0.0, _round_above(largest), statistic.digits)
    heads = [str(head) for head in range(1 + max(row["head"] for subset in subsets.values() for row in subset))]
    blocks = []
    for title, subset in subsets.items():
        triples = {(row["layer"], row["head"]): map(number, row[statistic.column]) for row in subset}
        blocks.append(tiles(title, heads, summary["layers"], triples, scale))
    prompts = max(row["n"] for subset in subsets.values() for row in subset)
    title = f"{statistic.title}. {at_length(summary, length)}, {prompts} prompt{'s' * (prompts > 1)}"
    return tile_map(title, statistic.unit, blocks, scale)


def _blocks(
    summary: Mapping[str, Any], rows: Sequence[Row], statistic: Statistic, method: str, length: int
) -> dict[str, list[Row]]:
    """Rows of the blocks by title, the reference's first; those without rows are left out."""
    reference, trained = summary["reference"], summary["trained_length"]
    blocks: dict[str, list[Row]] = {}
    if statistic.table == "retrieval":  # answers stand at the end: none of these rows is both inside and beyond
        lengths = [row["length"] for row in having(summary["retrieval"], method=reference)]
        within = max((inside for inside in lengths if inside <= trained), default=None)
        if length > trained:
            inside = having(summary["retrieval"], method=reference, length=within)
            blocks[f"{reference} at {within} tokens, head"] = inside
        blocks |= {f"{name} at {length} tokens, head": having(rows, method=name) for name in (reference, method)}
    else:
        spans = [(reference, INSIDE), (reference, BEYOND), (method, BEYOND)]
        if length <= trained:
            spans = [(reference, INSIDE), (method, INSIDE)]
        blocks = {f"{name} {span}, head": having(rows, method=name, span=span) for name, span in spans}
    return {title: subset for title, subset in blocks.items() if subset}


def _round_above(value: float) -> float:
    """The least of 1, 2, 4, 6, 8 and 10 times a power of ten that is not below `value`; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 6, 8, 10) if factor * power >= value * (1 - 1e-9))
