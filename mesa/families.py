"""What is not found on a model itself (mesa/engine/structure.py finds the rest), one row a family; needs no torch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from mesa import plugins

CONSTRUCTED = "constructed"
"""The model type of the theorems' transformers (mesa/constructed.py), with ALiBi of one slope."""


@dataclass(frozen=True)
class Family:
    """A model type, as far as no pass over a model tells; docs/new-family.md.

    Args:
        alibi: It adds ALiBi's bias in attention modules of its own, not through transformers' AttentionInterface
            (mesa/engine/alibi.py); default False.
        refused: Why no method can be attached; default '': methods can.
        eager: TransformerLens computes its attention by a mask that is added, which only 'eager' has; default False.
        normed_by_position: Queries and keys are normed by (batch, position, head, dim), where TransformerLens has
            (batch, head, position, dim); default False.
        arguments: What its attention modules pass to the attention function beyond what methods understand, by name: a
            function from the value to the factor on the scores that it stands for, or None where it changes nothing.
            Default: nothing.

    Examples:
        >>> mesa.Family(arguments={"temperature": lambda value: 1 / value}).arguments["temperature"](2.0)
        0.5
    """

    alibi: bool = False
    refused: str = ""
    eager: bool = False
    normed_by_position: bool = False
    arguments: Mapping[str, Callable[[Any], float] | None] = field(default_factory=dict, hash=False)


_IMAGES = "its images see ahead; take its text model out of it (docs/models.md)"
FAMILIES = {
    "bloom": Family(alibi=True),
    CONSTRUCTED: Family(alibi=True),
    "gemma3": Family(refused=_IMAGES),
    "gemma4": Family(refused=_IMAGES),
    "glm_moe_dsa": Family(eager=True),
    "mpt": Family(alibi=True),
    "qwen3": Family(normed_by_position=True),
    "qwen3_moe": Family(normed_by_position=True),
}
"""By model type (`config.model_type`)."""


def family_of(kind: str) -> Family:
    """A model type's row; of one that has none, what holds of all others."""
    passed_rows = _passed.get(kind)
    return passed_rows[-1] if passed_rows else registry().get(kind, Family())


@contextmanager
def passed(kind: str, family: Family | None) -> Iterator[None]:
    """Models of this type have the row that a caller passed (None: their own), for the length of a `with` block."""
    rows = [] if family is None else [family]
    _passed.setdefault(kind, []).extend(rows)
    try:
        yield
    finally:
        for row in rows:
            _passed[kind].remove(row)


_passed: dict[str, list[Family]] = {}


@cache
def registry() -> dict[str, Family]:
    """`FAMILIES`, and the rows of installed packages, which may add classes to transformers as they are read."""
    return plugins.registered(plugins.FAMILIES, FAMILIES)
