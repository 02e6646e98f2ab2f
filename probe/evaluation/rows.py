"""What a row of any command's journal must hold: looked at as it is kept, and as it is read again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def problem(cell: Any, row: Mapping[str, Any]) -> str:
    """What is wrong with a row: its cell, a key it lacks, a value of another kind or no number; empty for none."""
    if not isinstance(cell, list | tuple) or not all(isinstance(part, int | str) for part in cell):
        return f"its cell {cell!r} is no list of names and numbers"
    needed = _needed(cell)
    if not needed:
        return f"its cell {list(cell)} is of no command"
    lacking = [[key for key in keys if key not in row] for keys in needed]
    if all(lacking):
        return f"it lacks {min(lacking, key=len)[0]!r}"
    wrong = [key for key, value in row.items() if key in _KINDS and not _KINDS[key](value)]
    return f"its {wrong[0]!r} holds what cannot be: {str(row[wrong[0]])[:60]}" if wrong else ""


def _needed(cell: Sequence[Any]) -> list[tuple[str, ...]]:
    """The keys that a row of this cell holds: one of these."""
    match cell:
        case ["find", int()]:
            return [("attention", "output", "apart")]
        case ["hold", int(), int()]:
            return [("nll",)]
        case ["crossed", int()]:
            return [("crossing",)]
        case ["predicted", str(), str(), int()]:
            return [("lengths",)]
        case ["dims", int(), str()]:
            return [("config", "rules")]
        case [str(), int(), str(), int(), "attribution"]:
            return [("config", "falls")]
        case [str(), int(), str(), int(), "chosen", *_]:
            return [("config", "heads", "candidates")]
        case [str(), int(), str(), int(), str(), *_]:
            return [("config", "nll")]
        case ["heads" | "frequencies", str(), int(), int()]:
            return [("config", "spans")]
        case ["lens", str(), int(), int()]:
            return [("config", "ends", "nll")]
        case ["retrieval", str(), int(), int()]:
            return [("config", "score")]
        case [str(), str(), int(), int()]:
            return [("scores",)]
        case [str(), str(), int()]:
            return [("config", "scores"), ("config", "results")]
    return []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_numbers(value: Any) -> bool:
    """Numbers in lists or mappings of any depth, none of them empty."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return bool(value) and all(map(_are_numbers, value)) if isinstance(value, list) else _is_number(value)


def _is_score(value: Any) -> bool:
    """A score of a study, or one of an evaluation with its length, sample and metric."""
    if not isinstance(value, Mapping):
        return _is_number(value)
    whole = all(type(value.get(key)) is int and value[key] >= 0 for key in ("length", "sample"))
    seconds = value.get("seconds")
    return (
        whole
        and isinstance(value.get("metric"), str)
        and _is_number(value.get("value"))
        and "seconds" in value
        and (seconds is None or _is_number(seconds))
    )


_KINDS: dict[str, Callable[[Any], bool]] = {
    "config": lambda value: isinstance(value, Mapping) and isinstance(value.get("name"), str),
    "scores": lambda value: isinstance(value, list) and bool(value) and all(map(_is_score, value)),
    "peak_mib": lambda value: value is None or _is_number(value),
    "results": lambda value: isinstance(value, Mapping) and all(isinstance(each, Mapping) for each in value.values()),
    "lengths": lambda value: isinstance(value, Mapping) and all(isinstance(each, Mapping) for each in value.values()),
    "rules": lambda value: isinstance(value, Mapping) and all(isinstance(each, list) for each in value.values()),
    "falls": lambda value: isinstance(value, list) and all(isinstance(each, list) for each in value),
    "spans": lambda value: isinstance(value, list) and bool(value),
    **dict.fromkeys(
        ("nll", "attention", "output", "apart", "crossing", "ends", "score", "heads", "candidates"), _are_numbers
    ),
}
"""What the values of a row are, by key; others are their commands' own."""
