"""Which query heads of which layers a method is applied to: read from a mapping or a text, and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

Heads = tuple[tuple[int, tuple[int, ...]], ...]
"""(layer, its heads), ..., both in rising order."""

_REMEDY = "write it as {1: (5,), 2: (0, 3)} or '1:5;2:0,3'"
_NUMBERS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def read_heads(value: Any, label: str) -> Heads:
    """Heads by layer from {layer: heads}, (layer, heads) pairs or a text as '2:0,3;1:5' ('0-3': ends included).

    Raises ValueError that begins with `label` for layers or heads that are missing, negative, doubled or not whole.
    """
    try:
        return _checked(_pairs(value))
    except ValueError as error:
        raise ValueError(f"{label} {error}; {_REMEDY}") from None


def _pairs(value: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """(layer, heads), ... as they are given."""
    if isinstance(value, str):
        return [_part(part) for part in value.split(";")]
    pairs = value.items() if isinstance(value, Mapping) else value
    try:
        return [(layer, tuple(heads)) for layer, heads in pairs]
    except (TypeError, ValueError):
        raise ValueError("is no mapping of layers to heads") from None


def _part(text: str) -> tuple[int, tuple[int, ...]]:
    """The layer and the heads of '2:0,3'."""
    layer, _, heads = (side.strip() for side in text.partition(":"))
    matches = [_NUMBERS.fullmatch(part.strip()) for part in heads.split(",")]
    if not re.fullmatch("[0-9]{1,4}", layer) or None in matches:
        raise ValueError(f"has {text.strip()!r}, which is no LAYER:HEAD,HEAD")
    spans = [(int(match[1]), int(match[2] or match[1])) for match in matches if match]
    for first, last in spans:
        if last < first:
            raise ValueError(f"has the range {first}-{last}, which ends before it begins")
    return int(layer), tuple(head for first, last in spans for head in range(first, last + 1))


def _checked(pairs: list[tuple[Any, tuple[Any, ...]]]) -> Heads:
    """The pairs in rising order."""
    if not pairs:
        raise ValueError("is empty")
    indices = {_index(layer, "layer"): _indices(heads, f"heads of layer {layer}") for layer, heads in pairs}
    if len(indices) < len(pairs):
        raise ValueError("names a layer twice")
    return tuple(sorted(indices.items()))


def _indices(values: Iterable[Any], what: str) -> tuple[int, ...]:
    indices = sorted(_index(value, "head") for value in values)
    if not indices:
        raise ValueError(f"names no {what}")
    if len(set(indices)) < len(indices):
        raise ValueError(f"names one of the {what} twice")
    return tuple(indices)


def _index(value: Any, what: str) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"has the {what} {value!r}, which is no whole number")
    if value < 0:
        raise ValueError(f"has the {what} {value}, which is below 0")
    return int(value)
