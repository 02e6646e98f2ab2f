"""Crop, the baseline of every claim that a method reads more than its window: the last M tokens alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.evaluation.intervals import shown
from probe.verdict.naming import NAMED, Rows, listed, reference_of, verb


def beats(row: Mapping[str, Any]) -> bool:
    """Whether a method's tail NLL at the longest length is below crop's on the same texts, its interval too."""
    less = to_crop(row)
    return less is not None and less["high"] is not None and less["high"] < 0


def is_worse(row: Mapping[str, Any]) -> bool:
    """Whether a method's tail NLL at the longest length is above crop's on the same texts, its interval too."""
    less = to_crop(row)
    return less is not None and less["low"] is not None and less["low"] > 0


def to_crop(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A method's tail NLL at the longest length less crop's; None where it was not measured, or not beyond M."""
    return (row["nll"] or {}).get("crop")


def beside_crop(rows: Rows, lasting: Rows | None = None) -> str:
    """Which methods beat crop by tail NLL, and which of the `lasting` (None: of all) are worse, as a sentence.

    Empty where none was compared.
    """
    compared = [row for row in rows if to_crop(row) is not None]
    if not compared:
        return ""
    if all((to_crop(row) or {})["high"] is None for row in compared):
        return "One text cannot tell a method from `crop`."
    better = [row for row in compared if beats(row)]
    worse = [row for row in (rows if lasting is None else lasting) if is_worse(row)]
    text = f"{_named(better)} beat{verb(better)} `crop` by tail NLL" if better else ""
    if not text:
        one = f"{compared[0]['method']} does not clearly beat"
        text = f"{one if len(compared) == 1 else 'No method clearly beats'} `crop` by tail NLL"
    return f"{text}; {_named(worse)} {'is' if len(worse) == 1 else 'are'} worse than `crop`." if worse else f"{text}."


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


def _named(rows: Rows) -> str:
    """The methods with their differences, counted where they are many."""
    if len(rows) > NAMED:
        return f"{len(rows)} methods"
    return listed([f"{row['method']} ({_shown(row)} nats/token)" for row in rows])


def _shown(row: Mapping[str, Any]) -> str:
    less = to_crop(row) or {}
    return shown(less["mean"], less["low"], less["high"], "+z.2f")
