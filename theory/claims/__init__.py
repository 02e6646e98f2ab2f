"""Every claim of the paper that is checked, and some beside it.

In: `Settings` (sizes, precision, seed). Out: a `Claim` for each check, with its reading and verdict.
Open first: theorem1.py, the shortest.
"""

from __future__ import annotations

import importlib

from mesa.errors import Refused
from theory.claim import Check, Claim, Verdict
from theory.claims.settings import Settings

_MODULES = "theorem1 theorem2 theorem3 corollary mesa rotary rotary_reach rotary_mesa beyond paper".split()
_VALUES = (value for module in _MODULES for value in vars(importlib.import_module(f"{__name__}.{module}")).values())
CLAIMS = {value.name: value for value in _VALUES if isinstance(value, Check)}
"""Every check by the name of its claim."""


def selected(name: str | None) -> dict[str, Check]:
    """The claims called `name` or `name-...`; all for None. Refused for an unknown name, naming the known ones."""
    if name is None:
        return CLAIMS
    checks = {known: check for known, check in CLAIMS.items() if known == name or known.startswith(f"{name}-")}
    if not checks:
        raise Refused(f"unknown claim {name!r}; known: {', '.join(CLAIMS)}")
    return checks


__all__ = ["CLAIMS", "Claim", "Settings", "Verdict", "selected"]
