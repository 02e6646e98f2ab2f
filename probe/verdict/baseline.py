"""Crop, the baseline of every claim that a method reads more than its window: the last M tokens alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.evaluation.intervals import shown
from probe.verdict.naming import Rows, listed, reference_of


def betters(row: Mapping[str, Any]) -> bool:
    """Whether a method's tail NLL at the longest length is below crop's on the same texts, its interval too."""
    less = to_crop(row)
    return less is not None and less["high"] is not None and less["high"] < 0


def to_crop(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A method's tail NLL at the longest length less crop's; None where it was not measured, or not beyond M."""
    return (row["nll"] or {}).get("crop")


def beside_crop(rows: Rows) -> str:
    """Which methods do better than crop by tail NLL, as the end of a sentence; empty where none was compared."""
    compared = [row for row in rows if to_crop(row) is not None]
    if not compared:
        return ""
    if all((to_crop(row) or {})["high"] is None for row in compared):
        return "; by tail NLL there one text alone tells nothing from crop"
    better = [row for row in compared if betters(row)]
    if not better:
        return "; by tail NLL there none does better than crop" if len(compared) > 1 else "; no better than crop there"
    told = listed([f"{row['method']} ({_shown(row)})" for row in better])
    others = " alone" if len(better) < len(compared) else ""
    return f"; by tail NLL there {told}{others} does better than crop"


def about(summary: Mapping[str, Any], rows: Rows) -> list[str]:
    """What crop is, where methods are compared with it."""
    if not any(to_crop(row) for row in rows):
        return []
    reference, length = reference_of(rows)["method"], summary["level"]["length"]
    return [
        f"Crop: {reference} on the last {length} tokens alone, the first one of the tokenizer's own kept: its score at "
        "that length, of the same texts. A tail NLL no better than that shows no use of what stands before them."
    ]


def cell(row: Mapping[str, Any]) -> str:
    """The difference with its interval; a dash for none."""
    return "–" if to_crop(row) is None else _shown(row)


def _shown(row: Mapping[str, Any]) -> str:
    less = to_crop(row) or {}
    return shown(less["mean"], less["low"], less["high"], "+z.2f")
