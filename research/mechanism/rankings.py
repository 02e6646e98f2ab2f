"""Which of what is measured ranks heads and layers as the interventions do; plain numbers, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from probe.evaluation.intervals import LEAST_RANKED, rank_correlation

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
        (each["layer"], each["head"]): each["share"]
        for each in effects
        if each["kind"] == "weave" and each["way"] == "only" and each["share"] is not None
    }
    found = []
    layers = sorted(layer for layer, head in alone if head is None)
    for what, values in (*_by_head(anatomy, length), *_by_layer(anatomy, run, layers)):
        pairs = [(value, alone[place]) for place, value in values.items() if place in alone]
        if len(pairs) >= LEAST_RANKED:
            value, low, high = rank_correlation(*zip(*pairs, strict=True))
            row = {"what": what, "with": "the method there alone", "hook": None, "places": len(pairs)}
            found.append({**row, "spearman": value, "low": low, "high": high})
    return found


def _by_head(anatomy: Mapping[str, Any] | None, length: int) -> Iterator[tuple[str, Places]]:
    if anatomy is None:
        return
    for part, name, span, what in _BY_HEAD:
        rows = [each for each in anatomy[part] if each["length"] == length and each["method"] == "origin"]
        yield what, {(each["layer"], each["head"]): each[name][0] for each in rows if each["span"] == span}
    own = [each for each in anatomy["retrieval"] if each["method"] == "origin"]
    inside = [each for each in own if each["length"] <= anatomy["trained_length"]]
    yield "retrieval score inside M", {(each["layer"], each["head"]): each["best"][0] for each in inside}


def _by_layer(
    anatomy: Mapping[str, Any] | None, run: Mapping[str, Any] | None, layers: Sequence[int]
) -> Iterator[tuple[str, Places]]:
    called = _drifting(run or {})
    if called is not None:
        yield "early drift", {(layer, None): -called.get(str(layer), np.inf) for layer in layers}
    vectors = (anatomy or {}).get("vectors")
    if vectors:
        own = {each["layer"]: each["share"]["beyond"] for each in vectors["layers"] if each["method"] == "origin"}
        yield "positional share beyond M", {(layer, None): own[layer] for layer in layers if layer in own}


def _drifting(run: Mapping[str, Any]) -> Mapping[str, int] | None:
    """Where layers begin to drift under Origin on the repeated word; None where that run did not judge it."""
    drift = run.get("drift")
    found = drift["prompts"].get("repeated", {}) if isinstance(drift, Mapping) else {}
    return next((each["layers"] for each in found.get("methods", ()) if each["method"] == "origin"), None)
