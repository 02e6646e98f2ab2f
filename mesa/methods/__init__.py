"""The methods, by name. Formulas in docs/methods.md.

In: the trained window M (`trained_length`) and sizes; those left out are the paper's, scaled to M (its M is 4096).
Out: plans (see mesa.plan), integers and predicates only. Open first: woven.py.
"""

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from mesa import plugins
from mesa.errors import Refused
from mesa.methods.base import Method
from mesa.methods.chunked import DCA, MesaExtrapolation
from mesa.methods.gap import Gap
from mesa.methods.interpolated import PI, CoPE, YaRN
from mesa.methods.mapped import STRING, LaMPE
from mesa.methods.plain import DynamicNTK, NoPE, NTKMixed, Origin
from mesa.methods.windowed import Crop, LMInfinite, StreamingLLM
from mesa.methods.woven import LeakyReRoPE, ReRoPE, SelfExtend, StairPE

# fmt: off
__all__ = [  # as `mesa` has them, too
    "DCA", "METHODS", "PI", "STRING", "CoPE", "Crop", "DynamicNTK", "LMInfinite", "LaMPE", "LeakyReRoPE",
    "MesaExtrapolation", "Method", "NTKMixed", "NoPE", "Origin", "ReRoPE", "SelfExtend", "StairPE", "StreamingLLM",
    "YaRN", "make",
]
# fmt: on

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Origin,
        NoPE,
        ReRoPE,
        LeakyReRoPE,
        PI,
        DynamicNTK,
        NTKMixed,
        YaRN,
        CoPE,
        DCA,
        STRING,
        LaMPE,
        Crop,
        LMInfinite,
        StreamingLLM,
        SelfExtend,
        StairPE,
        MesaExtrapolation,
        Gap,
    )
}
"""The classes of the methods that come with the package, by the names that commands use.

Examples:
    >>> mesa.METHODS["rerope"](trained_length=256).window
    32
    >>> [name for name, method in mesa.METHODS.items() if method.needs_rotary]
    ['dynamic-ntk', 'ntk-mixed', 'yarn', 'cope']
"""


def registry() -> dict[str, type[Method]]:
    """Every method by its name: ours, then those of installed packages. Refused where two share a name."""
    return plugins.registered(plugins.METHODS, METHODS)


def standard_methods() -> dict[str, type[Method]]:
    """Those of `registry` that extend a window: all but the experimental."""
    return {name: method for name, method in registry().items() if not method.experimental}


def meant(name: str, known: Iterable[str]) -> str:
    """A question to end an error with: whether the known name most like this one was meant; empty where none is."""
    plain = {name.lower(): name for name in known}
    close = get_close_matches(name.lower().replace("_", "-"), plain, 1, 0.75)
    return f"; did you mean {plain[close[0]]!r}?" if close else ""


def make(name: str, /, trained_length: int, **parameters: Any) -> Method:
    """A method by its name.

    Args:
        name: A key of `METHODS`, or the name of an installed package's method.
        trained_length: M, tokens.
        parameters: Parameters of the method; those left out take their defaults.

    Returns:
        The method, a frozen config.

    Raises:
        Refused: The name, a parameter or a value is not known.

    Examples:
        >>> mesa.make("stair", trained_length=256)
        StairPE(trained_length=256, log_n=True, layers=None, heads=None, window=32, width=50)
    """
    return known_method(name, *parameters)(trained_length=trained_length, **parameters)


def known_method(name: str, *parameters: str) -> type[Method]:
    """The class of the method called `name`; Refused for names of a method or parameters that are not known."""
    methods = registry()
    if name not in methods:
        raise Refused(f"unknown method {name!r}; known: {', '.join(methods)}{meant(name, methods)}")
    known = parameters_of(methods[name])
    for parameter in parameters:
        if parameter not in known:
            raise Refused(
                f"{name}: unknown parameter {parameter!r}; known: {', '.join(known)}{meant(parameter, known)}"
            )
    return methods[name]


def parameters_of(method: type[Method]) -> list[str]:
    """Names of a method's parameters, in order of the alphabet; M, which every method has, is none of them."""
    return sorted(field.name for field in fields(method) if field.init and field.name != "trained_length")
