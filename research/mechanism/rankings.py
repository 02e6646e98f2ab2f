"""Rank correlations between what is measured of heads and what interventions there restore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from research.correlation import LEAST_RANKED, rank_correlation

_BY_HEAD = (
    ("unmet", "norms", "beyond M", "unmet phases, by norms"),
    ("unmet", "attention", "beyond M", "unmet phases, by attention"),
    ("heads", "mass_beyond", "beyond M", "attention to keys beyond M"),
    ("heads", "entropy", "beyond M", "entropy beyond M"),
    ("heads", "entropy", "inside M", "entropy inside M"),
    ("heads", "previous", "inside M", "attention to the token before inside M"),
)
"""Parts of an anatomy's summary, their values under Origin where a query stands, and what these are called."""


def rankings(effects: Sequence[Mapping[str, Any]], length: int, anatomy: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rank correlations with what a method in one head alone restores at `length`, with 95% intervals.

    effects: of one method, length and measure (see results.py). anatomy: the summary of `mesa-lens anatomy`, with the
    rows of `run.unmet_by_head` as `unmet`. Of fewer than `LEAST_RANKED` heads nothing is said.
    """
    alone = {
        (row["layer"], row["head"]): row["share"]
        for row in effects
        if row["kind"] == "patch" and row["way"] == "only" and row["share"] is not None
    }
    ranked = []
    for what, values in _by_head(anatomy, length):
        pairs = [(value, alone[head]) for head, value in values.items() if head in alone]
        if len(pairs) >= LEAST_RANKED:
            value, low, high = rank_correlation(*zip(*pairs, strict=True))
            ranked.append({"what": what, "spearman": value, "low": low, "high": high, "places": len(pairs)})
    return ranked


def _by_head(anatomy: Mapping[str, Any], length: int) -> Iterator[tuple[str, dict[tuple[int, int], float]]]:
    for part, name, span, what in _BY_HEAD:
        rows = [row for row in anatomy[part] if row["length"] == length and row["method"] == "origin"]
        yield what, {(row["layer"], row["head"]): row[name][0] for row in rows if row["span"] == span}
    retrieval = [row for row in anatomy["retrieval"] if row["method"] == "origin"]
    inside = [row for row in retrieval if row["length"] <= anatomy["trained_length"]]
    yield "retrieval score inside M", {(row["layer"], row["head"]): row["best"][0] for row in inside}
