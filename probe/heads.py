"""Names of attention heads, as people read and type them: L0H7 is head 7 of layer 0."""

from __future__ import annotations

from typing import Any


def head_name(layer: Any, head: Any) -> str:
    """Layer and head, counted from 0, as one name.

    >>> head_name(0, 7)
    'L0H7'
    """
    return f"L{layer}H{head}"
