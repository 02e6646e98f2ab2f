"""Training-free methods that let a causal language model read beyond its trained window.

In: a method's config and a Hugging Face model. Out: the same model, attending as the method's plan says.
Open first: plan.py, then methods/woven.py. `mesa.methods` and `mesa.plan` need no torch; the rest is loaded when used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mesa.errors import Refused
from mesa.methods import METHODS, Method, make, meant
from mesa.methods.chunked import MesaExtrapolation
from mesa.methods.dual_chunk import DCA
from mesa.methods.interpolated import PI, CoPE, YaRN
from mesa.methods.mapped import STRING, LaMPE
from mesa.methods.plain import DynamicNTK, NoPE, NTKMixed, Origin
from mesa.methods.windowed import Crop, LMInfinite, StreamingLLM
from mesa.methods.woven import LeakyReRoPE, ReRoPE, SelfExtend, StairPE
from mesa.namesakes import warn_of_namesakes
from mesa.plan import Plan, distances

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

# fmt: off
__all__ = [
    "DCA",
    "METHODS",
    "PI",
    "STRING",
    "CoPE",
    "Crop",
    "DynamicNTK",
    "LMInfinite",
    "LaMPE",
    "LeakyReRoPE",
    "MesaExtrapolation",
    "Method",
    "NTKMixed",
    "NoPE",
    "Origin",
    "Plan",
    "ReRoPE",
    "Refused",
    "SelfExtend",
    "StairPE",
    "StreamingLLM",
    "YaRN",
    "applied",
    "bridge",
    "check",
    "distances",
    "load",
    "make",
]
# fmt: on


def __getattr__(name: str) -> Any:
    """Loads what needs torch when it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'mesa' has no attribute {name!r}{meant(name, __all__)}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
