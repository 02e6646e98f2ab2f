"""How a sentence names methods and counts prompts: listed, or counted where they are many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]
NAMED = 4
"""More methods than these are counted."""
_PROMPTS = (("window", "text", "tail NLL"), ("sample", "passkey", "passkey"))


def several(rows: Rows, reference: Mapping[str, Any] | None = None) -> str:
    """The methods, counted where they are many; with the doubt that they last longer than the reference."""
    doubts = [_doubt(row, reference) if reference else "" for row in rows]
    if len(rows) > NAMED:
        doubted = sum(map(bool, doubts))
        return f"{len(rows)} methods" + (f" ({doubted} not beyond doubt)" if doubted else "")
    return listed([f"{row['method']}{doubt}" for row, doubt in zip(rows, doubts, strict=True)])


def _doubt(row: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Said where the intervals of both failures meet, or there is none."""
    ends, others = row["measured"], reference["measured"]
    if ends["share"] is None:
        return " (without an interval)"
    after = math.inf if ends["after"] is None else ends["after"]
    return " (not beyond doubt)" if after < (others["high"] or math.inf) else ""


def counted(summary: Mapping[str, Any]) -> str:
    """How many prompts each length was measured with, of what judges: '20 texts and 20 passkeys'."""
    return _prompts(summary, summary["judged_by"])


def measured_on(summary: Mapping[str, Any]) -> str:
    """How many prompts each length was measured with, whatever judges; empty where nothing was measured."""
    return _prompts(summary, [rule for _, _, rule in _PROMPTS]) if summary["level"] else ""


def _prompts(summary: Mapping[str, Any], rules: Sequence[str]) -> str:
    prompts = summary["level"]["prompts"]
    known = [(prompts[key], name) for key, name, rule in _PROMPTS if key in prompts and rule in rules]
    return listed([f"{count} {name}{'s' * (count > 1)}" for count, name in known])


def verb(rows: Rows) -> str:
    """The verb's ending."""
    return "s" if len(rows) == 1 else ""


def listed(names: Sequence[object]) -> str:
    """Names as text, such as 'a, b and c'."""
    *most, last = map(str, names)
    return f"{', '.join(most)} and {last}" if most else last


def reference_of(rows: Rows) -> Mapping[str, Any]:
    """The row of the method that the others are compared with."""
    return next(row for row in rows if row["is_reference"])
