"""The inside as maps: a number a layer and head, from the summary of `mesa-lens anatomy`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.figures.cells import Cells, Scale
from probe.figures.mechanism import at_length, block
from probe.store.results import Anatomy, Row, having, number

INSIDE, BEYOND = "inside M", "beyond M"


@dataclass(frozen=True)
class Statistic:
    """Where a number of heads stands in the summary, what it is, and how it is written; whole: up to 1 in any case."""

    table: str
    column: str
    says: str
    unit: str
    digits: int | None = None
    whole: bool = False


STATISTICS = {
    "retrieval": Statistic(
        "retrieval",
        "best",
        "Retrieval score: how often a head looks at the passkey's token, or at the one after if more",
        "score",
        whole=True,
    ),
    "unmet": Statistic(
        "frequencies",
        "attention",
        "Unmet phases: share of attended scores that rides on rotary phases not met inside M",
        "share",
    ),
    "first": Statistic("heads", "mass_first", "Attention to the first 4 keys", "share"),
    "near": Statistic("heads", "mass_near", "Attention to keys at most N tokens away, the first 4 aside", "share"),
    "window": Statistic(
        "heads", "mass_window", "Attention to keys from N to M tokens away, the first 4 aside", "share"
    ),
    "beyond": Statistic("heads", "mass_beyond", "Attention to keys M or more tokens away, the first 4 aside", "share"),
    "distance": Statistic("heads", "mean_distance", "Mean distance attended to", "tokens", 0),
    "entropy": Statistic("heads", "entropy", "Entropy of attention", "nats", 1),
    "sink": Statistic("heads", "sink", "Attention on token 0", "share"),
}
"""The maps, by name."""


def head_map(found: Anatomy, name: str, method: str, length: int) -> Cells | None:
    """Layers x heads: a statistic of the reference inside and beyond M, and beside it the method's; None if not run.

    One colour scale for all methods at the length.
    """
    summary, statistic = found.summary, STATISTICS[name]
    rows = having(summary[statistic.table], length=length)
    if not having(rows, method=method) or (name == "beyond" and length <= summary["trained_length"]):
        return None
    own = {title: each for title, each in _shown(summary, rows, statistic, method, length) if each}
    scale = _scale(statistic, [each[statistic.column][0] for each in _judged(rows, summary, length)])
    heads = 1 + max(row["head"] for each in own.values() for row in each)
    blocks = tuple(
        block(title, [str(head) for head in range(heads)], summary["layers"], _cells(each, statistic), scale)
        for title, each in own.items()
    )
    prompts = max(row["n"] for each in own.values() for row in each)
    title = f"{statistic.says}. {at_length(summary, length)}, {prompts} prompt{'s' * (prompts > 1)}"
    return Cells(title, statistic.unit, "layer", tuple(map(str, summary["layers"])), blocks)


def triple(row: Row, name: str) -> dict[str, float]:
    """A value with its interval, as `share`, `low` and `high`; NaN where there is none."""
    return dict(zip(("share", "low", "high"), map(number, row[name]), strict=True))


def _shown(
    summary: Mapping[str, Any], rows: Sequence[Row], statistic: Statistic, method: str, length: int
) -> list[tuple[str, list[Row]]]:
    """Titles and rows of the blocks."""
    reference, trained = summary["reference"], summary["trained_length"]
    span = BEYOND if length > trained else INSIDE
    if statistic.table == "retrieval":  # answers stand at the end: of these rows none is inside and beyond
        lengths = [row["length"] for row in summary["retrieval"] if row["method"] == reference]
        within = max((each for each in lengths if each <= trained), default=None)
        inside = having(summary["retrieval"], method=reference, length=within)
        shown = [(f"{reference} at {within} tokens, head", inside)] if length > trained else []
        return [
            *shown,
            *((f"{name} at {length} tokens, head", having(rows, method=name)) for name in (reference, method)),
        ]
    shown = [(f"{reference} {INSIDE}, head", having(rows, method=reference, span=INSIDE))] if span == BEYOND else []
    return [*shown, *((f"{name} {span}, head", having(rows, method=name, span=span)) for name in (reference, method))]


def _judged(rows: Sequence[Row], summary: Mapping[str, Any], length: int) -> list[Row]:
    """The rows that set the colours: those beyond M where the length is."""
    return [row for row in rows if row.get("span") != INSIDE] if length > summary["trained_length"] else list(rows)


def _cells(rows: Sequence[Row], statistic: Statistic) -> dict[tuple[int | None, int], Row]:
    return {(row["layer"], row["head"]): triple(row, statistic.column) for row in rows}


def _scale(statistic: Statistic, values: Sequence[float]) -> Scale:
    """From 0 to the next round number above all values."""
    largest = 1.0 if statistic.whole else max(values)
    return Scale(0.0, _round_above(largest), statistic.digits)


def _round_above(value: float) -> float:
    """The least of 1, 2, 4, 6, 8 and 10 times a power of ten that is not below `value`; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(each * power for each in (1, 2, 4, 6, 8, 10) if each * power >= value * (1 - 1e-9))
