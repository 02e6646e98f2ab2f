"""Every claim of the paper that is checked.

In: `VerifyOptions` (sizes, precision, seed). Out: a `Claim` for each check, with its reading and verdict.
Open first: without_remap.py.
"""

import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType

from mesa.errors import Refused
from theory.claim import Check, Claim, ClaimVerdict
from theory.claims.settings import VerifyOptions

_MODULES = "without_remap theorem3 corollary".split()


def checks_in(modules: Iterable[ModuleType]) -> dict[str, Check]:
    """The checks that these modules define, by the names of their claims."""
    values = (value for module in modules for value in vars(module).values())
    return {value.name: value for value in values if isinstance(value, Check)}


CLAIMS = checks_in(importlib.import_module(f"{__name__}.{module}") for module in _MODULES)
"""Every check by the name of its claim."""


def selected(name: str | None, claims: Mapping[str, Check] | None = None) -> dict[str, Check]:
    """The claims called `name` or `name-...`; all for None. Refused for an unknown name, naming the known ones."""
    claims = CLAIMS if claims is None else claims
    checks = {
        known: check for known, check in claims.items() if name is None or known == name or known.startswith(f"{name}-")
    }
    if not checks:
        raise Refused(f"unknown claim {name!r}; known: {', '.join(claims)}")
    return checks


__all__ = ["CLAIMS", "Claim", "ClaimVerdict", "VerifyOptions", "checks_in", "selected"]
