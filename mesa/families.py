"""What is not found on a model itself (mesa/engine/structure.py finds the rest), one row a family; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

CONSTRUCTED = "constructed"
"""The model type of the theorems' transformers (mesa/constructed.py), with ALiBi of one slope."""


@dataclass(frozen=True)
class Family:
    """A model type.

    alibi: it adds ALiBi's bias in attention modules of its own, not through transformers' AttentionInterface
    (mesa/engine/alibi.py). refused: why no method can be attached. eager: TransformerLens computes its attention by a
    mask that is added, which only 'eager' has. normed_by_position: queries and keys are normed by (batch, position,
    head, dim), where TransformerLens has (batch, head, position, dim).
    """

    alibi: bool = False
    refused: str = ""
    eager: bool = False
    normed_by_position: bool = False


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
    return FAMILIES.get(kind, Family())
