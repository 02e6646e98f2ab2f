"""Rank correlations between what is measured of heads and layers and what interventions there restore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from probe.statistics import LEAST_RANKED, rank_correlation

_BY_HEAD = (
    ("frequencies", "norms", "beyond M", "unmet phases, by norms"),
    ("frequencies", "attention", "beyond M", "unmet phases, by attention"),
    ("heads", "mass_beyond", "beyond M", "attention to keys beyond M"),
    ("heads", "entropy", "beyond M", "entropy beyond M"),
    ("heads", "entropy", "inside M", "entropy inside M"),
    ("heads", "previous", "inside M", "attention to the token before inside M"),
)
"""Parts of an anatomy's summary, their values under Origin where a query stands, and what these are called."""
Places = dict[tuple[int, int | None], float]
"""A value by (layer, head), or by (layer, None)."""


def rankings(
    effects: Sequence[Mapping[str, Any]], length: int, anatomy: Mapping[str, Any] | None, run: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Rank correlations with what a method in one head, or layer, alone restores at `length`, with 95% intervals.

    effects: of one method, length and measure (see results.py). anatomy: the summary of `mesa-lens anatomy`, by head at
    the same length. run: the summary of `mesa-lens probe`, by layer: where drift begins, a layer not called last. Of
    fewer than `LEAST_RANKED` places nothing is said.
    """
    alone = {
        (row["layer"], row["head"]): row["share"]
        for row in effects
        if row["kind"] == "weave" and row["way"] == "only" and row["share"] is not None
    }
    ranked = []
    layers = sorted(layer for layer, head in alone if head is None)
    for what, values in (*_by_head(anatomy, length), *_by_layer(anatomy, run, layers)):
        pairs = [(value, alone[place]) for place, value in values.items() if place in alone]
        if len(pairs) >= LEAST_RANKED:
            value, low, high = rank_correlation(*zip(*pairs, strict=True))
            row = {"what": what, "with": "the method there alone", "hook": None, "places": len(pairs)}
            ranked.append({**row, "spearman": value, "low": low, "high": high})
    return ranked


def _by_head(anatomy: Mapping[str, Any] | None, length: int) -> Iterator[tuple[str, Places]]:
    if anatomy is None:
        return
    for part, name, span, what in _BY_HEAD:
        rows = [row for row in anatomy[part] if row["length"] == length and row["method"] == "origin"]
        yield what, {(row["layer"], row["head"]): row[name][0] for row in rows if row["span"] == span}
    retrieval = [row for row in anatomy["retrieval"] if row["method"] == "origin"]
    inside = [row for row in retrieval if row["length"] <= anatomy["trained_length"]]
    yield "retrieval score inside M", {(row["layer"], row["head"]): row["best"][0] for row in inside}


def _by_layer(
    anatomy: Mapping[str, Any] | None, run: Mapping[str, Any] | None, layers: Sequence[int]
) -> Iterator[tuple[str, Places]]:
    called = _drifting(run or {})
    if called is not None:
        yield "early drift", {(layer, None): -called.get(str(layer), np.inf) for layer in layers}
    vectors = (anatomy or {}).get("vectors")
    if vectors:
        beyond = {row["layer"]: row["share"]["beyond"] for row in vectors["layers"] if row["method"] == "origin"}
        yield "positional share beyond M", {(layer, None): beyond[layer] for layer in layers if layer in beyond}


def _drifting(run: Mapping[str, Any]) -> Mapping[str, int] | None:
    """Where layers begin to drift under Origin on the repeated word; None where that run did not judge it."""
    drift = run.get("drift")
    judged = drift["prompts"].get("repeated", {}) if isinstance(drift, Mapping) else {}
    return next((row["layers"] for row in judged.get("methods", ()) if row["method"] == "origin"), None)
