"""Every claim of the paper that we check, and some of our own.

In: `Settings` (sizes, precision, seed). Out: a `Claim` each, with its readings and verdict.
Open first: base.py, then theorem1.py, the shortest.
"""

from __future__ import annotations

from collections.abc import Callable

from theory.claims import (
    beyond,
    corollary,
    mesa,
    mesa_woven,
    paper,
    positions,
    printed,
    rotary,
    rotary_alibi,
    rotary_bases,
    rotary_enclosed,
    rotary_mesa,
    rotary_reach,
    theorem1,
    theorem2,
    theorem3,
    theorem3_conditions,
)
from theory.claims.base import Claim, Verdict
from theory.claims.settings import Settings

CLAIMS: dict[str, Callable[[Settings], Claim]] = {
    **theorem1.CLAIMS,
    **theorem2.CLAIMS,
    **positions.CLAIMS,
    **theorem3.CLAIMS,
    **theorem3_conditions.CLAIMS,
    **corollary.CLAIMS,
    **mesa.CLAIMS,
    **mesa_woven.CLAIMS,
    **rotary.CLAIMS,
    **rotary_enclosed.CLAIMS,
    **rotary_reach.CLAIMS,
    **rotary_mesa.CLAIMS,
    **rotary_bases.CLAIMS,
    **rotary_alibi.CLAIMS,
    **beyond.CLAIMS,
    **paper.CLAIMS,
    **printed.CLAIMS,
}
"""Every check by the name of its claim."""


def selected(name: str | None) -> dict[str, Callable[[Settings], Claim]]:
    """The claims called `name` or `name-...`; all for None. ValueError for an unknown name, naming the known ones."""
    if name is None:
        return CLAIMS
    found = {known: check for known, check in CLAIMS.items() if known == name or known.startswith(f"{name}-")}
    if not found:
        raise ValueError(f"unknown claim {name!r}; known: {', '.join(CLAIMS)}")
    return found


__all__ = ["CLAIMS", "Claim", "Settings", "Verdict", "selected"]
