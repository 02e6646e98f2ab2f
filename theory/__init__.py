"""The paper's constructed transformers as real weights, and what really holds of theorems 3.1-3.3 and the corollary.

In: the theorems' sizes (M, N, E, H). Out: models with hooks, closed forms, and verdicts on every claim.
Open first: bounds.py, then model.py. `theory.bounds` needs no torch; the rest is loaded when used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mesa_lens.namesakes import check

if TYPE_CHECKING:
    from theory.bounds import denominator, extended_length, first_failure
    from theory.model import Construction, construction

check("mesa")

_LAZY: dict[str, str] = dict.fromkeys(("Construction", "construction"), "theory.model")
_LAZY |= dict.fromkeys(("denominator", "extended_length", "first_failure"), "theory.bounds")

__all__ = ["Construction", "construction", "denominator", "extended_length", "first_failure"]


def __getattr__(name: str) -> Any:
    """Loads what needs torch when it is used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'theory' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
