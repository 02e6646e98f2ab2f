"""Names of attention heads, as people read and type them: L0H7 is head 7 of layer 0."""

from __future__ import annotations

import re
from typing import Any

from mesa.errors import Refused


def head_name(layer: Any, head: Any) -> str:
    """Layer and head, both counted from 0, as one name.

    >>> head_name(0, 7)
    'L0H7'
    """
    return f"L{layer}H{head}"


def parse_head(name: str) -> tuple[int, int]:
    """(layer, head) of a name such as 'L0H7'. Raises Refused for any other text.

    >>> parse_head("L0H7")
    (0, 7)
    """
    match = re.fullmatch(r"L([0-9]{1,4})H([0-9]{1,4})", name)
    if not match:
        raise Refused(f"{name!r} is not a head; write e.g. L0H7, head 7 of layer 0")
    return int(match[1]), int(match[2])
