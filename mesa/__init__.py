"""Training-free methods that let a causal language model read beyond its trained window.

In: a method's config and a Hugging Face model. Out: the same model, attending as the method's plan says.
Open first: plan.py, then methods/woven.py. `mesa.methods` and `mesa.plan` need no torch; the rest is loaded when used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mesa import methods
from mesa.errors import Refused
from mesa.families import Family
from mesa.methods import *  # noqa: F403  a new method is named there alone
from mesa.methods import meant
from mesa.plan import Plan, distances
from mesa_lens.namesakes import warn_of_namesakes

if TYPE_CHECKING:
    from mesa.checking.check import check
    from mesa.engine.bridge import bridge
    from mesa.engine.plug import applied
    from mesa.models import load

warn_of_namesakes()

_LAZY = {
    "applied": "mesa.engine.plug",
    "bridge": "mesa.engine.bridge",
    "check": "mesa.checking.check",
    "load": "mesa.models",
}

__all__ = ["Family", "Plan", "Refused", "applied", "bridge", "check", "distances", "load"]
__all__ += methods.__all__


def __getattr__(name: str) -> Any:
    """Loads what needs torch when it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'mesa' has no attribute {name!r}{meant(name, __all__)}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
